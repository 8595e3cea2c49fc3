// The pool as a map: a cell for each block, or for some where there are many; one of them under the pointer or the keys.

import { make, onFrame, say } from "./dom.js";
import { count, plural } from "./format.js";
import { colour, themed } from "./theme.js";

const GAP = 2;
const SIZE_MAX = 18;
const SIZE_MIN = 4;
const HEIGHT = 400;
const HOLLOW_MIN = 8; // in a smaller cell a frame is no frame
const NUM_COLOURS = 11;

const STATES = [
  ["free", "free"],
  ["cached", "cached"],
  ["owned", "owned by a request"],
  ["shared", "shared"],
  ["limbo", "in limbo"],
];

/** Fires `select` with the cell's number, or null, as `detail`. */
export class BlockMap extends EventTarget {
  constructor({ root, legend, note, live }) {
    super();
    this._live = live;
    this._note = note;
    this.selected = null;
    this._grid = { columns: 1, size: SIZE_MAX, rows: 0 };
    this._canvas = make("canvas", {
      tabindex: "0",
      role: "application",
      "aria-label": "Map of the KV blocks. Arrow keys go from block to block, Escape leaves.",
      "aria-describedby": "block",
      onpointermove: (event) => this._select(this._cellAt(event)),
      onpointerdown: (event) => this._select(this._cellAt(event)),
      onpointerleave: () => document.activeElement === this._canvas || this._select(null),
      onfocus: () => this.selected === null && this._select(0),
      onblur: () => this._select(null),
      onkeydown: (event) => this._onKey(event),
    });
    root.replaceChildren(this._canvas);
    this._counts = new Map();
    for (const [name, label] of STATES) {
      const value = make("b", { text: "–", "data-state-count": name });
      this._counts.set(name, value);
      legend.append(make("li", {}, make("i", { class: name }), label, value));
    }
    this._draw = onFrame(() => this._drawNow());
    live.addEventListener("change", ({ detail }) => this._onChange(detail));
    themed.addEventListener("change", () => {
      this._palette = null;
      this._draw();
    });
    new ResizeObserver(() => this._draw()).observe(root);
  }

  get numCells() {
    return this._live.limits ? Math.ceil(this._live.limits.num_blocks / this._live.limits.blocks_per_cell) : 0;
  }

  _onChange(event) {
    const { limits, blocks } = this._live;
    if (event.blocks) for (const [name, value] of this._counts) say(value, count(blocks[name]));
    if (event.limits) {
      const each = limits.blocks_per_cell === 1 ? "" : `, ${count(limits.blocks_per_cell)} to a cell`;
      say(this._note, `${plural(limits.num_blocks, "block")} of ${plural(limits.block_size, "token")}${each}`);
    }
    if (event.cells === undefined && !event.changed_cells) return;
    this._draw();
    if (this.selected !== null) this.dispatchEvent(new CustomEvent("select", { detail: this.selected }));
  }

  _cellAt(event) {
    const { columns, size } = this._grid;
    const place = size + GAP;
    const column = Math.floor(event.offsetX / place);
    const number = Math.floor(event.offsetY / place) * columns + column;
    return column < columns && number >= 0 && number < this.numCells ? number : null;
  }

  _onKey(event) {
    const { columns } = this._grid;
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -Infinity, End: Infinity };
    if (event.key === "Escape") this._canvas.blur();
    if (!(event.key in moves) || !this.numCells) return;
    event.preventDefault();
    const next = (this.selected ?? 0) + moves[event.key];
    if (Math.abs(moves[event.key]) !== columns || (next >= 0 && next < this.numCells)) {
      this._select(Math.min(Math.max(next, 0), this.numCells - 1));
    }
  }

  _select(number) {
    if (number === this.selected) return;
    this.selected = number;
    this._draw();
    this.dispatchEvent(new CustomEvent("select", { detail: number }));
  }

  /** The largest cells that fill the width and stay within the height. */
  _layOut(width) {
    let size = SIZE_MAX;
    let columns = 1;
    for (; size >= SIZE_MIN; size -= 1) {
      columns = Math.max(1, Math.floor((width + GAP) / (size + GAP)));
      if (Math.ceil(this.numCells / columns) * (size + GAP) <= HEIGHT || size === SIZE_MIN) break;
    }
    size = Math.max(size, SIZE_MIN);
    this._grid = { columns, size, rows: Math.ceil(this.numCells / columns) };
  }

  get _colours() {
    this._palette ??= {
      line: colour("line"),
      free: colour("free"),
      card: colour("card"),
      cached: colour("cached"),
      limbo: colour("limbo"),
      shared: colour("shared"),
      ink: colour("ink"),
      owned: Array.from({ length: NUM_COLOURS }, (_, number) => colour(`owner-${number}`)),
    };
    return this._palette;
  }

  _drawNow() {
    const canvas = this._canvas;
    const width = canvas.parentElement.clientWidth;
    if (!this._live.limits || !width) return;
    this._layOut(width);
    const { size, rows, columns } = this._grid;
    const height = rows * (size + GAP);
    const ratio = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const digits = this._live.width;
    for (let number = 0; number < this.numCells; number += 1) {
      const x = (number % columns) * (size + GAP);
      const y = Math.floor(number / columns) * (size + GAP);
      if (digits === 1) this._drawBlock(pen, x, y, size, parseInt(this._live.cells[number], 16));
      else this._drawShares(pen, x, y, size, this._live.cells.slice(number * digits, (number + 1) * digits));
    }
    this._drawSelection(pen);
  }

  _drawBlock(pen, x, y, size, code) {
    const colours = this._colours;
    const round = size > 9 ? 3 : size > 6 ? 2 : 1;
    const fill = (tint, inset = 0) => {
      pen.fillStyle = tint;
      pen.beginPath();
      pen.roundRect(x + inset, y + inset, size - 2 * inset, size - 2 * inset, round);
      pen.fill();
    };
    if (code >= 4) fill(colours.owned[(code - 4) % NUM_COLOURS]);
    else if (code === 1) fill(colours.cached);
    else if (code === 2) {
      fill(colours.limbo);
      fill(colours.card, Math.max(1, size / 6));
    } else if (code === 3) {
      fill(colours.shared);
      pen.fillStyle = colours.card;
      pen.beginPath();
      pen.arc(x + size / 2, y + size / 2, size / 5, 0, 2 * Math.PI);
      pen.fill();
    } else if (size <= HOLLOW_MIN) {
      fill(colours.free);
    } else {
      fill(colours.line);
      fill(colours.card, 1);
    }
  }

  /** Bands from below: owned, shared, limbo, cached; what is left is free. */
  _drawShares(pen, x, y, size, digits) {
    const colours = this._colours;
    const [free, cached, limbo, shared, owned] = Array.from(digits, (digit) => parseInt(digit, 16));
    const total = free + cached + limbo + shared + owned;
    this._drawBlock(pen, x, y, size, 0);
    let bottom = y + size;
    for (const [share, tint] of [
      [owned, colours.owned[0]],
      [shared, colours.shared],
      [limbo, colours.limbo],
      [cached, colours.cached],
    ]) {
      const height = (size * share) / total;
      pen.fillStyle = tint;
      pen.fillRect(x, bottom - height, size, height);
      bottom -= height;
    }
  }

  _drawSelection(pen) {
    if (this.selected === null) return;
    const { size, columns } = this._grid;
    const x = (this.selected % columns) * (size + GAP);
    const y = Math.floor(this.selected / columns) * (size + GAP);
    pen.strokeStyle = this._colours.ink;
    pen.lineWidth = 2;
    pen.beginPath();
    pen.roundRect(x - 0.5, y - 0.5, size + 1, size + 1, 3);
    pen.stroke();
  }
}
