// What is in the block that the map points at: asked for when it is pointed at, and again when it changes.

import { nameOf } from "./answer.js";
import { ask } from "./api.js";
import { make } from "./dom.js";
import { count, oneLine, plural } from "./format.js";

const WAIT_MS = 80;
const SHOWN_MAX = 6;
const NAME_MAX = 14;

export class BlockTold {
  constructor({ root, map, live }) {
    this._root = root;
    this._live = live;
    this._asked = null;
    this._timer = null;
    this._cell = null;
    this._hint();
    map.addEventListener("select", ({ detail }) => this._point(detail));
  }

  _hint() {
    this._root.replaceChildren(make("p", { class: "hint", text: "Point at a block, or go there with the keys, to see what is in it." }));
  }

  _point(cell) {
    this._cell = cell;
    clearTimeout(this._timer);
    if (cell === null) {
      this._asked?.abort();
      this._hint();
      return;
    }
    this._timer = setTimeout(() => this._ask(cell), WAIT_MS);
  }

  async _ask(cell) {
    this._asked?.abort();
    const asked = new AbortController();
    this._asked = asked;
    const each = this._live.limits.blocks_per_cell;
    try {
      const response = await ask(`v1/live/blocks/${cell * each}?count=${each}`, { signal: asked.signal });
      const { data } = await response.json();
      if (this._cell === cell) this._show(data, each);
    } catch (error) {
      if (!asked.signal.aborted) this._root.replaceChildren(make("p", { class: "hint", text: error.message }));
    }
  }

  _show(blocks, each) {
    const shown = each === 1 ? blocks : blocks.filter((block) => block.state !== "free").slice(0, SHOWN_MAX);
    const parts = shown.map((block) => this._one(block));
    if (each > 1) {
      const last = blocks[0].block + each - 1;
      const rest = shown.length === SHOWN_MAX ? `; the first ${SHOWN_MAX} that are not free` : "";
      parts.unshift(make("p", { class: "hint", text: `Blocks ${count(blocks[0].block)} to ${count(last)}${rest}` }));
    }
    this._root.replaceChildren(...parts);
  }

  /** In their colours; of a long name the beginning. */
  _owners(names) {
    const colours = new Map([...this._live.requests.values()].map((request) => [request.name, request.colour]));
    const chips = names.map((name) => {
      const dot = make("i", { class: "dot" });
      const number = colours.get(name) ?? null;
      if (number !== null) dot.style.background = `var(--owner-${number})`;
      const known = nameOf(name);
      const short = known.length > NAME_MAX ? `${known.slice(0, NAME_MAX - 1)}…` : known;
      return make("span", { class: "owner", title: name }, dot, make("b", { text: short }));
    });
    return make("span", {}, names.length === 1 ? "owner " : "owners ", ...chips);
  }

  _one(block) {
    const fact = (label, value) => make("span", {}, `${label} `, make("b", { text: value }));
    const facts = [make("b", { text: `Block ${count(block.block)}` }), make("b", { text: block.state })];
    facts.push(fact("references", count(block.refcount)));
    if (block.pinned) facts.push(make("b", { text: "pinned" }));
    if (block.hash) facts.push(fact("hash", block.hash.slice(0, 12)));
    if (block.tokens) facts.push(make("span", { text: plural(block.tokens, "token") }));
    if (block.owners.length) facts.push(this._owners(block.owners));
    const content = block.text ? make("div", { class: "content", text: oneLine(block.text) }) : null;
    return make("div", { class: "one", "data-block": block.block }, make("p", { class: "facts-of-block" }, ...facts), content);
  }
}
