// Random: portable random numbers, for the same start everywhere (docs/specification.md, section 15).
//
// A stream of numbers is a basis of its own, and number n is element n mod 2^32 of its direction n div 2^32.
// Tests: tests/test_explorable.py.

import { basisKey, foldIn, streamKey } from "./prng.js";
import { blockEntries } from "./families.js";

const DIRECTION = 2n ** 32n; // numbers of one direction
const LAWS = {
  normal: { family: "normal", map: (x) => x },
  uniform: { family: "uniform", map: (x) => (x - 2 ** -24) * 0.5 + 0.5 }, // exact
  signs: { family: "rademacher", map: (x) => x },
};

/** The seed of the basis that a stream is. */
export function streamSeed(seed, stream) {
  const [x0, x1] = foldIn(streamKey(seed, "numbers"), stream);
  return (BigInt(x0) << 32n) | BigInt(x1);
}

/** The key of a stream's numbers. */
export function numberKey(seed, stream) {
  return basisKey(streamSeed(seed, stream), 0, 0, 0);
}

/** `count` numbers of a stream from `offset` on; law is `normal`, `uniform` (in [0, 1)) or `signs`. */
export function numbers(law, count, { seed, stream = 0, offset = 0 }) {
  const { family, map } = LAWS[law];
  const key = numberKey(seed, stream);
  const out = new Float32Array(count);
  let n = BigInt(offset);
  for (let done = 0; done < count; ) {
    const left = Number(DIRECTION - (n % DIRECTION));
    const part = Math.min(count - done, left);
    out.set(blockEntries(family, key, Number(n / DIRECTION), Number(n % DIRECTION), part).map(map), done);
    done += part;
    n += BigInt(part);
  }
  return out;
}
