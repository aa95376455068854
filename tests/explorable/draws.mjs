// node draws.mjs < CASES: for each {family, normalize, seed, step, worker, sizes, dims, g, a} the coefficients of g and
// the update of a, as hexadecimal bits; for each {total, sizes} the directions of each compartment.
import { readFileSync } from "node:fs";
import { Basis, plan, splitTotal } from "../../docs/explorable/rbd.js";
import { floatsToHex, hexToFloats } from "../../docs/explorable/bytes.js";

function answer({ family, normalize, seed, step, worker, sizes, dims, g, a, total }) {
  if (total) return { dims: splitTotal(total, sizes) };
  const basis = new Basis(plan(sizes, dims), { seed: BigInt(`0x${seed}`), family, normalize });
  const found = basis.descend(hexToFloats(g), step, worker);
  const u = basis.reconstruct(hexToFloats(a), step, worker);
  return { a: floatsToHex(found.a), descended: floatsToHex(found.u), u: floatsToHex(u) };
}

console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(answer)));
