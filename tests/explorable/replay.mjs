// node replay.mjs FOLDER...: rebuild each run from its journal; a line of JSON with its hash, or with the sentence.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { RunError, compareResult, openRun, thetaHash } from "../../docs/explorable/journal.js";

async function rebuild(folder) {
  const read = (name) => readFileSync(join(folder, name));
  const { run, steps } = await openRun(read("config.toml").toString(), new Uint8Array(read("journal.rbd")));
  let last = { t: 0, theta: run.theta0, chain: "" };
  const losses = [];
  for await (const step of steps) {
    losses.push(step.loss);
    last = step;
  }
  const hash = await thetaHash(last.theta);
  compareResult({ ...last, hash }, read("result.json").toString());
  return { t: last.t, sha256: hash, chain: last.chain, losses };
}

for (const folder of process.argv.slice(2)) {
  try {
    console.log(JSON.stringify(await rebuild(folder)));
  } catch (error) {
    if (!(error instanceof RunError)) throw error;
    console.log(JSON.stringify({ error: error.message }));
  }
}
