// The engine's numbers, as /metrics has them, and the rates that follow from two looks at them.

import { make, say } from "./dom.js";
import { count, percent, rate } from "./format.js";

const WINDOW_S = 2;
const TICK_MS = 500;

const FIGURES = [
  ["running", "running", (figures) => count(figures.running)],
  ["waiting", "waiting", (figures) => count(figures.waiting)],
  ["kv_usage", "KV in use", (figures) => percent(figures.kv_usage)],
  ["prefix_hits", "prefix hits", (figures) => percent(figures.prefix_hits / figures.prefix_queries)],
  ["generation_rate", "answer tokens/s", (_, rates) => rate(rates.generation)],
  ["prompt_rate", "prompt tokens/s", (_, rates) => rate(rates.prompt)],
  ["generation_tokens", "tokens generated", (figures) => count(figures.generation_tokens)],
  ["preemptions", "preempted", (figures) => count(figures.preemptions)],
  ["wasted_tokens", "tokens wasted", (figures) => count(figures.wasted_tokens)],
];

export class Figures extends EventTarget {
  /** Fires `tick` twice a second with the rates over the last two seconds. */
  constructor(root, live) {
    super();
    this._live = live;
    this._seen = [];
    this.rates = { generation: 0, prompt: 0 };
    this._values = new Map();
    for (const [name, label] of FIGURES) {
      const value = make("dd", { text: "–", "data-figure": name });
      this._values.set(name, value);
      root.append(make("div", {}, make("dt", { text: label }), value));
    }
    live.addEventListener("change", () => this._show());
    setInterval(() => this._tick(), TICK_MS);
  }

  _show() {
    const figures = this._live.figures;
    for (const [name, , text] of FIGURES) {
      const value = this._values.get(name);
      say(value, text(figures, this.rates));
      if (name in figures) value.dataset.value = figures[name];
    }
  }

  /** Prompt tokens that were computed, not found: what the log's line counts. */
  _tick() {
    const live = this._live;
    if (!live.figures || live.link !== "open") return;
    const now = performance.now() / 1000;
    const { generation_tokens: generation, prompt_tokens: prompt, cached_prompt_tokens: cached } = live.figures;
    this._seen.push({ now, generation, prompt: prompt - cached });
    while (this._seen.length > 2 && now - this._seen[1].now >= WINDOW_S) this._seen.shift();
    const first = this._seen[0];
    const seconds = now - first.now;
    if (seconds > 0) {
      this.rates = {
        generation: Math.max(0, generation - first.generation) / seconds,
        prompt: Math.max(0, prompt - cached - first.prompt) / seconds,
      };
    }
    this._show();
    this.dispatchEvent(new Event("tick"));
  }
}
