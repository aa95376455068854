// Basis: the two operations of random bases descent (docs/specification.md, sections 5 to 7).
//
//   project      a_i = <phi_i, g> / N_i         D numbers to d coefficients: what a worker sends
//   reconstruct  u   = sum_i a_i phi_i          d coefficients back to D numbers, the same bits on every machine
//
// Directions are made one after the other and thrown away: nothing here ever holds d x D numbers.
// Tests: tests/test_explorable.py.

import { basisKey } from "./prng.js";
import { direction, expectedSquare, parseFamily } from "./families.js";
import { parts, powerOfTwo, transform } from "./hadamard.js";

const f = Math.fround;
const TILE = 4096;
const LANES = 64;
const LEAST = 2 ** -64; // smaller coefficients count as +0
const lanes = new Float32Array(LANES);

/** The sum of x_j y_j over a tile, in 64 lanes that are then added by halves. */
function tileDot(x, y, start, stop) {
  lanes.fill(0);
  for (let j = start; j < stop; j++) {
    const lane = (j - start) % LANES;
    lanes[lane] += f(x[j] * y[j]);
  }
  for (let half = LANES / 2; half >= 1; half /= 2) {
    for (let lane = 0; lane < half; lane++) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

/** <x, y> in the reference's order: float32 within tiles, binary64 over them. */
export function dot(x, y) {
  let sum = 0;
  for (let start = 0; start < x.length; start += TILE) sum += tileDot(x, y, start, Math.min(start + TILE, x.length));
  return sum;
}

/** A coefficient as everyone takes it. */
function flush(a) {
  return Math.abs(a) < LEAST ? 0 : a;
}

/** All bases of a seed: those of each step and worker. */
export class Basis {
  /** @param plan as compartments.js makes it  @param options {seed, family = "normal", normalize = "unit"} */
  constructor(plan, { seed, family = "normal", normalize = "unit" }) {
    this.plan = plan;
    this.seed = seed;
    this.family = parseFamily(family);
    this.normalize = normalize;
  }

  /** The compartments, each with its key at this step. */
  *compartments(step, worker) {
    const { sizes, dims, bounds, offsets } = this.plan;
    for (let k = 0; k < sizes.length; k++) {
      const key = basisKey(this.seed, step, worker, k);
      yield { key, size: sizes[k], d: dims[k], start: bounds[k], first: offsets[k] };
    }
  }

  /** Direction `index` of the whole plan, D floats: zero outside its compartment. */
  direction(index, step, worker = 0) {
    const phi = new Float32Array(this.plan.D);
    for (const c of this.compartments(step, worker)) {
      const i = index - c.first;
      if (i >= 0 && i < c.d) phi.set(direction(this.family, c.key, i, c.size, c.d), c.start);
    }
    return phi;
  }

  /** N_i, what the inner product is divided by. */
  divisor(size, phi) {
    if (this.normalize === "none") return 1;
    if (this.normalize === "graphcore") return this.plan.D;
    return this.normalize === "unit" && phi ? dot(phi, phi) : expectedSquare(this.family, size);
  }

  /** The coefficients a of a gradient g: a_i = <phi_i, g> / N_i. */
  project(g, step, worker = 0) {
    const a = new Float32Array(this.plan.d);
    for (const c of this.compartments(step, worker)) this.projectOne(c, g, a, null);
    return a;
  }

  /** The update u = sum_i a_i phi_i of coefficients: in the order of i, each product and each sum rounded once. */
  reconstruct(a, step, worker = 0) {
    const u = new Float32Array(this.plan.D);
    for (const c of this.compartments(step, worker)) {
      if (this.family.name === "srht") this.reconstructRows(c, a, u);
      else this.reconstructOne(c, a, u.subarray(c.start, c.start + c.size));
    }
    return u;
  }

  /** The update of one compartment, into `part`, unless the family is `srht`. */
  reconstructOne(c, a, part) {
    for (let i = 0; i < c.d; i++) {
      addMultiple(part, flush(a[c.first + i]), direction(this.family, c.key, i, c.size, c.d));
    }
  }

  /** `project` and then `reconstruct`, making each direction once: the coefficients a and the update u. */
  descend(g, step, worker = 0) {
    const a = new Float32Array(this.plan.d);
    const u = new Float32Array(this.plan.D);
    for (const c of this.compartments(step, worker)) {
      this.projectOne(c, g, a, u);
      if (this.family.name === "srht") this.reconstructRows(c, a, u);
    }
    return { a, u };
  }

  /** Coefficients of one compartment into `a`; its update into `u`, if given, unless the family is `srht`. */
  projectOne(c, g, a, u) {
    const part = g.subarray(c.start, c.start + c.size);
    if (this.family.name === "srht") {
      this.projectRows(c, part, a);
      return;
    }
    const target = u?.subarray(c.start, c.start + c.size);
    for (let i = 0; i < c.d; i++) {
      const phi = direction(this.family, c.key, i, c.size, c.d);
      a[c.first + i] = flush(f(dot(phi, part) / this.divisor(c.size, phi)));
      if (target) addMultiple(target, a[c.first + i], phi);
    }
  }

  /** The same for `srht`: the inner products are rows of H (s g). */
  projectRows(c, part, a) {
    const { s, r } = parts(c.key, c.size, c.d);
    const x = new Float32Array(powerOfTwo(c.size));
    for (let j = 0; j < c.size; j++) x[j] = s[j] * part[j];
    transform(x);
    const N = this.divisor(c.size, null);
    for (let i = 0; i < c.d; i++) a[c.first + i] = flush(f(x[r[i]] / N));
  }

  /** And back: z is a_i at row r_i, and u = s (H z). */
  reconstructRows(c, a, u) {
    const { s, r } = parts(c.key, c.size, c.d);
    const z = new Float32Array(powerOfTwo(c.size));
    for (let i = 0; i < c.d; i++) z[r[i]] = flush(a[c.first + i]);
    transform(z);
    for (let j = 0; j < c.size; j++) u[c.start + j] = 0 + s[j] * z[j]; // 0 + makes -0 a +0
  }
}

/** u <- u + (a phi), product and sum rounded once each. */
function addMultiple(u, a, phi) {
  for (let j = 0; j < u.length; j++) u[j] += f(a * phi[j]);
}
