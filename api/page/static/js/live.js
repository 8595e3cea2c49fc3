// What is known of the engine: one stream from the server, put together into one state.

import { ask, events, key, Refused } from "./api.js";

const STEPS_KEPT = 240;
const RETRY_MS = [500, 1000, 2000, 5000];

/** Fires `change` after each event, and `link` when the connection's state changes. */
export class Live extends EventTarget {
  constructor() {
    super();
    this.link = "closed";
    this.refusal = null;
    this.limits = null;
    this.figures = null;
    this.blocks = null;
    this.cells = "";
    this.requests = new Map();
    this.moreRequests = 0;
    this.steps = [];
    this.prefixes = null;
    this.showsText = true;
    this.at = 0;
    this.heardAt = 0;
    this._failures = 0;
    this._abort = null;
  }

  /** The server's clock, in seconds. */
  get now() {
    return this.at + (performance.now() - this.heardAt) / 1000;
  }

  /** Watch, until `close`. Without anybody watching the server does nothing for this view. */
  open() {
    if (this._abort) return;
    this._abort = new AbortController();
    this._follow(this._abort.signal);
  }

  close() {
    this._abort?.abort();
    this._abort = null;
    this._set("closed");
  }

  /** Begin anew, perhaps with another key. */
  reopen() {
    this.close();
    this._failures = 0;
    this.open();
  }

  async _follow(signal) {
    while (!signal.aborted) {
      try {
        const response = await ask("v1/live", { signal });
        this.refusal = null;
        for await (const data of events(response)) this._take(JSON.parse(data));
        throw new TypeError("the stream has ended");
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
          this.refusal = { status: error.status, message: error.message, hadKey: Boolean(key.get()) };
          this._abort = null;
          this._set("refused");
          return;
        }
        this._set("lost");
        await pause(RETRY_MS[Math.min(this._failures, RETRY_MS.length - 1)], signal);
        this._failures += 1;
      }
    }
  }

  _set(link) {
    if (this.link === link) return;
    this.link = link;
    this.dispatchEvent(new Event("link"));
  }

  _take(event) {
    this.at = event.at;
    this.heardAt = performance.now();
    if (event.kind === "snapshot") this._begin(event);
    if (event.limits) this.limits = event.limits;
    if (event.figures) this.figures = event.figures;
    if (event.blocks) this.blocks = event.blocks;
    if (event.cells !== undefined) this.cells = event.cells;
    if (event.changed_cells) this._applyCells(event.changed_cells);
    for (const request of event.requests ?? []) this.requests.set(request.id, request);
    for (const gone of event.gone ?? []) this.requests.delete(gone);
    if (event.more_requests !== undefined) this.moreRequests = event.more_requests;
    if (event.prefixes) this.prefixes = event.prefixes;
    if (event.steps) this._addSteps(event.steps);
    this._failures = 0;
    this._set("open");
    this.dispatchEvent(new CustomEvent("change", { detail: event }));
  }

  _begin(event) {
    this.requests.clear();
    this.steps = [];
    this.moreRequests = 0;
    this.showsText = Boolean(event.shows_text);
  }

  _addSteps(steps) {
    for (const [step, prefill, decode, sequences, seconds] of steps) {
      this.steps.push({ step, prefill, decode, sequences, seconds });
    }
    if (this.steps.length > STEPS_KEPT) this.steps.splice(0, this.steps.length - STEPS_KEPT);
  }

  /** Digits of one cell. */
  get width() {
    return this.limits.blocks_per_cell === 1 ? 1 : 5;
  }

  _applyCells(runs) {
    let cells = this.cells;
    for (const [first, digits] of runs) {
      const start = first * this.width;
      cells = cells.slice(0, start) + digits + cells.slice(start + digits.length);
    }
    this.cells = cells;
  }
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
