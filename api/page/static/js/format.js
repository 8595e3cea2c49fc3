// Numbers for people. Pure.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (value) => whole.format(value);

/** A rate: one digit after the point below ten. */
export function rate(value) {
  if (!Number.isFinite(value)) return "–";
  return value > 0 && value < 9.95 ? value.toFixed(1) : whole.format(value);
}

export function percent(share) {
  return Number.isFinite(share) ? `${(100 * share).toFixed(1)} %` : "–";
}

/** Seconds as the nearest of µs, ms, s, min. */
export function time(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 0.001) return `${whole.format(seconds * 1e6)} µs`;
  if (seconds < 0.01) return `${(seconds * 1e3).toFixed(1)} ms`;
  if (seconds < 1) return `${whole.format(seconds * 1e3)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  return `${Math.floor(seconds / 60)} min ${whole.format(seconds % 60)} s`;
}

export function plural(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** A text on one line, with its line ends seen. */
export function oneLine(text) {
  return text.replaceAll("\n", "⏎").replaceAll("\r", "").replaceAll("\t", "→");
}
