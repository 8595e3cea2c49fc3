// One conversation: what was said, where to write, and its options.

import { Answer } from "./answer.js";
import { make } from "./dom.js";

let numChats = 0;

export class Chat {
  constructor({ onChange }) {
    numChats += 1;
    this.id = `chat-${numChats}`;
    this.title = numChats === 1 ? "Chat" : `Chat ${numChats}`;
    this.answer = null;
    this._turns = [];
    this._onChange = onChange;
    this._build();
  }

  get isBusy() {
    return this.answer?.isOpen ?? false;
  }

  _build() {
    this._said = make(
      "div",
      { class: "said", role: "log", "aria-label": "Conversation", tabindex: "0" },
      make("div", { class: "empty" }, make("strong", { text: "Say something." }), "The request’s blocks light up in the memory as it is answered."),
    );
    this._input = make("textarea", {
      rows: "2",
      placeholder: "Message",
      "aria-label": "Message",
      "aria-keyshortcuts": "Enter Escape",
      onkeydown: (event) => this._onKey(event),
      oninput: () => this._fit(),
    });
    this._send = make("button", { type: "submit", class: "strong", text: "Send" });
    this._stop = make("button", { type: "button", class: "quiet", text: "Stop", hidden: true, onclick: () => this.stop() });
    const form = make(
      "form",
      { class: "write", onsubmit: (event) => this._onSubmit(event) },
      this._input,
      make("div", { class: "row" }, this._buildOptions(), make("div", { class: "buttons" }, this._stop, this._send)),
    );
    this.element = make(
      "div",
      { class: "chat", id: this.id, role: "tabpanel", "aria-labelledby": `${this.id}-tab` },
      this._said,
      form,
    );
  }

  _buildOptions() {
    const field = (label, properties, full = false) => {
      const input = make("input", properties);
      return [input, make("label", { class: full ? "full" : null }, label, input)];
    };
    const [system, systemLabel] = field("System prompt", { type: "text", placeholder: "none" }, true);
    const [temperature, temperatureLabel] = field("Temperature", { type: "number", min: "0", max: "2", step: "0.1", placeholder: "as served", value: "0.1" });
    const [tokens, tokensLabel] = field("Most tokens", { type: "number", min: "1", step: "1", value: "512" });
    this._options = { system, temperature, tokens };
    return make(
      "details",
      {},
      make("summary", { text: "Options" }),
      make("div", { class: "options" }, systemLabel, temperatureLabel, tokensLabel),
    );
  }

  _onKey(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      this._say();
    } else if (event.key === "Escape" && this.isBusy) {
      this.stop();
    }
  }

  _onSubmit(event) {
    event.preventDefault();
    this._say();
  }

  _fit() {
    this._input.style.height = "auto";
    this._input.style.height = `${Math.min(this._input.scrollHeight + 2, 190)}px`;
  }

  focus() {
    this._input.focus();
  }

  _say() {
    const text = this._input.value.trim();
    if (!text || this.isBusy) return;
    this._input.value = "";
    this._fit();
    if (!this._turns.length) {
      this._said.replaceChildren();
      this.title = text.length > 24 ? `${text.slice(0, 23)}…` : text;
    }
    this._turns.push({ role: "user", content: text });
    this._said.append(make("div", { class: "turn user" }, make("div", { class: "text", text })));
    this._ask();
  }

  /** Ask for the last turn's answer anew; the old one goes. */
  again() {
    if (this.isBusy || !this.answer) return;
    if (this._turns.at(-1)?.role === "assistant") this._turns.pop();
    this.answer.element.remove();
    this._ask();
  }

  stop() {
    this.answer?.stop();
    this.focus();
  }

  _ask() {
    this.answer?.offerAgain(false);
    const { system, temperature, tokens } = this._options;
    const messages = [...this._turns];
    if (system.value.trim()) messages.unshift({ role: "system", content: system.value.trim() });
    const options = {};
    if (temperature.value !== "") options.temperature = Number(temperature.value);
    if (tokens.value !== "") options.max_tokens = Number(tokens.value);
    const answer = new Answer({ onChange: () => this._show(), onAgain: () => this.again() });
    this.answer = answer;
    this._said.append(answer.element);
    this._show();
    answer.run(messages, options).then(() => this._settle(answer));
  }

  _settle(answer) {
    if (answer.text) this._turns.push({ role: "assistant", content: answer.text });
    answer.offerAgain(true);
    this._show();
  }

  _show() {
    const said = this._said;
    const nearEnd = said.scrollHeight - said.scrollTop - said.clientHeight < 120;
    this._stop.hidden = !this.isBusy;
    this._send.hidden = this.isBusy;
    if (nearEnd) said.scrollTop = said.scrollHeight;
    this._onChange(this);
  }
}
