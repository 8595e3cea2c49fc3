// The open requests: who runs, who waits, and how far each has got.

import { nameOf } from "./answer.js";
import { make, onFrame, say } from "./dom.js";
import { count, plural, time } from "./format.js";

const SHOWN_MAX = 100;
const ORDER = { decode: 0, prefill: 1, preempted: 2, waiting: 3, tokenizing: 4 };
const RUNNING = new Set(["decode", "prefill"]);

export class Queue {
  constructor({ root, note, live }) {
    this._root = root;
    this._note = note;
    this._live = live;
    this._rows = new Map();
    this._body = make("tbody");
    const head = (text, more = "") => make("th", { text, class: more || null, scope: "col" });
    this._table = make(
      "table",
      {},
      make(
        "thead",
        {},
        make(
          "tr",
          {},
          head("Request"),
          head("State"),
          head("Prompt"),
          head("Cached", "number wide-only"),
          head("Answer", "number"),
          head("Blocks", "number wide-only"),
          head("Age", "number wide-only"),
        ),
      ),
      this._body,
    );
    this._nothing = make("p", { class: "nothing", text: "Nothing runs and nothing waits." });
    root.replaceChildren(this._nothing, this._table);
    this._draw = onFrame(() => this._show());
    live.addEventListener("change", this._draw);
    setInterval(() => live.requests.size && this._draw(), 500);
  }

  _show() {
    const requests = [...this._live.requests.values()].sort(
      (one, other) => ORDER[one.state] - ORDER[other.state] || one.arrived - other.arrived,
    );
    const running = requests.filter((request) => RUNNING.has(request.state)).length;
    const more = this._live.moreRequests + Math.max(0, requests.length - SHOWN_MAX);
    say(
      this._note,
      `${count(running)} running, ${count(requests.length - running + this._live.moreRequests)} waiting` +
        (more ? `, ${count(more)} not shown` : ""),
    );
    const shown = requests.slice(0, SHOWN_MAX);
    this._nothing.hidden = shown.length > 0;
    this._table.hidden = shown.length === 0;
    // A box that scrolls can be reached with the keys.
    if (this._root.scrollHeight > this._root.clientHeight) this._root.tabIndex = 0;
    else this._root.removeAttribute("tabindex");
    const kept = new Set(shown.map((request) => request.id));
    for (const [id, row] of this._rows) {
      if (!kept.has(id)) {
        row.element.remove();
        this._rows.delete(id);
      }
    }
    shown.forEach((request, place) => {
      let row = this._rows.get(request.id);
      if (!row) {
        row = makeRow();
        this._rows.set(request.id, row);
      }
      fill(row, request, this._live.now);
      if (this._body.children[place] !== row.element) this._body.insertBefore(row.element, this._body.children[place] ?? null);
    });
  }
}

function makeRow() {
  const parts = {
    dot: make("i", { class: "dot" }),
    name: make("span"),
    state: make("span", { class: "state" }),
    spared: make("i", { class: "spared" }),
    done: make("i", { class: "done" }),
    cached: make("td", { class: "number wide-only" }),
    answer: make("td", { class: "number" }),
    blocks: make("td", { class: "number wide-only" }),
    age: make("td", { class: "number wide-only" }),
  };
  parts.way = make("div", { class: "way", role: "img" }, parts.spared, parts.done);
  parts.nameCell = make("td", { class: "name" }, parts.dot, parts.name);
  parts.element = make(
    "tr",
    {},
    parts.nameCell,
    make("td", {}, parts.state),
    make("td", {}, parts.way),
    parts.cached,
    parts.answer,
    parts.blocks,
    parts.age,
  );
  return parts;
}

function fill(row, request, now) {
  const prompt = Math.max(1, request.prompt_tokens);
  const spared = Math.min(request.cached_tokens, prompt) / prompt;
  const done = Math.min(request.computed_tokens, prompt) / prompt - spared;
  row.element.dataset.request = request.name;
  row.dot.style.background = request.colour === null ? "" : `var(--owner-${request.colour})`;
  say(row.name, nameOf(request.name));
  row.nameCell.title = request.name;
  say(row.state, request.preemptions ? `${request.state} · ${plural(request.preemptions, "preemption")}` : request.state);
  row.state.dataset.state = request.state;
  row.spared.style.width = `${100 * spared}%`;
  row.done.style.width = `${100 * Math.max(0, done)}%`;
  row.way.title = `${count(Math.min(request.computed_tokens, prompt))} of ${plural(request.prompt_tokens, "prompt token")}`;
  row.way.setAttribute("aria-label", row.way.title);
  say(row.cached, count(request.cached_tokens));
  const most = request.max_tokens === null ? "" : ` / ${count(request.max_tokens * request.n)}`;
  say(row.answer, `${count(request.output_tokens)}${most}`);
  say(row.blocks, count(request.blocks));
  say(row.age, time(Math.max(0, now - request.arrived)));
}
