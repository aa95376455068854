// Descent: RBD, FPD and SGD on a landscape, step by step, with what the charts show (docs/specification.md,
// section 11).
//
//   rbd   a = project(g) along new directions,   theta <- theta - eta u              d numbers sent
//   fpd   a = project(g) along the first ones,   c <- c - eta a, theta = theta0 + P c d numbers sent
//   sgd                                          theta <- theta - eta g              D numbers sent
//
// With memory beta what is projected is m <- beta m + (1 - beta) g in place of g. Tests: tests/test_explorable.py.

import { Basis } from "./basis.js";
import { whole } from "./compartments.js";

const f = Math.fround;
const LARGEST = 1e9; // a loss above it has left the landscape
const LEAST = 1e-8; // a loss below it has arrived

/** The cosine of the angle between two vectors; 0 where one of them is 0. */
export function cosine(x, y) {
  let xy = 0;
  let xx = 0;
  let yy = 0;
  for (let j = 0; j < x.length; j++) {
    xy += x[j] * y[j];
    xx += x[j] * x[j];
    yy += y[j] * y[j];
  }
  return xx && yy ? xy / Math.sqrt(xx * yy) : 0;
}

/** One point and its way down. */
export class Descent {
  /** @param method rbd, fpd or sgd  @param settings {d, eta, memory, family, seed} */
  constructor(method, landscape, { d, eta, memory, family, seed }) {
    this.method = method;
    this.landscape = landscape;
    this.eta = f(eta);
    this.beta = f(memory);
    this.basis = new Basis(whole(landscape.D, d), { seed, family });
    this.sends = method === "sgd" ? landscape.D : d;
    this.theta = landscape.start;
    this.m = new Float32Array(landscape.D);
    this.c = new Float32Array(d);
    this.t = 0;
    this.losses = [landscape.loss(this.theta)];
    this.cosines = [];
    this.path = [this.theta];
    this.move = new Float32Array(landscape.D);
  }

  /** Whether the point has left the landscape: the rate is too high. */
  get diverged() {
    return !(this.losses.at(-1) < LARGEST);
  }

  /** Whether there is nothing left to do. */
  get arrived() {
    return this.losses.at(-1) < LEAST;
  }

  /** The basis whose directions the next step takes: a new one at every step, or always the first. */
  get draw() {
    return this.method === "fpd" ? 0 : this.t;
  }

  /** What is projected: the gradient, or the running average of gradients. */
  remember(g) {
    if (!this.beta) return g;
    const rest = f(1 - this.beta);
    this.m = this.m.map((m, j) => f(this.beta * m) + f(rest * g[j]));
    return this.m;
  }

  /** theta after a step along v, which is what is projected. */
  next(v) {
    if (this.method === "sgd") return this.theta.map((x, j) => x - f(this.eta * v[j]));
    if (this.method === "rbd") {
      const { u } = this.basis.descend(v, this.draw);
      return this.theta.map((x, j) => x - f(this.eta * u[j]));
    }
    const a = this.basis.project(v, this.draw);
    this.c = this.c.map((c, i) => c - f(this.eta * a[i]));
    const u = this.basis.reconstruct(this.c, this.draw);
    return this.landscape.start.map((x, j) => x + u[j]);
  }

  /** Take a step. */
  step() {
    if (this.diverged || this.arrived) return;
    const g = this.landscape.gradient(this.theta, this.t);
    const theta = this.next(this.method === "rbd" ? this.remember(g) : g);
    this.move = theta.map((x, j) => x - this.theta[j]);
    this.cosines.push(-cosine(this.move, g));
    this.theta = theta;
    this.t += 1;
    this.losses.push(this.landscape.loss(theta));
    if (this.landscape.D <= 3) this.path.push(theta);
  }
}
