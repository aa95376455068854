// Vectors: this implementation held against the golden vectors (docs/specification.md, section 9).
//
// `checks` goes through the vectors, one check at a time, so that a page stays alive meanwhile. It takes the golden
// files as they are, as the tests have them, or vectors.json, where docs/explorable_data.py has put the sha256 of long
// vectors in their place. Tests: tests/test_explorable.py.

import { basisKey, foldIn, rootKey, streamKey, threefry } from "./prng.js";
import { rows } from "./hadamard.js";
import { plan } from "./compartments.js";
import { Basis } from "./basis.js";
import { numberKey, numbers, streamSeed } from "./random.js";
import { floatsToHex, hexToFloats, littleEndian, sha256, toHex, wordHex } from "./bytes.js";

/** The kinds of vectors, in the order in which they are checked, with what a reader calls them. */
export const KINDS = {
  words: "words of Threefry2x32-20",
  keys: "keys of seed, step and worker",
  directions: "directions of every family",
  long: "long directions, 131,075 elements",
  rows: "rows of the Hadamard matrix",
  updates: "updates, to the bit",
  coefficients: "coefficients, within the tolerance",
  reference: "coefficients, the reference's own bits",
  numbers: "portable random numbers",
  streams: "streams of random numbers",
};

const hexOf = (key) => Array.from(key, wordHex);
const equal = (one, other) => JSON.stringify(one) === JSON.stringify(other);
const wordsOf = (texts) => texts.map((text) => parseInt(text, 16));
const seedOf = (row) => BigInt(`0x${row.seed}`);

/** Whether floats are those of a row's field, which is there in full or as its sha256. */
async function agrees(row, field, x) {
  if (field in row) return row[field] === floatsToHex(x);
  return row[`${field}_sha256`] === toHex(await sha256(littleEndian(x)));
}

function basisOf(row) {
  const { family, normalize } = row;
  return new Basis(plan(row.sizes, row.dims), { seed: seedOf(row), family, normalize });
}

/** All directions of a basis, row by row. */
function matrix(basis, row) {
  const { D, d } = basis.plan;
  const phi = new Float32Array(d * D);
  for (let i = 0; i < d; i++) phi.set(basis.direction(i, row.step, row.worker), i * D);
  return phi;
}

/** Whether each a_i is within (2^-21 |phi_i| |g| + 2^-18 |<phi_i, g>|) / N_i of what it should be (section 6). */
function withinTolerance(basis, row, g, a) {
  const exact = hexToFloats(row.a);
  const norm = (x) => Math.sqrt(x.reduce((sum, value) => sum + value * value, 0));
  return a.every((got, i) => {
    const phi = basis.direction(i, row.step, row.worker);
    const k = basis.plan.offsets.findLastIndex((offset) => offset <= i);
    const part = phi.subarray(basis.plan.bounds[k], basis.plan.bounds[k + 1]);
    const product = phi.reduce((sum, value, j) => sum + value * g[j], 0);
    const allowed = (2 ** -21 * norm(phi) * norm(g) + 2 ** -18 * Math.abs(product)) / basis.divisor(part.length, part);
    const mayBeZero = got === 0 && Math.abs(exact[i]) - allowed < 2 ** -64;
    return mayBeZero || Math.abs(got - exact[i]) <= allowed;
  });
}

// One check of each kind: a row of the vectors to whether this implementation agrees

const CHECK = {
  words: (row) => equal(hexOf(threefry(wordsOf(row.key), wordsOf(row.counter))), row.words),
  keys: (row) => {
    const key = foldIn(foldIn(streamKey(seedOf(row), row.stream), row.step), row.worker);
    const first = row.stream !== "bases" || equal(basisKey(seedOf(row), row.step, row.worker, 7), foldIn(key, 7));
    return first && equal(hexOf(key), row.key) && equal(hexOf(foldIn(key, 7)), row.compartment_7);
  },
  directions: (row) => agrees(row, "phi", matrix(basisOf(row), row)),
  long: async (row) => {
    const phi = basisOf(row).direction(row.direction, row.step, row.worker);
    return toHex(await sha256(littleEndian(phi))) === row.sha256;
  },
  rows: (row) => equal(Array.from(rows(rootKey(row.size), row.size, row.d)), row.rows),
  updates: (row) => agrees(row, "u", basisOf(row).reconstruct(hexToFloats(row.given_a), row.step, row.worker)),
  coefficients: (row, g) => withinTolerance(basisOf(row), row, g, basisOf(row).project(g, row.step, row.worker)),
  reference: (row, g) => {
    const { a, u } = basisOf(row).descend(g, row.step, row.worker);
    const again = basisOf(row).reconstruct(a, row.step, row.worker);
    return floatsToHex(a) === row.reference_a && floatsToHex(u) === floatsToHex(again);
  },
  numbers: (row) => {
    const { law, stream } = row;
    const place = { seed: seedOf(row), stream, offset: BigInt(`0x${row.offset}`) };
    return floatsToHex(numbers(law, row.numbers.length / 8, place)) === row.numbers;
  },
  streams: (row) => {
    const seed = streamSeed(seedOf(row), row.stream).toString(16).padStart(16, "0");
    return seed === row.basis_seed && equal(hexOf(numberKey(seedOf(row), row.stream)), row.key);
  },
};

/** The rows of each kind. */
function rowsByKind({ words, directions, operations, random }) {
  return {
    words: words.cases,
    keys: words.keys,
    directions: directions.cases,
    long: directions.long,
    rows: directions.srht_rows_of_key_0_size,
    updates: operations.cases,
    coefficients: operations.cases,
    reference: operations.cases,
    numbers: random.cases,
    streams: random.streams,
  };
}

/** How many checks there are. */
export function count(golden) {
  return Object.values(rowsByKind(golden)).reduce((sum, list) => sum + list.length, 0);
}

/** Check after check: its kind, its row, and whether this implementation agrees. */
export async function* checks(golden) {
  for (const [kind, list] of Object.entries(rowsByKind(golden))) {
    for (const row of list) {
      const g = typeof row.g === "number" ? golden.gradients[row.g] : row.g; // vectors.json has each of them once
      yield { kind, row, agree: await CHECK[kind](row, g && hexToFloats(g)) };
    }
  }
}
