// node vectors.mjs FILE...: how many checks of the golden vectors in these files agree, by kind, as JSON.
import { readFileSync } from "node:fs";
import { checks } from "../../docs/explorable/vectors.js";

const golden = Object.assign({}, ...process.argv.slice(2).map((path) => JSON.parse(readFileSync(path, "utf8"))));
const found = {};
for await (const { kind, row, agree } of checks(golden)) {
  found[kind] ??= { agree: 0, of: 0, wrong: [] };
  found[kind].of += 1;
  found[kind].agree += agree ? 1 : 0;
  if (!agree) found[kind].wrong.push(row.family ?? row.law ?? row.why ?? "");
}
console.log(JSON.stringify(found));
