// Landscapes: what the point on the page descends, each a loss and its gradient in D dimensions.
//
// A landscape is {D, start, loss(theta), slope(theta), gradient(theta, t), ...}: `start` is where theta begins, `slope`
// the gradient of the loss, and `gradient` what a worker has of it at step t: noisy, as that of a mini-batch is, or the
// slope itself. Random numbers are random.js's own, so every machine shows the same descent, up to rounding.
// Tests: tests/test_explorable.py.

import { numbers } from "./random.js";

const RADIUS = 2; // how far from the minimum a point starts
const STREAM = { start: 1, noise: 2, data: 3, batch: 4 }; // of portable random numbers: one for each use

/** A random start at a distance from the origin, or in two and three dimensions one that makes a good picture. */
function startOf(D, seed) {
  if (D === 2 && seed === 0) return Float32Array.of(-1.7, 1.05);
  if (D === 3 && seed === 0) return Float32Array.of(-1.25, 1.1, 1.1);
  const x = numbers("normal", D, { seed, stream: STREAM.start });
  const length = Math.hypot(...x);
  return x.map((value) => (RADIUS * value) / length);
}

/** sum_i lambda_i theta_i^2 / 2. */
function quadratic(lambda, start) {
  return {
    D: lambda.length,
    lambda,
    start,
    extent: 2.3, // of the map, from the centre
    centre: [0, 0],
    loss: (theta) => lambda.reduce((sum, l, i) => sum + (l * theta[i] * theta[i]) / 2, 0),
    slope: (theta) => theta.map((x, i) => lambda[i] * x),
  };
}

function bowl(D, seed) {
  return quadratic(Array(D).fill(1), startOf(D, seed));
}

const NARROW = 20; // how much steeper a valley is across than along

/** Curvatures from 1 / NARROW up to 1, evenly on a logarithmic scale. */
function valley(D, seed) {
  return quadratic(Array.from({ length: D }, (_, i) => NARROW ** (i / (D - 1) - 1)), startOf(D, seed));
}

/** Rosenbrock's banana, sum over neighbours of ((1 - x)^2 + 100 (y - x^2)^2) / 100: down into the bend, then along. */
function rosenbrock(D, seed) {
  const start = D === 2 && seed === 0 ? Float32Array.of(-1.2, 1) : startOf(D, seed);
  const term = (x, y) => ((1 - x) ** 2 + 100 * (y - x * x) ** 2) / 100;
  return {
    D,
    start,
    extent: 1.9,
    centre: [0, 0.6],
    loss: (theta) => theta.reduce((sum, x, i) => (i + 1 < D ? sum + term(x, theta[i + 1]) : sum), 0),
    slope: (theta) => {
      const g = new Float32Array(D);
      for (let i = 0; i + 1 < D; i++) {
        const bend = theta[i + 1] - theta[i] ** 2;
        g[i] += (-2 * (1 - theta[i]) - 400 * theta[i] * bend) / 100;
        g[i + 1] += (200 * bend) / 100;
      }
      return g;
    },
  };
}

// A network of one hidden layer on two moons

const POINTS = 80;
const BATCH = 16;

/** Two half circles that reach into each other, with a little noise: x, y and class of each point. */
function moons() {
  const noise = numbers("normal", 2 * POINTS, { seed: 0, stream: STREAM.data });
  return Array.from({ length: POINTS }, (_, n) => {
    const label = n % 2;
    const angle = (Math.PI * (n >> 1)) / (POINTS / 2 - 1);
    const x = label ? 1 - Math.cos(angle) : Math.cos(angle);
    const y = label ? 0.5 - Math.sin(angle) : Math.sin(angle);
    return { x: x - 0.5 + 0.12 * noise[2 * n], y: y - 0.25 + 0.12 * noise[2 * n + 1], label };
  });
}

/** theta is, for h hidden units: weights of x, of y, and biases (h each), then the outputs' weights (h) and bias. */
function network(D, seed) {
  const h = (D - 1) / 4;
  const points = moons();
  const hidden = new Float64Array(h);

  function logit(theta, x, y) {
    let sum = theta[4 * h];
    for (let j = 0; j < h; j++) {
      hidden[j] = Math.tanh(theta[j] * x + theta[h + j] * y + theta[2 * h + j]);
      sum += theta[3 * h + j] * hidden[j];
    }
    return sum;
  }

  function addGradient(theta, { x, y, label }, g, share) {
    const error = (1 / (1 + Math.exp(-logit(theta, x, y))) - label) * share;
    for (let j = 0; j < h; j++) {
      const back = error * theta[3 * h + j] * (1 - hidden[j] ** 2);
      g[j] += back * x;
      g[h + j] += back * y;
      g[2 * h + j] += back;
      g[3 * h + j] += error * hidden[j];
    }
    g[4 * h] += error;
  }

  function mean(theta, batch) {
    const g = new Float32Array(D);
    for (const point of batch) addGradient(theta, point, g, 1 / batch.length);
    return g;
  }

  const pointLoss = (theta, { x, y, label }) => Math.log1p(Math.exp((1 - 2 * label) * logit(theta, x, y)));
  const start = numbers("normal", D, { seed, stream: STREAM.start });
  return {
    D,
    start: start.map((value, i) => value * (i >= 3 * h ? 0.5 / Math.sqrt(h) : 1)),
    points,
    logit,
    loss: (theta) => points.reduce((sum, point) => sum + pointLoss(theta, point), 0) / POINTS,
    accuracy: (theta) => points.filter(({ x, y, label }) => logit(theta, x, y) > 0 === label > 0).length / POINTS,
    slope: (theta) => mean(theta, points),
    gradient: (theta, t) => {
      const chosen = numbers("uniform", BATCH, { seed, stream: STREAM.batch, offset: BATCH * t });
      return mean(theta, Array.from(chosen, (u) => points[Math.floor(u * POINTS)]));
    },
  };
}

/** The landscapes by name, each with the numbers of parameters that the page offers. */
export const LANDSCAPES = {
  bowl: { title: "a round bowl", make: bowl, Ds: [2, 3, 10, 30, 100, 200, 500, 1000] },
  valley: { title: "a narrow valley", make: valley, Ds: [2, 3, 10, 30, 100, 200, 500, 1000] },
  rosenbrock: { title: "Rosenbrock's banana", make: rosenbrock, Ds: [2, 3, 10, 30, 100, 200] },
  network: { title: "a small network", make: network, Ds: [33, 65, 129, 257, 401] },
};

/** The landscape of this name; `noise` is the length of what is added to each gradient, as a multiple of RADIUS. */
export function makeLandscape(name, D, seed, noise = 0) {
  const landscape = { ...LANDSCAPES[name].make(D, seed), name };
  landscape.gradient ??= landscape.slope;
  if (!noise) return landscape;
  const clean = landscape.gradient;
  const scale = (noise * RADIUS) / Math.sqrt(D);
  const gradient = (theta, t) => {
    const extra = numbers("normal", D, { seed, stream: STREAM.noise, offset: D * t });
    return clean(theta, t).map((value, i) => value + scale * extra[i]);
  };
  return { ...landscape, gradient };
}
