// Compartments: how the D parameters are cut into ranges with directions of their own (docs/specification.md,
// section 3).
//
// A plan has a size and a number of directions for each compartment; bits depend on these alone.
// Tests: tests/test_explorable.py.

/** The running sums of some numbers, from 0 on. */
function bounds(counts) {
  const result = [0];
  for (const count of counts) result.push(result.at(-1) + count);
  return result;
}

/** A plan: compartment k has the elements bounds[k] .. bounds[k + 1] - 1 and the directions offsets[k] .. - 1. */
export function plan(sizes, dims) {
  sizes.forEach((size, k) => {
    if (!(dims[k] >= 1 && dims[k] <= size)) {
      throw new RangeError(`compartment ${k} has d = ${dims[k]}, expected 1 <= d <= ${size}, its size`);
    }
  });
  const elements = bounds(sizes);
  const directions = bounds(dims);
  return { sizes, dims, bounds: elements, offsets: directions, D: elements.at(-1), d: directions.at(-1) };
}

/** One compartment. */
export function whole(D, d) {
  return plan([D], [d]);
}

/** k sizes that differ by one at most, the larger ones first. */
export function evenSizes(D, k) {
  return Array.from({ length: k }, (_, n) => Math.floor(D / k) + (n < D % k ? 1 : 0));
}

/** `total` directions over compartments in proportion to size, at least one each; integers of any length throughout. */
export function splitTotal(total, sizes) {
  const T = BigInt(total);
  const S = sizes.map(BigInt);
  const D = S.reduce((sum, size) => sum + size, 0n);
  const dims = S.map((size) => ((T * size) / D > 1n ? (T * size) / D : 1n));
  const excess = (k) => dims[k] * D - T * S[k];
  const missing = () => T - dims.reduce((sum, d) => sum + d, 0n);
  const least = (ks) => ks.reduce((one, other) => (excess(other) < excess(one) ? other : one)); // the lowest of equals
  const most = (ks) => ks.reduce((one, other) => (excess(other) > excess(one) ? other : one));
  const all = [...sizes.keys()];
  while (missing() > 0n) dims[least(all)] += 1n;
  while (missing() < 0n) dims[most(all.filter((k) => dims[k] > 1n))] -= 1n;
  return dims.map(Number);
}

/** d = size / reduction rounded down, at least 1. */
export function proportional(sizes, reduction) {
  return plan(sizes, sizes.map((size) => Math.min(size, Math.max(1, Math.floor(size / reduction)))));
}
