// Two plots of the last two minutes: tokens a second, and how long tokens take to come.

import { ago, axis, Chart } from "./charts.js";
import { count, rate, time } from "./format.js";
import { colour } from "./theme.js";

const SECONDS = 120;

const WINDOW = { time: false, range: [-SECONDS, 0] };
const AGE = { label: "ago", value: (_, value) => (value === null ? "" : time(-value)) };

class Moments {
  /** Values by the moment at which they came; those that are too old go. */
  constructor() {
    this._all = [];
  }

  add(values) {
    const now = performance.now() / 1000;
    this._all.push({ now, values });
    while (this._all.length && now - this._all[0].now > SECONDS) this._all.shift();
  }

  /** Columns: seconds before now, then one for each name. */
  columns(...names) {
    const now = performance.now() / 1000;
    const of = (name) => this._all.map(({ values }) => values[name] ?? null);
    return [this._all.map((moment) => moment.now - now), ...names.map(of)];
  }
}

export class Throughput {
  constructor({ root, figures }) {
    const moments = new Moments();
    const chart = new Chart(root, {
      label: "Tokens per second over the last two minutes, of prompts and of answers",
      data: () => moments.columns("generation", "prompt"),
      options: () => ({
        scales: { x: WINDOW, y: { range: (_, __, high) => [0, Math.max(10, (high ?? 0) * 1.15)] } },
        axes: [axis({ values: ago, grid: { show: false } }), axis({ size: 52 })],
        series: [
          AGE,
          { label: "answers", stroke: colour("decode"), width: 2, fill: `${colour("decode")}22`, points: { show: false },
            value: (_, value) => text(value) },
          { label: "prompts", stroke: colour("prefill"), width: 2, points: { show: false }, value: (_, value) => text(value) },
        ],
        cursor: { y: false, drag: { x: false, y: false } },
        padding: [8, 18, 0, 0],
      }),
    });
    figures.addEventListener("tick", () => {
      moments.add(figures.rates);
      chart.draw();
    });
  }
}

export class Latency {
  constructor({ root, live, figures }) {
    const moments = new Moments();
    const chart = new Chart(root, {
      label: "Times to first token and between tokens over the last two minutes",
      data: () => moments.columns("p50", "p99", "first"),
      options: () => ({
        scales: { x: WINDOW, y: { distr: 3, range: (_, low, high) => bounds(low, high) } },
        axes: [
          axis({ values: ago, grid: { show: false } }),
          axis({
            size: 52,
            filter: decades,
            grid: { stroke: colour("line"), width: 1, filter: decades },
            ticks: { stroke: colour("line"), width: 1, size: 4, filter: decades },
            values: (_, values) => values.map((value) => (value === null ? "" : count(value))),
          }),
        ],
        series: [
          AGE,
          { label: "between tokens", stroke: colour("decode"), width: 2, spanGaps: false, points: { show: false }, value: milliseconds },
          { label: "99 %", stroke: colour("third"), width: 1, spanGaps: false, points: { show: false }, value: milliseconds },
          { label: "first token", stroke: colour("prefill"), paths: () => null,
            points: { show: true, size: 7, fill: colour("prefill") }, value: milliseconds },
        ],
        cursor: { y: false, drag: { x: false, y: false } },
        padding: [8, 18, 0, 0],
      }),
    });
    live.addEventListener("change", ({ detail }) => {
      if (detail.gaps) moments.add({ p50: detail.gaps.p50 * 1000, p99: detail.gaps.p99 * 1000 });
      for (const seconds of detail.first_tokens ?? []) moments.add({ first: seconds * 1000 });
    });
    figures.addEventListener("tick", () => {
      if (!live.requests.size) moments.add({});
      chart.draw();
    });
  }
}

const milliseconds = (_, value) => (value === null || value === undefined ? "" : time(value / 1000));
const decades = (_, splits) => splits.map((value) => (isDecade(value) ? value : null));
const text = (value) => (value === null || value === undefined ? "" : rate(value));
const isDecade = (value) => value !== null && Number.isInteger(Math.round(Math.log10(value) * 1e6) / 1e6);

/** Whole decades around what there is. */
function bounds(low, high) {
  const least = Math.max(low ?? 1, 0.01);
  const most = Math.max(high ?? 100, least * 1.01);
  return [10 ** Math.floor(Math.log10(least)), 10 ** Math.ceil(Math.log10(most))];
}
