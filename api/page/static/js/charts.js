// What all charts share: uPlot with the theme's colours, as wide as its place, drawn anew when either changes.

import uPlot from "../vendor/uplot/uPlot.esm.js";
import { onFrame } from "./dom.js";
import { colour, themed } from "./theme.js";

const HEIGHT = 190;

export { uPlot };

/** A chart in `root`. `options` is called for uPlot's options whenever the theme changes; `data` for its columns. */
export class Chart {
  constructor(root, { options, data, label }) {
    this._root = root;
    this._options = options;
    this._data = data;
    this._plot = null;
    root.setAttribute("role", "img");
    root.setAttribute("aria-label", label);
    this.draw = onFrame(() => this._drawNow());
    themed.addEventListener("change", () => {
      this._plot?.destroy();
      this._plot = null;
      this.draw();
    });
    new ResizeObserver(() => this._resize()).observe(root);
  }

  _resize() {
    const width = this._root.clientWidth;
    if (this._plot && width && width !== this._plot.width) this._plot.setSize({ width, height: HEIGHT });
    else if (!this._plot) this.draw();
  }

  _drawNow() {
    const width = this._root.clientWidth;
    if (!width) return;
    if (!this._plot) this._plot = new uPlot({ ...this._options(), width, height: HEIGHT }, this._data(), this._root);
    else this._plot.setData(this._data());
  }
}

/** An axis in the theme's colours. */
export function axis(more = {}) {
  const line = colour("line");
  return {
    stroke: colour("soft"),
    font: "12px system-ui, sans-serif",
    grid: { stroke: line, width: 1 },
    ticks: { stroke: line, width: 1, size: 4 },
    border: { show: false },
    size: 30,
    ...more,
  };
}

/** Seconds before now, for an axis whose right end is now. */
export const ago = (_, values) => values.map((value) => (value === 0 ? "now" : `${value} s`));
