// Hadamard: the family `srht`, rows of a Walsh-Hadamard matrix under random signs (docs/specification.md, section 4.6).
//
// A row is given by its number alone, and the fast transform applies all n rows in n log n additions: d directions cost
// the same whatever d is. Tests: tests/test_explorable.py.

import { words } from "./prng.js";
import { blockEntries } from "./families.js";

const MOST = 2 ** 21; // up to here a word and a row's number fit into one binary64 integer

/** The least power of two not below `size`. */
export function powerOfTwo(size) {
  let n = 1;
  while (n < size) n *= 2;
  return n;
}

/** The signs s_j: the entries of `rademacher` with the counters (0, p). */
export function signs(key, size) {
  return blockEntries("rademacher", key, 0, 0, size);
}

/** The rows r_0 < r_1 < ...: those d of n whose words are the smallest, of equal words the lower row first. */
export function rows(key, size, d) {
  const n = powerOfTwo(size);
  if (n > MOST) throw new RangeError(`srht has ${size} elements, expected at most ${MOST} in this implementation`);
  const x = words(key, 1, 0, Math.ceil(n / 2));
  const ranked = Float64Array.from({ length: n }, (_, r) => x[r] * n + r).sort();
  return Uint32Array.from(ranked.subarray(0, d), (value) => value % n).sort();
}

/** Whether a word has an odd number of set bits. */
function isOdd(word) {
  let x = word ^ (word >>> 16);
  x ^= x >>> 8;
  x ^= x >>> 4;
  return (0x6996 >>> (x & 15)) & 1;
}

// A basis's rows and signs serve all its directions; the last one is kept.
let last = { name: "" };

/** Signs and rows of the basis with this key. */
export function parts(key, size, d) {
  const name = [key[0], key[1], size, d].join();
  if (last.name !== name) last = { name, s: signs(key, size), r: rows(key, size, d) };
  return last;
}

/** Direction i: s_j (-1)^popcount(r_i & j). */
export function srhtEntries(key, i, size, d) {
  const { s, r } = parts(key, size, d);
  return s.map((sign, j) => (isOdd(r[i] & j) ? -sign : sign));
}

/** H x in place, for n a power of two floats, level by level, each sum rounded once. */
export function transform(x) {
  for (let h = 1; h < x.length; h *= 2) {
    for (let start = 0; start < x.length; start += 2 * h) {
      for (let j = start; j < start + h; j++) {
        const low = x[j];
        const high = x[j + h];
        x[j] = low + high; // a Float32Array rounds what is stored
        x[j + h] = low - high;
      }
    }
  }
  return x;
}
