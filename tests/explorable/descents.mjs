// node descents.mjs: what the landscapes and descents of the page do, as JSON.
import { LANDSCAPES, makeLandscape } from "../../docs/explorable/landscape.js";
import { Descent } from "../../docs/explorable/descent.js";

/** The largest difference of a landscape's slope and its loss's central differences, over the slope's largest. */
function slopeError(name, D) {
  const landscape = makeLandscape(name, D, 3);
  const theta = Float64Array.from(landscape.start);
  const slope = landscape.slope(landscape.start);
  const h = 1e-5;
  const errors = Array.from(slope, (value, j) => {
    const at = (x) => landscape.loss(theta.map((old, k) => (k === j ? old + x : old)));
    return Math.abs((at(h) - at(-h)) / (2 * h) - value);
  });
  return Math.max(...errors) / Math.max(...slope.map(Math.abs));
}

function descend(method, steps, { name = "bowl", D = 200, noise = 0, ...more }) {
  const settings = { d: 4, eta: 1, memory: 0, family: "normal", seed: 0, ...more };
  const descent = new Descent(method, makeLandscape(name, D, 0, noise), settings);
  for (let t = 0; t < steps; t++) descent.step();
  const late = descent.cosines.slice(-200);
  const cosine = late.reduce((sum, value) => sum + value, 0) / late.length;
  return { t: descent.t, first: descent.losses[0], last: descent.losses.at(-1), cosine, diverged: descent.diverged };
}

const slopes = Object.entries(LANDSCAPES).flatMap(([name, { Ds }]) =>
  Ds.slice(0, 4).map((D) => [name, D, slopeError(name, D)]),
);
console.log(
  JSON.stringify({
    slopes,
    rbd: descend("rbd", 300, {}),
    fpd: descend("fpd", 300, {}),
    sgd: descend("sgd", 300, { eta: 4 / 200 }),
    whole: descend("rbd", 1, { D: 64, d: 64, name: "valley", family: "srht" }),
    wholeSgd: descend("sgd", 1, { D: 64, d: 64, name: "valley" }),
    biased: descend("rbd", 100, { d: 32, family: "bernoulli-graphcore" }),
    noisy: descend("rbd", 400, { d: 16, eta: 0.25, noise: 2 }),
    remembering: descend("rbd", 400, { d: 16, eta: 0.25, noise: 2, memory: 0.9 }),
    network: descend("rbd", 600, { name: "network", D: 65, d: 8, eta: 4 }),
  }),
);
