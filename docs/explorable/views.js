// Views: the landscape and the point on it, in the way that is honest for its number of dimensions.
//
//   D = 2   a map: all of the landscape, the line of the moment, the way so far
//   D = 3   space, to be turned: level surfaces, the line or plane of the moment, the way so far
//   else    the plane through the point that holds gradient and step: all that matters for this one step
//   network the classes that the network tells apart
//
// Tests: tests/test_explorable.py, in a browser.

import { arrow, bands, disc, label, palette, polyline, rgb, surface } from "./canvas.js";
import { cosine } from "./descent.js";

const GRID = 33; // losses along each side of a picture
const SIDEWAYS = 1e-6; // a step nearer to the gradient than this has no plane of its own

/** Losses of a grid as heights from 0 to 1, on a logarithmic scale that shows the bottom too. */
function logHeights(values) {
  const least = Math.min(...values);
  const most = Math.max(...values);
  const epsilon = (most - least) * 2e-3 || 1;
  return values.map((value) => Math.log((value - least) / epsilon + 1) / Math.log((most - least) / epsilon + 1));
}

/** Losses of a grid as heights from 0 to 1. */
function plainHeights(values) {
  const least = Math.min(...values);
  const most = Math.max(...values);
  return values.map((value) => (value - least) / (most - least || 1));
}

/** The values of a function at a grid of places -1 .. 1, row by row from the top. */
function sample(n, value) {
  const at = (k) => (2 * k) / (n - 1) - 1;
  return Float64Array.from({ length: n * n }, (_, k) => value(at(k % n), -at(Math.floor(k / n))));
}

// D = 2

const maps = new Map();

/** The picture of a landscape, which is drawn once. */
function mapOf(landscape, width, height) {
  const name = [landscape.name, width, height, palette().low].join();
  if (!maps.has(name)) {
    const n = 97;
    const [cx, cy] = landscape.centre;
    const aspect = width / height;
    const reach = landscape.extent;
    const heights = logHeights(sample(n, (x, y) => landscape.loss([cx + x * reach * aspect, cy + y * reach])));
    const picture = document.createElement("canvas");
    picture.width = 2 * width;
    picture.height = 2 * height;
    bands(picture.getContext("2d"), n, heights, 2 * width, 2 * height);
    maps.clear();
    maps.set(name, picture);
  }
  return maps.get(name);
}

/** The directions of the step that was taken last, or of the first to come, each of unit length. */
function unitDirections(descent) {
  const draw = descent.method === "fpd" ? 0 : Math.max(descent.t - 1, 0);
  return Array.from({ length: descent.basis.plan.d }, (_, i) => {
    const phi = descent.basis.direction(i, draw);
    const length = Math.hypot(...phi);
    return phi.map((value) => value / length);
  });
}

function drawMap(canvas, { shown, sgd }) {
  const { context, width, height } = surface(canvas);
  const { landscape } = shown;
  const { ink, card, sgd: red, [shown.method]: colour } = palette();
  context.drawImage(mapOf(landscape, width, height), 0, 0, width, height);
  const scale = height / 2 / landscape.extent;
  const [cx, cy] = landscape.centre;
  const at = (theta) => [width / 2 + (theta[0] - cx) * scale, height / 2 - (theta[1] - cy) * scale];
  const before = shown.path.at(-2) ?? shown.theta;
  if (shown.basis.plan.d === 1) {
    const [[px, py]] = unitDirections(shown);
    const far = 10 * landscape.extent;
    const ends = [-far, far].map((t) => at([before[0] + t * px, before[1] + t * py]));
    polyline(context, ends, ink, 1.5, [7, 5]);
  }
  if (sgd) polyline(context, sgd.path.map(at), red, 2);
  polyline(context, shown.path.map(at), colour, 2);
  for (const theta of shown.path.slice(-40, -1)) disc(context, at(theta), 2.2, colour, colour);
  arrow(context, at(before), at(shown.theta), colour, 4);
  if (sgd) disc(context, at(sgd.theta), 5, red, card);
  disc(context, at(shown.theta), 7, colour, card);
  const minimum = at(landscape.name === "rosenbrock" ? [1, 1] : [0, 0]);
  label(context, "×", minimum[0], minimum[1] + 4, ink, "center");
}

// D = 3

/** A camera that looks at the origin, turned by two angles. */
export const camera = { around: 0.7, above: 0.42 };

function projector(width, height) {
  const [ca, sa] = [Math.cos(camera.around), Math.sin(camera.around)];
  const [cb, sb] = [Math.cos(camera.above), Math.sin(camera.above)];
  const scale = Math.min(width, height) / 4;
  return ([x, y, z]) => {
    const depth = x * sa + y * ca;
    return [width / 2 + (x * ca - y * sa) * scale, height / 2 - (z * cb + depth * sb) * scale];
  };
}

const CIRCLE = Array.from({ length: 49 }, (_, n) => [Math.cos((n * Math.PI) / 24), Math.sin((n * Math.PI) / 24)]);

const LEVELS = [0.8, 1.6, 2.6]; // the largest radii of the level surfaces that are drawn

/** The level surface of a quadratic with this largest radius, as its outlines in the three planes of the axes. */
function drawLevel(context, at, lambda, largest, colour) {
  const radius = lambda.map((l) => largest * Math.sqrt(Math.min(...lambda) / l));
  for (const [a, b] of [[0, 1], [1, 2], [0, 2]]) {
    const points = CIRCLE.map(([c, s]) => {
      const place = [0, 0, 0];
      place[a] = radius[a] * c;
      place[b] = radius[b] * s;
      return at(place);
    });
    polyline(context, points, colour, 1);
  }
}

/** Two directions as an orthonormal pair in their plane. */
function orthonormal([p, q]) {
  const overlap = p.reduce((sum, value, j) => sum + value * q[j], 0);
  const rest = q.map((value, j) => value - overlap * p[j]);
  const length = Math.hypot(...rest);
  return [p, rest.map((value) => value / length)];
}

/** The plane, or line, through a place that the directions span, as far as is shown. */
function drawSpan(context, at, place, directions, colour) {
  const corner = (s, t, [p, q]) => at(Array.from(place, (x, j) => x + s * p[j] + t * q[j]));
  if (directions.length === 1) {
    polyline(context, [-3, 3].map((s) => corner(s, 0, [directions[0], directions[0]])), colour, 2, [7, 5]);
  } else if (directions.length === 2) {
    const pair = orthonormal(directions);
    const corners = [[-1, -1], [1, -1], [1, 1], [-1, 1], [-1, -1]].map(([s, t]) => corner(0.8 * s, 0.8 * t, pair));
    context.beginPath();
    corners.forEach(([x, y], n) => (n ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.globalAlpha = 0.22;
    context.fillStyle = colour;
    context.fill();
    context.globalAlpha = 1;
    polyline(context, corners, colour, 1.5);
  }
}

function drawSpace(canvas, { shown, sgd }) {
  const { context, width, height } = surface(canvas);
  const { ink, soft, line, card, sgd: red, [shown.method]: colour } = palette();
  const { landscape } = shown;
  const at = projector(width, height);
  [[2, 0, 0], [0, 2, 0], [0, 0, 2]].forEach((end, n) => {
    polyline(context, [at(end.map((x) => -x)), at(end)], line, 1);
    label(context, `θ${"₁₂₃"[n]}`, ...at(end), soft, "center");
  });
  context.globalAlpha = 0.5;
  for (const radius of landscape.lambda ? LEVELS : []) drawLevel(context, at, landscape.lambda, radius, soft);
  context.globalAlpha = 1;
  const before = shown.path.at(-2) ?? shown.theta;
  drawSpan(context, at, before, unitDirections(shown), colour);
  if (sgd) polyline(context, sgd.path.map(at), red, 2);
  polyline(context, shown.path.map(at), colour, 2);
  arrow(context, at(before), at(shown.theta), colour, 4);
  if (sgd) disc(context, at(sgd.theta), 5, red, card);
  disc(context, at(shown.theta), 7, colour, card);
  label(context, "×", ...at(landscape.lambda ? [0, 0, 0] : [1, 1, 1]), ink, "center");
}

// Many dimensions

/** Unit vectors along the way down and, at right angles to it, along the rest of the step. */
function planeOf(slope, move) {
  const length = Math.hypot(...slope) || 1;
  const down = slope.map((value) => -value / length);
  const along = move.reduce((sum, value, j) => sum + value * down[j], 0);
  const rest = move.map((value, j) => value - along * down[j]);
  const aside = Math.hypot(...rest);
  return { down, along, aside, side: rest.map((value) => value / (aside || 1)) };
}

function drawPlane(canvas, { shown }) {
  const { context, width, height } = surface(canvas);
  const { ink, card, [shown.method]: colour } = palette();
  const before = shown.theta.map((x, j) => x - shown.move[j]);
  const slope = shown.landscape.slope(before);
  const { down, along, aside, side } = planeOf(slope, shown.move);
  const reach = Math.hypot(along, aside) || Math.hypot(...slope) / 4 || 1;
  const scale = Math.min(width * 0.45, height * 0.6) / reach / 1.25;
  const origin = [width * 0.34, height * 0.72];
  const place = new Float32Array(before.length);
  const values = sample(GRID, (x, y) => {
    const s = ((x + 1) * (width / 2) - origin[0]) / scale;
    const t = (origin[1] - (1 - y) * (height / 2)) / scale;
    for (let j = 0; j < place.length; j++) place[j] = before[j] + s * down[j] + t * side[j];
    return shown.landscape.loss(place);
  });
  const heights = plainHeights(values);
  bands(context, GRID, heights, width, height);
  const tip = [origin[0] + along * scale, origin[1] - aside * scale];
  const level = [origin[0] + reach * scale, origin[1]];
  arrow(context, origin, level, ink, 3);
  label(context, "straight down", level[0], level[1] + 20, ink, "center");
  if (aside > SIDEWAYS) drawAngle(context, { origin, tip, reach: reach * scale, angle: Math.atan2(aside, along) });
  arrow(context, origin, tip, colour, 4);
  if (shown.t) label(context, "the step", tip[0], tip[1] - 10, colour, "center");
  disc(context, origin, 7, colour, card);
}

function drawAngle(context, { origin, reach, angle }) {
  const { ink } = palette();
  context.beginPath();
  context.arc(origin[0], origin[1], reach * 0.32, -angle, 0);
  context.strokeStyle = ink;
  context.lineWidth = 1.5;
  context.stroke();
  const text = `${Math.round((angle * 180) / Math.PI)}°, cosine ${Math.cos(angle).toFixed(2)}`;
  const away = reach * 0.38;
  label(context, text, origin[0] + away * Math.cos(angle / 2), origin[1] - away * Math.sin(angle / 2), ink);
}

// A network

/** A colour that dots of the full colour stand out from. */
function tint(colour) {
  const card = rgb(palette().card);
  return rgb(colour).map((channel, c) => card[c] + (channel - card[c]) * 0.35);
}

function drawClasses(canvas, { shown }) {
  const { context, width, height } = surface(canvas);
  const { landscape, theta } = shown;
  const { card, minus, plus } = palette();
  const scale = Math.min(width / 4.1, height / 2.7);
  const [right, top] = [width / 2 / scale, height / 2 / scale];
  const heights = sample(GRID, (x, y) => 1 / (1 + Math.exp(-landscape.logit(theta, x * right, y * top))));
  bands(context, GRID, heights, width, height, [tint(minus), tint(plus)]);
  for (const { x, y, label: positive } of landscape.points) {
    disc(context, [width / 2 + x * scale, height / 2 - y * scale], 5, positive ? plus : minus, card);
  }
}

/** Which view a landscape has. */
export function viewOf(landscape) {
  if (landscape.points) return "network";
  return { 2: "map", 3: "space" }[landscape.D] ?? "plane";
}

const DRAW = { map: drawMap, space: drawSpace, plane: drawPlane, network: drawClasses };

/** Draw the landscape with the descent that is shown, and SGD's beside it where both have a place. */
export function drawView(canvas, descents) {
  DRAW[viewOf(descents.shown.landscape)](canvas, descents);
}

/** What a reader who does not see the picture is told. */
export function describe({ t, losses, landscape, move, theta }) {
  const before = theta.map((x, j) => x - move[j]);
  const angle = (Math.acos(-cosine(move, landscape.slope(before))) * 180) / Math.PI;
  const turned = t ? `, the last step ${Math.round(angle)} degrees from straight down` : "";
  return `Step ${t}: loss ${losses.at(-1).toPrecision(3)}${turned}.`;
}
