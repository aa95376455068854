// Random bases descent in JavaScript, written from docs/specification.md: what a page or a program imports.
//
//   import { Basis, whole } from "./rbd.js";
//   const basis = new Basis(whole(1000, 10), { seed: 42, family: "normal" });
//   const a = basis.project(g, step);          // 10 numbers to send
//   const u = basis.reconstruct(a, step);      // on any machine, in any language: the same 1000 floats, to the bit
//
// Read on in this order: prng.js (words), families.js and hadamard.js (directions), compartments.js, basis.js (the two
// operations), random.js, journal.js (a run rebuilt from what was sent). Tests: tests/test_explorable.py.

export { STREAMS, basisKey, foldIn, rootKey, streamKey, threefry, words } from "./prng.js";
export { FAMILIES, direction, expectedSquare, parseFamily } from "./families.js";
export { rows, signs, transform } from "./hadamard.js";
export { evenSizes, plan, proportional, splitTotal, whole } from "./compartments.js";
export { Basis, dot } from "./basis.js";
export { numberKey, numbers, streamSeed } from "./random.js";
