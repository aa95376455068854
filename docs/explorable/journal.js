// Journal: theta of a run, rebuilt step by step from what its workers sent (docs/specification.md, section 11;
// rbd_ref/runs/journal.py has the format of the file).
//
// No data and no gradient is needed: theta0 follows from the seed, and each record holds the coefficients of all
// workers. Whoever makes the same directions ends with the same weights, to the bit. A mistake in the files is one
// sentence, a RunError. Tests: tests/test_explorable.py.

import { Basis } from "./basis.js";
import { crc32, littleEndian, sha256, toHex } from "./bytes.js";
import { evenSizes, plan, proportional, splitTotal, whole } from "./compartments.js";
import { powerOfTwo } from "./hadamard.js";
import { initialise, layerSizes, widths } from "./initial.js";

const f = Math.fround;
const MAGIC = "RBDJRNL2";
export const START = 40; // bytes before the first record
const HEAD = 24; // bytes before a record's numbers
const CHAIN = 32; // bytes of a chain value
const TRAINING = {
  // images to train on, and those of the test set
  digits: [1500, 297],
  mnist: [60000, 10000],
  "fashion-mnist": [60000, 10000],
  "cifar-10": [50000, 10000],
};

/** What is wrong with the files of a run, what was expected, and what to do. */
export class RunError extends Error {}

// config.toml

/** The settings in a run's config.toml, and the text of each, from which the digest is made. */
export function parseConfig(text) {
  const values = {};
  const texts = {};
  for (const line of text.split(/\r?\n/).filter((each) => each.trim() && !each.startsWith("#"))) {
    const [, name, value] = /^(\w+) = (.*)$/.exec(line) ?? [];
    try {
      values[name] = JSON.parse(value);
    } catch {
      throw new RunError(`config.toml has the line "${line.slice(0, 60)}", expected name = value: restore the file`);
    }
    texts[name] = value;
  }
  values.seed = BigInt(texts.seed ?? 0); // a seed may have 64 bits
  return { values, texts };
}

// The settings that the weights depend on. Those of LATER came after runs had been written, and count only where they
// are not as here, so that the digests of earlier runs stay; those of LENGTH only where the rate goes by them.
const DECISIVE = `antithetic augment batch_size combine compartments data dims exchange family holdout lr method
  momentum net normalize optimiser problem redraw seed sigma switch transforms workers`.split(/\s+/);
const LATER = { schedule: '"constant"', warmup: "0", memory: "0.0", feedback: "false", coefficients: '"float32"' };
const LENGTH = ["epochs", "steps"];

/** Text as Python's json writes it: only ASCII. */
function ascii(text) {
  return text.replace(/[\u0080-\uffff]/g, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** The digest that the journal of a configuration begins with: sha256 of its decisive settings as sorted JSON. */
export async function configDigest({ values, texts }) {
  const names = [...DECISIVE, ...Object.keys(LATER).filter((name) => texts[name] !== LATER[name])];
  if (values.schedule !== "constant") names.push(...LENGTH);
  if (![undefined, "reference"].includes(values.gradients)) names.push("gradients");
  const parts = names.sort().map((name) => `"${name}": ${ascii(texts[name] ?? "null")}`);
  return toHex(await sha256(new TextEncoder().encode(`{${parts.join(", ")}}`)));
}

// The file

function damaged(step, offset, what) {
  return new RunError(
    `journal.rbd is damaged at step ${step}, offset ${offset}: ${what}, expected the record as it was written: ` +
      "restore the file",
  );
}

/** Whether nothing but zeros follows, as after a power cut. */
function onlyZeros(bytes) {
  return bytes.every((byte) => byte === 0);
}

/** Rows and columns of the record at this place; null where the file ends or is torn. */
function shapeAt(bytes, step, offset) {
  if (offset + HEAD > bytes.length) return null;
  const head = new DataView(bytes.buffer, bytes.byteOffset + offset, HEAD);
  const kind = String.fromCharCode(...bytes.subarray(offset, offset + 4));
  const sound = head.getUint32(20, true) === crc32(bytes.subarray(offset, offset + 20));
  if (kind === "STEP" && sound && head.getBigUint64(4, true) === BigInt(step)) {
    return { rows: head.getUint32(12, true), columns: head.getUint32(16, true) };
  }
  if (bytes[offset + HEAD - 1] === 0 && onlyZeros(bytes.subarray(offset + HEAD))) return null;
  throw damaged(step, offset, "its head is not that of the step");
}

/** The records of a journal, one after the other, each from `offset` to `stop`; a torn end is left out. */
export async function* records(bytes) {
  let chain = await sha256(bytes.subarray(0, START));
  let offset = START;
  for (let step = 0; ; step++) {
    const shape = shapeAt(bytes, step, offset);
    const end = shape && offset + HEAD + 4 * shape.rows * shape.columns + CHAIN;
    if (!shape || end > bytes.length) return;
    const found = await sha256(chain, bytes.subarray(offset, end - CHAIN));
    if (toHex(found) !== toHex(bytes.subarray(end - CHAIN, end))) {
      if (onlyZeros(bytes.subarray(end))) return;
      throw damaged(step, offset, "it has another checksum, or does not follow the record before it");
    }
    chain = found;
    const words = wordsOf(bytes.subarray(offset + HEAD, end - CHAIN));
    yield { step, offset, stop: end, ...shape, words, chain: toHex(chain) };
    offset = end;
  }
}

/** Little-endian bytes as words: what was sent need not be floats. */
function wordsOf(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  return Uint32Array.from({ length: bytes.length / 4 }, (_, n) => view.getUint32(4 * n, true));
}

/** Words as the floats with these bits. */
function floatsOf(words) {
  return new Float32Array(words.slice().buffer);
}

/** Refuse what is no journal, or not that of this configuration. */
async function checkBeginning(bytes, config) {
  const magic = String.fromCharCode(...bytes.subarray(0, 8));
  if (bytes.length < START || magic !== MAGIC) {
    throw new RunError(`journal.rbd does not begin with ${MAGIC}, expected the journal of a run: choose journal.rbd`);
  }
  if (toHex(bytes.subarray(8, START)) !== (await configDigest(config))) {
    throw new RunError(
      "journal.rbd is that of another configuration, expected the one of config.toml: choose both files of one run",
    );
  }
}

// From what was sent to coefficients: how workers share bases (11), and codes of fewer bits (11.1)

/** The directions of each worker: all, or in `split` consecutive parts, the larger ones first. */
function directionsOf(worker, { d, workers, exchange }) {
  if (exchange !== "split") return [0, d];
  const q = Math.floor(d / workers);
  const first = worker * q + Math.min(worker, d % workers);
  return [first, first + q + (worker < d % workers ? 1 : 0)];
}

/** How many of the directions first .. last - 1 each compartment has, without those that have none. */
function lengthsOf([first, last], { offsets }) {
  const clip = (x) => Math.min(Math.max(x, first), last);
  return offsets.slice(1).map((end, k) => clip(end) - clip(offsets[k])).filter((length) => length > 0);
}

const CODES = {
  int8: { bits: 8, value: (code, s) => f(s * ((code << 24) >> 24)) },
  sign: { bits: 1, value: (code, s) => (code ? -s : s) },
};

/** The layout of what a worker sends: words of codes (0 where floats are sent), and all words. */
function payloadLayout(run) {
  const parts = Array.from({ length: run.workers }, (_, worker) => directionsOf(worker, run));
  const longest = Math.max(...parts.map(([first, last]) => last - first));
  const code = CODES[run.coefficients];
  if (!code) return { codeWords: 0, size: longest };
  const codeWords = Math.ceil((longest * code.bits) / 32);
  return { codeWords, size: codeWords + Math.max(...parts.map((part) => lengthsOf(part, run.plan).length)) };
}

/** The coefficients of a worker from what it sent. */
function decode(payload, worker, run) {
  const [first, last] = directionsOf(worker, run);
  const code = CODES[run.coefficients];
  if (!code) return floatsOf(payload.subarray(0, last - first));
  const scales = floatsOf(payload.subarray(run.layout.codeWords));
  const a = new Float32Array(last - first);
  let i = 0;
  lengthsOf([first, last], run.plan).forEach((length, k) => {
    for (const end = i + length; i < end; i++) {
      const place = code.bits * i;
      a[i] = code.value((payload[place >>> 5] >>> (place & 31)) & (2 ** code.bits - 1), scales[k]);
    }
  });
  return a;
}

/** The coefficients of each basis: one basis for each worker, or one for all. */
function coefficientsOf({ words, columns }, run) {
  const parts = Array.from({ length: run.workers }, (_, worker) =>
    decode(words.subarray(worker * columns, (worker + 1) * columns - 1), worker, run),
  );
  if (run.exchange === "independent") return parts;
  if (run.exchange === "shared") return [parts.reduce(add)];
  return [Float32Array.from(parts.flatMap((part) => [...part]))];
}

// A step (11), with the rate of the step (11.2) and the factor of feedback (11.3)

function add(x, y) {
  return x.map((value, j) => value + y[j]); // a Float32Array rounds what is stored
}

/** sin z by its series, in binary64 without the C library's sine. */
function sine(z) {
  let s = 1;
  for (let k = 10; k >= 1; k--) s = 1 - ((z * z) / (2 * k * (2 * k + 1))) * s;
  return z * s;
}

/** f(t), what the learning rate is multiplied by at step t. */
function rateFactor(t, { schedule, warmup, steps }) {
  if (t < warmup) return (t + 1) / warmup;
  if (schedule === "constant") return 1;
  const v = (steps - t) / (steps - warmup);
  if (schedule === "linear") return v;
  const s = sine(1.5707963267948966 * v);
  return s * s;
}

/** s of error feedback: the least over compartments of 1 / (1 + (d_k - 1) r_k). */
function contraction({ plan: { sizes, dims }, family }) {
  const factors = sizes.map((size, k) => {
    const n = powerOfTwo(size);
    const srht = n === 1 ? 0 : (n - size) / ((n - 1) * size);
    return 1 / (1 + (dims[k] - 1) * (family === "srht" ? srht : 1 / size));
  });
  return f(Math.min(...factors));
}

/** Rebuild the update of the coefficients of each basis, and add these up in order. */
function updateOf(coefficients, step, run) {
  return coefficients.map((a, j) => run.basis.reconstruct(a, step, j)).reduce(add);
}

/** theta after a step of `rbd` or `nes`: theta - eta u, with momentum theta - eta v. */
function descend(state, a, run) {
  let u = updateOf(a, Math.floor(state.t / run.redraw), run);
  if (run.momentum) u = state.v.map((v, j) => f(run.mu * v) + u[j]);
  const eta = run.feedback ? run.contraction : f(run.rate * rateFactor(state.t, run));
  return { ...state, t: state.t + 1, v: u, theta: state.theta.map((x, j) => x - f(eta * u[j])) };
}

/** theta after a step of `fpd`: coordinates c move in the basis of step 0, theta = theta0 + P c. */
function descendFixed(state, a, run) {
  const eta = f(run.rate * rateFactor(state.t, run));
  const m = a.map((part, j) => part.map((value, i) => f(run.mu * (state.m?.[j][i] ?? 0)) + value));
  const c = m.map((part, j) => part.map((value, i) => (state.c?.[j][i] ?? 0) - f(eta * value)));
  const u = updateOf(c, 0, run);
  return { ...state, t: state.t + 1, m, c, theta: add(state.theta0, u) };
}

const STEPS = { rbd: descend, nes: descend, "nes-shared-batch": descend, fpd: descendFixed };

// What a configuration means

/** The plan of a network's parameters. */
function planOf({ compartments, dims }, layers) {
  const [, each, text] = /^(each:)?(\d+)$/.exec(dims) ?? [];
  const d = Number(text);
  const [kind, number] = compartments.split(":");
  const D = layers.flat().reduce((sum, size) => sum + size, 0);
  const sums = layers.map((layer) => layer.reduce((sum, size) => sum + size, 0));
  if (kind === "whole") return whole(D, d);
  if (kind === "proportional") return proportional(sums, Number(number));
  const sizes = { even: () => evenSizes(D, Number(number)), layer: () => sums, tensor: () => layers.flat() }[kind]();
  return plan(sizes, each ? sizes.map(() => d) : splitTotal(d, sizes));
}

/** Refuse, in one sentence, what only the Python package can repeat. */
function checkSupported(values) {
  const { method, net, data, switch: switches, problem, optimiser } = values;
  const refused = [
    [!(method in STEPS), `method ${method}, expected one of ${Object.keys(STEPS).join(", ")}`],
    [problem, "a problem of its author's own, expected a network"],
    [!widths(net, data), `network ${net}, expected fc or mlp:64-32-10`],
    [switches?.length, "a switch of methods, expected one method"],
    [method === "fpd" && optimiser !== "plain", `optimiser ${optimiser}, expected plain`],
  ].find(([wrong]) => wrong);
  if (refused) throw new RunError(`the run has ${refused[1]}: repeat it with python -m rbd_ref.replay`);
}

/** Steps of the whole run, which a decaying rate goes by. */
function lengthOf({ epochs, steps, data, workers, batch_size: batch, holdout }) {
  const [train, test] = TRAINING[data];
  const left = train - test;
  const perEpoch = Math.floor((left - Math.floor(left * holdout)) / (workers * batch));
  return Math.min(epochs === undefined ? Infinity : epochs * perEpoch, steps ?? Infinity);
}

/** A configuration as the functions above take it. */
function prepare(values) {
  checkSupported(values);
  const { seed, family, normalize, lr, combine, workers, momentum } = values;
  const layers = widths(values.net, values.data);
  const parameters = planOf(values, layerSizes(layers));
  const run = { ...values, plan: parameters, d: parameters.d, steps: lengthOf(values), layers };
  run.exchange = workers > 1 ? values.exchange : "independent";
  run.rate = combine === "mean" ? lr / workers : lr;
  run.mu = f(momentum);
  run.basis = new Basis(parameters, { seed, family, normalize });
  run.contraction = contraction(run);
  run.layout = payloadLayout(run);
  run.theta0 = initialise(layers, seed);
  return run;
}

/** Refuse a record that is not what the workers of this run send. */
function checkRecord(record, run) {
  const { step, offset, rows, columns } = record;
  if (rows !== run.workers || columns !== run.layout.size + 1) {
    const expected = `${run.workers} of ${run.layout.size + 1}`;
    throw damaged(step, offset, `it has ${rows} rows of ${columns} numbers where ${expected} were sent`);
  }
}

/** Refuse numbers that no worker sends. */
function checkFinite(record, a) {
  if (!Number.isFinite(lossOf(record)) || !a.every((part) => part.every(Number.isFinite))) {
    throw damaged(record.step, record.offset, "some of its numbers are not finite");
  }
}

/** The mean of the workers' losses, which stand last in each row. */
function lossOf({ words, rows, columns }) {
  const sent = floatsOf(words);
  const losses = Array.from({ length: rows }, (_, row) => sent[(row + 1) * columns - 1]);
  return losses.reduce((sum, loss) => sum + loss, 0) / rows;
}

/** A run, opened: `prepare`d settings and theta0, and the steps to come, each {t, theta, loss, chain, a, stop}. */
export async function openRun(configText, journalBytes) {
  const config = parseConfig(configText);
  await checkBeginning(journalBytes, config);
  const run = prepare(config.values);
  return { run, steps: replay(run, journalBytes) };
}

async function* replay(run, bytes) {
  const zeros = new Float32Array(run.plan.D);
  let state = { t: 0, theta: run.theta0, theta0: run.theta0, v: zeros };
  for await (const record of records(bytes)) {
    checkRecord(record, run);
    const a = coefficientsOf(record, run);
    checkFinite(record, a);
    state = STEPS[run.method](state, a, run);
    yield { t: state.t, theta: state.theta, a, loss: lossOf(record), chain: record.chain, stop: record.stop };
  }
}

/** The sha256 of theta, as result.json has it. */
export async function thetaHash(theta) {
  return toHex(await sha256(littleEndian(theta)));
}

/** What result.json holds; steps and digest at least. */
function parseResult(text) {
  try {
    const result = JSON.parse(text);
    if (Number.isInteger(result.step) && result.sha256) return result;
  } catch {
    // the same sentence
  }
  throw new RunError("result.json has no step and sha256, expected the run's final figures: restore or leave it out");
}

/** Compare the end of a replay with the run's result.json; what does not agree is one sentence. */
export function compareResult({ t, hash, chain }, text) {
  const result = parseResult(text);
  if (result.step > t) {
    throw new RunError(
      `journal.rbd has ${t} whole steps, expected ${result.step} as result.json says: restore the file`,
    );
  }
  if (result.step === t && result.sha256 !== hash) {
    throw new RunError(
      `theta has sha256 ${hash}, expected ${result.sha256} as in result.json: one of them was changed, restore it`,
    );
  }
  if (result.step === t && result.journal !== chain) {
    throw new RunError("result.json has another chain value than journal.rbd, expected files of one run: restore them");
  }
  return result;
}
