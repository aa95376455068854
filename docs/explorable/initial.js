// Initial: the weights a run starts from, theta0, as a function of its seed (rbd_ref/models/networks.py).
//
// Weights are Glorot uniform, limit * entry j of `uniform` with a key for each tensor; biases are 0.
// Here are the fully connected networks: `fc` (128 hidden) and `mlp:64-32-10`. Tests: tests/test_explorable.py.

import { foldIn, streamKey } from "./prng.js";
import { blockEntries } from "./families.js";

const f = Math.fround;
const HIDDEN = 128; // of `fc`
const CLASSES = 10;
const INPUTS = { digits: 64, mnist: 784, "fashion-mnist": 784, "cifar-10": 3072 };

/** The widths of a network's layers, inputs first; null for networks that are not fully connected. */
export function widths(net, data) {
  if (net === "fc" && data in INPUTS) return [INPUTS[data], HIDDEN, CLASSES];
  if (/^mlp:[1-9]\d*(-[1-9]\d*)+$/.test(net)) return net.slice(4).split("-").map(Number);
  return null;
}

/** The sizes of each layer's tensors: weights, then biases. */
export function layerSizes(layerWidths) {
  return layerWidths.slice(1).map((width, n) => [layerWidths[n] * width, width]);
}

/** theta0, D floats. */
export function initialise(layerWidths, seed) {
  const layers = layerSizes(layerWidths);
  const theta = new Float32Array(layers.flat().reduce((sum, size) => sum + size, 0));
  const key = streamKey(seed, "initialisation");
  let start = 0;
  layers.forEach(([weights, biases], n) => {
    const limit = f(Math.sqrt(6 / (layerWidths[n] + layerWidths[n + 1])));
    const entries = blockEntries("uniform", foldIn(key, 2 * n), 0, 0, weights); // tensor 2 n + 1, the biases, stays 0
    theta.set(entries.map((entry) => limit * entry), start);
    start += weights + biases;
  });
  return theta;
}
