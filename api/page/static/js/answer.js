// One answer of the assistant: asked for, streamed into the page, stopped, and measured.

import { ask, events } from "./api.js";
import { make, say } from "./dom.js";
import { count, rate, time } from "./format.js";

/** Names of requests that this page has under way: the live view marks them. */
const underWay = new Set();

/** What to call a request here. */
export const nameOf = (name) => (underWay.has(name) ? "this page" : name);

export class Answer {
  /** `onChange` hears of every state: waiting, writing, done, stopped, failed. */
  constructor({ onChange, onAgain }) {
    this.text = "";
    this.state = "waiting";
    this.name = `ui-${crypto.randomUUID?.() ?? Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(16)).join("")}`;
    this.usage = null;
    this.finish = null;
    this.times = { asked: 0, first: 0, last: 0 };
    this._onChange = onChange;
    this._stop = new AbortController();
    this._words = make("div", { class: "text" });
    this._failed = make("div", { class: "failed", role: "alert", hidden: true });
    this._facts = make("div", { class: "facts" });
    this._again = make("button", { type: "button", class: "again", text: "Regenerate", onclick: onAgain, hidden: true });
    this.element = make("div", { class: "turn assistant", "data-state": "waiting" }, this._words, this._failed, this._facts);
  }

  get isOpen() {
    return this.state === "waiting" || this.state === "writing";
  }

  /** Ask and stream. Never throws: what goes wrong is shown in its place. */
  async run(messages, options) {
    this.times.asked = performance.now();
    underWay.add(this.name);
    try {
      const body = {
        messages,
        stream: true,
        stream_options: { include_usage: true, continuous_usage_stats: true },
        ...options,
      };
      const response = await ask("v1/chat/completions", {
        body,
        signal: this._stop.signal,
        headers: { "X-Request-Id": this.name },
      });
      for await (const data of events(response)) {
        if (data === "[DONE]") break;
        this._take(JSON.parse(data));
      }
      if (this.isOpen) this._end("done");
    } catch (error) {
      if (this._stop.signal.aborted) this._end("stopped");
      else this._fail(error);
    } finally {
      underWay.delete(this.name);
    }
  }

  /** Hang up: the server takes that for the client's leaving and frees the request at the next step. */
  stop() {
    this._stop.abort();
  }

  /** Offer another answer in this one's place: only the last one of a chat does. */
  offerAgain(offered) {
    this._again.hidden = !offered;
  }

  _take(event) {
    if (event.error) throw new Error(event.error.message);
    if (event.usage) this.usage = event.usage;
    const choice = event.choices?.[0];
    const words = choice?.delta?.content;
    if (words) {
      const now = performance.now();
      if (!this.times.first) {
        this.times.first = now;
        this._set("writing");
      }
      this.times.last = now;
      this.text += words;
      this._words.append(words);
    }
    if (choice?.finish_reason) this.finish = choice.finish_reason;
    this._showFacts();
    this._onChange(this);
  }

  _end(state) {
    this._set(state);
    this._showFacts();
    this._onChange(this);
  }

  _fail(error) {
    this._failed.hidden = false;
    say(this._failed, error instanceof TypeError ? "The server does not answer." : error.message);
    this._end("failed");
  }

  _set(state) {
    this.state = state;
    this.element.dataset.state = state;
  }

  /** Seconds to the first token, tokens a second after it, and what the prefix cache spared. */
  get facts() {
    const { asked, first, last } = this.times;
    const tokens = this.usage?.completion_tokens ?? 0;
    return {
      firstToken: first ? (first - asked) / 1000 : null,
      tokens,
      rate: tokens > 1 && last > first ? ((tokens - 1) * 1000) / (last - first) : null,
      prompt: this.usage?.prompt_tokens ?? 0,
      cached: this.usage?.prompt_tokens_details?.cached_tokens ?? 0,
    };
  }

  _showFacts() {
    const facts = this.facts;
    const parts = [];
    const part = (name, value, label) => parts.push(make("span", { "data-fact": name }, make("b", { text: value }), ` ${label}`));
    if (facts.firstToken !== null) part("ttft", time(facts.firstToken), "to first token");
    if (facts.rate !== null) part("rate", rate(facts.rate), "tokens/s");
    if (facts.tokens) part("tokens", count(facts.tokens), facts.tokens === 1 ? "token" : "tokens");
    if (facts.prompt) part("cached", `${count(facts.cached)} of ${count(facts.prompt)}`, "prompt tokens cached");
    const ends = { stopped: "stopped", length: "cut at its length", abort: "cancelled", timeout: "out of time" };
    const end = this.state === "stopped" ? "stopped" : this.state === "done" ? this.finish : null;
    if (ends[end]) parts.push(make("span", { "data-fact": "end", text: ends[end] }));
    this._facts.replaceChildren(...parts, this._again);
  }
}
