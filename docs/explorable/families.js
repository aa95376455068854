// Families: how words become the entries of a direction phi_i (docs/specification.md, section 4).
//
// Every entry is specified to the bit in float32. JavaScript computes in binary64, so each operation is rounded with
// Math.fround: for + - * / and the square root of float32 numbers, that gives the same as rounding once.
// `entries` makes any part of a direction; `srht` is in hadamard.js. Tests: tests/test_explorable.py.

import { words } from "./prng.js";
import { srhtEntries } from "./hadamard.js";

const f = Math.fround;
const floats = new Float32Array(1);
const bits = new Uint32Array(floats.buffer);

/** The float with these bits. */
function fromBits(word) {
  bits[0] = word;
  return floats[0];
}

export const FAMILIES = ["normal", "uniform", "rademacher", "bernoulli-graphcore", "sparse", "srht"];

/** A family by its name: `sparse:7` has windows of 7, plain `sparse` of 100; other families have no window. */
export function parseFamily(text) {
  const [name, window] = text.split(":");
  const sparse = name === "sparse";
  const size = sparse ? Number(window ?? 100) : 0;
  const whole = window === undefined || (sparse && Number.isInteger(size) && size >= 1 && size <= 256);
  if (!FAMILIES.includes(name) || !whole) {
    throw new RangeError(`family is ${text}, expected one of ${FAMILIES.join(", ")} (sparse:S with 1 <= S <= 256)`);
  }
  return { name, window: size };
}

// Normal: Box-Muller with the polynomials of section 4.1

const A = fromBits(0x3fb17218);
const Q5 = fromBits(0x3ecccc34);
const Q4 = fromBits(0xbee9eefe);
const Q3 = fromBits(0x3efd85a0);
const Q2 = fromBits(0xbf29f185);
const Q1 = fromBits(0x3f8002fe);
const Q0 = fromBits(0xc000007b);
const S2 = fromBits(0x3b1f10c2);
const S1 = fromBits(0xbda54d69);
const S0 = fromBits(0x3f490f99);
const C3 = fromBits(0xb9a75889);
const C2 = fromBits(0x3c81d8c7);
const C1 = fromBits(0xbe9de9d1);
const TWO_THIRDS = 0x3f2aaaab;
const LARGEST = 2 ** 31 - 2 ** 7;

/** The radius sqrt(-2 ln(y / 2^31)) of the word x0. */
function radius(x0) {
  floats[0] = Math.min((x0 >>> 1) | 1, LARGEST); // y, rounded to nearest even
  const e = (bits[0] - TWO_THIRDS) >>> 23;
  bits[0] -= e << 23;
  const z = f(floats[0] - 1); // y = m 2^e, z = m - 1
  let q = Q5;
  q = f(f(q * z) + Q4);
  q = f(f(q * z) + Q3);
  q = f(f(q * z) + Q2);
  q = f(f(q * z) + Q1);
  q = f(f(q * z) + Q0);
  return f(Math.sqrt(f(f(q * z) + f((31 - e) * A))));
}

/** Two independent N(0, 1) numbers of a block of two words, into `out` at j. */
function normalPair(x0, x1, out, j) {
  const r = radius(x0);
  const fraction = (2 * ((x1 >>> 8) & 0x3fffff) + 1) * 2 ** -22 - 1; // of an eighth of a turn; exact
  const w = f(fraction * fraction);
  let sine = f(f(S2 * w) + S1);
  sine = f(f(sine * w) + S0);
  sine = f(sine * fraction);
  let cosine = f(f(C3 * w) + C2);
  cosine = f(f(cosine * w) + C1);
  cosine = f(f(cosine * w) + 1);
  if (x1 >>> 31) cosine = -cosine;
  const swapped = (x1 >>> 30) & 1;
  out[j + swapped] = f(r * cosine);
  out[j + 1 - swapped] = f(r * sine);
}

function normal(key, i, first, blocks) {
  const x = words(key, i, first, blocks);
  const out = new Float32Array(2 * blocks);
  for (let j = 0; j < x.length; j += 2) normalPair(x[j], x[j + 1], out, j);
  return out;
}

// Uniform, and the two families of one bit an entry

function uniform(key, i, first, blocks) {
  const x = words(key, i, first, blocks);
  return Float32Array.from(x, (word) => (2 * (word >>> 8) + 1 - 2 ** 24) * 2 ** -24); // exact
}

function oneBitEach(clear, set) {
  return (key, i, first, blocks) => {
    const x = words(key, i, first, blocks);
    const out = new Float32Array(64 * blocks);
    for (let j = 0; j < out.length; j++) out[j] = (x[j >>> 5] >>> (j & 31)) & 1 ? set : clear;
    return out;
  };
}

// Of the families whose entries do not depend on the size of their compartment: entries of a block, and what makes them

const BLOCKWISE = {
  normal: { length: 2, make: normal },
  uniform: { length: 2, make: uniform },
  rademacher: { length: 64, make: oneBitEach(1, -1) },
  "bernoulli-graphcore": { length: 64, make: oneBitEach(0.5, -1.5) },
};

/** Entries first .. first + count - 1 of direction i, for a family whose entries do not depend on the size. */
export function blockEntries(name, key, i, first, count) {
  const { length, make } = BLOCKWISE[name];
  const from = Math.floor(first / length);
  const to = Math.ceil((first + count) / length);
  const start = first - from * length;
  return make(key, i, from, to - from).subarray(start, start + count);
}

/** How many windows a compartment of this size is cut into. */
export function windows(size, window) {
  return Math.ceil(size / window);
}

/** One non-zero, +1 or -1, in each window. */
function sparseEntries(key, i, size, window) {
  const W = windows(size, window);
  const q = Math.floor(size / W);
  const larger = size % W; // so many windows have q + 1 elements, the others q
  const x = words(key, i, 0, Math.ceil(W / 2));
  const out = new Float32Array(size);
  let start = 0;
  for (let n = 0; n < W; n++) {
    const L = n < larger ? q + 1 : q;
    out[start + (((x[n] >>> 8) * L) >>> 24)] = x[n] & 1 ? -1 : 1;
    start += L;
  }
  return out;
}

/** The direction phi_i over a compartment of `size` elements with d directions. */
export function direction(family, key, i, size, d) {
  if (family.name === "sparse") return sparseEntries(key, i, size, family.window);
  if (family.name === "srht") return srhtEntries(key, i, size, d);
  return blockEntries(family.name, key, i, 0, size);
}

/** The expectation of |phi_i|^2: what `expected` divides by. */
export function expectedSquare(family, size) {
  const squares = { uniform: size * (1 / 3), "bernoulli-graphcore": 1.25 * size };
  if (family.name === "sparse") return windows(size, family.window);
  return squares[family.name] ?? size;
}
