// The timeline of steps: what each computed for prompts and for answers, against the budget, and how long it took.

import { axis, Chart, uPlot } from "./charts.js";
import { say } from "./dom.js";
import { count, time } from "./format.js";
import { colour } from "./theme.js";

const SHOWN = 240;
const BAR = 4;

/** Wide enough for its longest label: what passes the chart's edge is cut. */
const room = (_, labels) => 14 + 7 * Math.max(4, ...(labels ?? []).map((label) => label.length));

export class Steps {
  constructor({ root, note, live }) {
    this._live = live;
    this._root = root;
    this._note = note;
    this._chart = new Chart(root, {
      label: "Tokens of the last steps, for prompts and for answers, and how long each took",
      options: () => this._options(),
      data: () => this._data(),
    });
    live.addEventListener("change", ({ detail }) => {
      if (detail.steps || detail.kind === "snapshot" || detail.limits) {
        this._chart.draw();
        this._say();
      }
    });
  }

  _say() {
    const { steps, limits } = this._live;
    const last = steps.at(-1);
    const budget = `budget ${count(limits.token_budget)} tokens, ${count(limits.max_num_seqs)} sequences`;
    if (!last) return say(this._note, budget);
    const mean = steps.slice(-20).reduce((sum, step) => sum + step.seconds, 0) / Math.min(20, steps.length);
    return say(this._note, `${count(last.step)} landed, ${time(mean)} each of late; ${budget}`);
  }

  /** Stacked by hand: the taller bar lies behind. */
  _data() {
    const steps = this._live.steps.slice(-Math.min(SHOWN, Math.floor(this._root.clientWidth / BAR)));
    const numbers = steps.map((step) => step.step);
    if (!numbers.length) return [[], [], [], [], []];
    const budget = this._live.limits.token_budget;
    return [
      numbers,
      steps.map((step) => step.prefill + step.decode),
      steps.map((step) => step.decode),
      steps.map((step) => step.seconds * 1000),
      steps.map(() => budget),
    ];
  }

  /** Up to the budget where it is near, else to the tallest bar: a budget of thousands would flatten every decode. */
  _range(most) {
    const budget = this._live.limits?.token_budget ?? 1;
    return [0, most * 3 > budget ? budget * 1.08 : Math.max(8, most * 1.15)];
  }

  _options() {
    const bars = uPlot.paths.bars({ size: [0.82, 14], gap: 1 });
    const tallest = () => this._live.steps.reduce((most, step) => Math.max(most, step.prefill + step.decode), 0);
    return {
      scales: {
        x: { time: false, range: (_, low, high) => [Math.max(0.5, Math.min(low ?? 1, (high ?? 1) - 60) - 0.5), (high ?? 1) + 0.5] },
        y: { range: () => this._range(tallest()) },
        ms: { range: (_, __, high) => [0, Math.max(1, (high ?? 1) * 1.25)] },
      },
      axes: [
        axis({ grid: { show: false }, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] }),
        axis({ size: 48, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000] }),
        axis({ scale: "ms", side: 1, size: room, grid: { show: false }, values: (_, values) => values.map((value) => `${value} ms`) }),
      ],
      series: [
        { label: "step", value: (_, value) => (value ? count(value) : "") },
        { label: "prompts", fill: colour("prefill"), stroke: colour("prefill"), width: 0, paths: bars, points: { show: false },
          value: (plot, value, series, place) => (place === null ? "" : count(value - plot.data[2][place])) },
        { label: "answers", fill: colour("decode"), stroke: colour("decode"), width: 0, paths: bars, points: { show: false },
          value: (_, value) => (value === null ? "" : count(value)) },
        { label: "time", scale: "ms", stroke: `${colour("third")}b0`, width: 1.25, points: { show: false },
          value: (_, value) => (value === null ? "" : time(value / 1000)) },
        { label: "budget", stroke: colour("bad"), width: 1, dash: [5, 5], points: { show: false },
          value: (_, value) => (value === null ? "" : count(value)) },
      ],
      cursor: { y: false, drag: { x: false, y: false } },
      padding: [8, 0, 0, 0],
    };
  }
}
