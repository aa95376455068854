// Worker: what takes long, beside the page: the golden vectors, and runs rebuilt from their journals.
//
// Messages: {kind: "vectors"} answers {kind: "vectors", found, of, done} after every few checks; {kind: "replay",
// config, journal, result} answers {kind: "step"} now and then, and at the end {kind: "end"}. What cannot be done is
// {kind: "error", text}, one sentence.
// Tests: tests/test_explorable.py, in a browser.

import { KINDS, checks, count } from "./vectors.js";
import { RunError, START, compareResult, openRun, thetaHash } from "./journal.js";

const PAUSE = 30; // milliseconds between messages

async function checkVectors() {
  const golden = await (await fetch(new URL("vectors.json", import.meta.url))).json();
  const found = Object.fromEntries(Object.keys(KINDS).map((kind) => [kind, { agree: 0, of: 0 }]));
  const report = (done) => postMessage({ kind: "vectors", found, of: count(golden), done });
  let last = performance.now();
  for await (const { kind, agree } of checks(golden)) {
    found[kind].of += 1;
    found[kind].agree += agree ? 1 : 0;
    if (performance.now() - last > PAUSE) {
      report(false);
      last = performance.now();
    }
  }
  report(true);
}

/** What the page shows of a run beside its steps. */
function about({ layers, plan, d, method, family, workers, memory, data, net, seed }, bytes) {
  return { layers, D: plan.D, d, method, family, workers, memory, data, net, seed: String(seed), bytes };
}

async function replay({ config, journal, result }) {
  const { run, steps } = await openRun(config, new Uint8Array(journal));
  const shown = about(run, journal.byteLength);
  let end = { t: 0, theta: run.theta0, chain: "", stop: START };
  let last = 0;
  const losses = [];
  for await (const step of steps) {
    end = step;
    losses.push(step.loss);
    if (performance.now() - last > PAUSE) {
      postMessage({ kind: "step", about: shown, t: step.t, theta: step.theta, losses });
      last = performance.now();
    }
  }
  const hash = await thetaHash(end.theta);
  const compared = result ? compareResult({ ...end, hash }, result) : null;
  const torn = journal.byteLength - end.stop;
  postMessage({ kind: "end", about: shown, t: end.t, theta: end.theta, losses, hash, torn, result: compared });
}

/** What went wrong, as a sentence; errors that no RunError foresaw do not leave a page that waits for ever. */
function sentence(error, what) {
  return error instanceof RunError ? error.message : `${what} (${error.message}): report this, with the files`;
}

onmessage = async ({ data }) => {
  const vectors = data.kind === "vectors";
  try {
    await (vectors ? checkVectors() : replay(data));
  } catch (error) {
    const what = vectors ? "the golden vectors could not be checked" : "the run could not be rebuilt";
    postMessage({ kind: "error", text: sentence(error, what) });
  }
};
