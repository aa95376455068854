// Words: Threefry2x32-20, and how seeds become keys (docs/specification.md, sections 1 and 2).
//
// Every random number of the method is a pure function of its address: seed, step, worker, compartment, direction and
// element. There is no hidden state, so any machine can make any number at any time, and a basis is never stored.
// A word is a number from 0 to 2^32 - 1, a key is a pair of words. Tests: tests/test_explorable.py.

const PARITY = 0x1bd11bda;
const TWO_32 = 2 ** 32;

// Each use of randomness has a stream of its own, so that no two of them ever share a number.
export const STREAMS = {
  bases: 0,
  initialisation: 1,
  order: 2,
  augmentation: 3,
  split: 4,
  offspring: 5,
  numbers: 6,
};

/** Mix a block of two words: four rounds of add, rotate, exclusive or. `block` changes in place. */
function fourRounds(block, r0, r1, r2, r3) {
  let x0 = block[0];
  let x1 = block[1];
  x0 = (x0 + x1) | 0;
  x1 = ((x1 << r0) | (x1 >>> (32 - r0))) ^ x0;
  x0 = (x0 + x1) | 0;
  x1 = ((x1 << r1) | (x1 >>> (32 - r1))) ^ x0;
  x0 = (x0 + x1) | 0;
  x1 = ((x1 << r2) | (x1 >>> (32 - r2))) ^ x0;
  x0 = (x0 + x1) | 0;
  x1 = ((x1 << r3) | (x1 >>> (32 - r3))) ^ x0;
  block[0] = x0;
  block[1] = x1;
}

const block = new Int32Array(2);

/**
 * Words of the counters (i, first), (i, first + 1), ...: `count` blocks, x0 and x1 alternating in the result.
 * The five groups of rounds are written out, as that is three times as fast as a loop over them.
 */
export function words(key, i, first, count) {
  const k0 = key[0] | 0;
  const k1 = key[1] | 0;
  const k2 = k0 ^ k1 ^ PARITY;
  const result = new Uint32Array(2 * count);
  for (let p = 0; p < count; p++) {
    block[0] = i + k0;
    block[1] = first + p + k1;
    fourRounds(block, 13, 15, 26, 6);
    block[0] += k1;
    block[1] += k2 + 1;
    fourRounds(block, 17, 29, 16, 24);
    block[0] += k2;
    block[1] += k0 + 2;
    fourRounds(block, 13, 15, 26, 6);
    block[0] += k0;
    block[1] += k1 + 3;
    fourRounds(block, 17, 29, 16, 24);
    block[0] += k1;
    block[1] += k2 + 4;
    fourRounds(block, 13, 15, 26, 6);
    block[0] += k2;
    block[1] += k0 + 5;
    result[2 * p] = block[0];
    result[2 * p + 1] = block[1];
  }
  return result;
}

/** threefry(key, counter): two words to two words. */
export function threefry(key, counter) {
  const result = words(key, counter[0], counter[1], 1);
  return [result[0], result[1]];
}

/** The key of a seed, 0 <= seed < 2^64. Seeds above 2^53 have to be BigInts, which hold them exactly. */
export function rootKey(seed) {
  const whole = BigInt(seed);
  return [Number(whole >> 32n), Number(whole & 0xffffffffn)];
}

/** A new key from a key and a number n, 0 <= n < 2^53. Nothing is ever added to a seed. */
export function foldIn(key, n) {
  return threefry(key, [Math.floor(n / TWO_32), n % TWO_32]);
}

/** The key of a stream of a seed. */
export function streamKey(seed, stream) {
  return foldIn(rootKey(seed), STREAMS[stream]);
}

/** The key of one compartment's basis. */
export function basisKey(seed, step, worker, k) {
  return foldIn(foldIn(foldIn(streamKey(seed, "bases"), step), worker), k);
}
