// Charts: lines against steps or against numbers sent, drawn anew at every frame.
//
// Tests: tests/test_explorable.py, in a browser.

import { label, palette, polyline, surface } from "./canvas.js";

const LEFT = 46;
const BOTTOM = 22;
const TOP = 10;
const RIGHT = 12;
const MOST = 500; // points of a line: more cannot be told apart

/** A number as people read it: 1,200 or 3.4e-5. */
export function readable(x) {
  if (x === 0) return "0";
  if (Math.abs(x) >= 1000) return Math.round(x).toLocaleString("en");
  return Math.abs(x) < 0.001 ? x.toExponential(0) : String(Number(x.toPrecision(2)));
}

/** Every k-th of many values with its place, the last one included. */
function thinned(values) {
  const stride = Math.max(1, Math.ceil(values.length / MOST));
  const chosen = [];
  for (let t = 0; t < values.length; t += stride) chosen.push([t, values[t]]);
  if (values.length) chosen.push([values.length - 1, values.at(-1)]);
  return chosen;
}

/** Where to put at most about five marks on an axis from low to high. */
function ticks(low, high, log) {
  if (log) {
    const every = Math.max(1, Math.ceil((high - low) / 4));
    const first = Math.ceil(low / every) * every;
    return Array.from({ length: Math.max(0, Math.floor((high - first) / every) + 1) }, (_, n) => first + n * every);
  }
  const rough = (high - low) / 4 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const first = Math.ceil(low / step - 1e-9) * step;
  return Array.from({ length: Math.floor((high - first) / step + 1e-9) + 1 }, (_, n) => first + n * step);
}

function axes(context, { x, y, width, height, xRange, yRange, log }) {
  const { line, soft } = palette();
  context.fillStyle = soft;
  context.textAlign = "right";
  for (const tick of ticks(...yRange, log)) {
    polyline(context, [[LEFT, y(tick)], [width - RIGHT, y(tick)]], line, 1);
    const plain = readable(log ? 10 ** tick : tick);
    context.fillText(log && Math.abs(tick) > 3 ? `1e${tick}` : plain, LEFT - 6, y(tick) + 4);
  }
  context.textAlign = "center";
  for (const tick of ticks(...xRange, false)) context.fillText(readable(tick), x(tick), height - 6);
}

/**
 * A chart of lines.
 * @param lines [{name, colour, values, per}]: values by step, each step `per` units of the axis
 * @param options {log, range, reference: {value, text, colour}}: y logarithmic, or from range[0] to range[1]
 */
export function chart(canvas, lines, { log = false, range, reference } = {}) {
  const { context, width, height } = surface(canvas);
  const map = log ? (value) => Math.log10(Math.min(Math.max(value, 1e-12), 1e9)) : (value) => value;
  const points = lines.map((one) => thinned(one.values).map(([t, value]) => [t * one.per, map(value)]));
  const every = points.flat();
  const heights = every.map(([, value]) => value);
  const half = (round, value) => round(2 * value) / 2;
  const yRange = range ?? [half(Math.floor, Math.min(0, ...heights)), half(Math.ceil, Math.max(0, ...heights)) || 1];
  const xRange = [0, Math.max(10, ...every.map(([at]) => at))];
  const x = (value) => LEFT + (value / xRange[1]) * (width - LEFT - RIGHT);
  const y = (value) => TOP + ((yRange[1] - value) / (yRange[1] - yRange[0])) * (height - TOP - BOTTOM);
  axes(context, { x, y, width, height, xRange, yRange, log });
  if (reference) {
    polyline(context, [[LEFT, y(reference.value)], [width - RIGHT, y(reference.value)]], reference.colour, 1.5, [6, 4]);
  }
  context.save();
  context.beginPath();
  context.rect(LEFT, 0, width - LEFT, height - BOTTOM + 2);
  context.clip();
  lines.forEach(({ colour, width: thickness = 2.5 }, n) => {
    polyline(context, points[n].map(([at, value]) => [x(at), y(value)]), colour, thickness);
  });
  context.restore();
  if (reference) label(context, reference.text, width - RIGHT, y(reference.value) - 6, reference.colour, "right");
}
