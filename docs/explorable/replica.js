// Replica: the part of the page where the browser proves itself: the badge of the golden vectors, and a run that is
// rebuilt from its journal to the run's own sha256.
//
// Tests: tests/test_explorable.py, in a browser.

import { KINDS } from "./vectors.js";
import { chart, readable } from "./charts.js";
import { palette, rgb, surface } from "./canvas.js";

const FILES = ["config.toml", "journal.rbd", "result.json"];
const byId = (id) => document.getElementById(id);
let replaying = null; // the worker of the run that is being rebuilt

function startWorker() {
  return new Worker(new URL("worker.js", import.meta.url), { type: "module" });
}

// The badge

function showVectors({ found, of, done }) {
  const agree = Object.values(found).reduce((sum, kind) => sum + kind.agree, 0);
  const badge = byId("badge");
  const state = done ? (agree === of ? "good" : "bad") : "busy";
  badge.dataset.state = state;
  badge.textContent = done ? `${agree} of ${of} golden vectors agree` : `checking golden vectors: ${agree} of ${of}`;
  if (!done) return;
  byId("vectors").replaceChildren(
    ...Object.entries(found).map(([kind, { agree: same, of: all }]) => {
      const row = document.createElement("tr");
      for (const [tag, text] of [["th", KINDS[kind]], ["td", `${same} of ${all}`]]) {
        row.append(Object.assign(document.createElement(tag), { textContent: text }));
      }
      row.firstChild.scope = "row";
      row.lastChild.dataset.state = same === all ? "good" : "bad";
      return row;
    }),
  );
}

/** Say that the vectors could not be checked, and why. */
function showNoVectors(text) {
  byId("badge").dataset.state = "bad";
  byId("badge").textContent = "golden vectors could not be checked";
  byId("badge").title = text;
}

/** Check this browser against the golden vectors. */
export function checkVectors() {
  const worker = startWorker();
  worker.onmessage = ({ data }) => {
    if (data.kind === "error") showNoVectors(data.text);
    else showVectors(data);
    if (data.done) worker.terminate();
  };
  worker.onerror = ({ message }) => showNoVectors(message);
  worker.postMessage({ kind: "vectors" });
}

// The weights of a run

const COLUMNS = 16;
const SHOWN = 64; // hidden units

/** The weights from all pixels to each of the first hidden units, a small picture each; nothing for other shapes. */
function drawWeights(canvas, theta, [inputs, hidden]) {
  const { context, width } = surface(canvas);
  const side = Math.sqrt(inputs);
  if (!Number.isInteger(side)) return;
  const units = Math.min(hidden, SHOWN);
  const cell = width / COLUMNS;
  const pixel = (cell - 4) / side;
  const most = theta.subarray(0, inputs * hidden).reduce((found, w) => Math.max(found, Math.abs(w)), 1e-9);
  const { card, minus, plus } = palette();
  const shades = { low: rgb(minus), middle: rgb(card), high: rgb(plus) };
  for (let unit = 0; unit < units; unit++) {
    const [left, top] = [(unit % COLUMNS) * cell + 2, Math.floor(unit / COLUMNS) * cell + 2];
    for (let i = 0; i < inputs; i++) {
      context.fillStyle = shade(theta[i * hidden + unit] / most, shades);
      context.fillRect(left + (i % side) * pixel, top + Math.floor(i / side) * pixel, pixel + 0.5, pixel + 0.5);
    }
  }
}

/** A colour for a value from -1 to 1. */
function shade(value, { low, middle, high }) {
  const end = value < 0 ? low : high;
  const strength = Math.min(1, 1.4 * Math.abs(value));
  return `rgb(${middle.map((channel, c) => Math.round(channel + (end[c] - channel) * strength)).join()})`;
}

// A run

let lastShown = null;

/** Draw the run again, as after a change of size or theme. */
export function drawReplica() {
  if (!lastShown) return;
  const { theta, losses, about } = lastShown;
  chart(byId("replica-loss"), [{ colour: palette().rbd, values: losses, per: 1 }]);
  drawWeights(byId("weights"), theta, about.layers);
}

function showStep(message) {
  const { t, about } = message;
  lastShown = message;
  const sent = `${about.workers} × ${about.d} coefficients a step`;
  byId("replica-about").textContent =
    `${about.net} on ${about.data}, D = ${readable(about.D)}, ${about.method} with ${about.family} directions, ` +
    `seed ${about.seed}: ${sent}, a journal of ${readable(about.bytes / 1000)} kB.`;
  byId("replica-state").textContent = `step ${t}`;
  byId("replica-picture").hidden = false;
  drawReplica();
}

/** What the sha256 at the end says, and whether it is the run's own. */
function verdictOf({ result, t }) {
  if (!result) return ["busy", "choose result.json too, and this sha256 is compared with the run's own"];
  if (result.step !== t) return ["busy", `result.json has the sha256 of step ${result.step}, an earlier one`];
  return ["good", "the run's own sha256: this browser holds the same weights, to the bit"];
}

function showEnd(message) {
  showStep(message);
  const { hash, t, torn } = message;
  const [state, text] = verdictOf(message);
  byId("verdict").dataset.state = state;
  byId("verdict").textContent = text;
  byId("sha256").textContent = hash;
  byId("replica-state").textContent = `${t} steps rebuilt${torn ? ", an incomplete record left out" : ""}`;
}

/** One sentence in place of the run. */
function showError(text) {
  lastShown = null;
  byId("replica-picture").hidden = true;
  byId("replica-about").textContent = "";
  byId("sha256").textContent = "";
  byId("verdict").dataset.state = "bad";
  byId("verdict").textContent = text;
}

const SHOW = { step: showStep, end: showEnd, error: ({ text }) => showError(text) };

/** Rebuild a run from the contents of its files. */
function rebuild({ config, journal, result }) {
  replaying?.terminate();
  replaying = startWorker();
  byId("sha256").textContent = "";
  byId("verdict").dataset.state = "busy";
  byId("verdict").textContent = "rebuilding …";
  replaying.onmessage = ({ data }) => SHOW[data.kind](data);
  replaying.onerror = ({ message }) => showError(`the run could not be rebuilt (${message}): reload the page`);
  replaying.postMessage({ kind: "replay", config, journal, result });
}

/** Rebuild the run whose files these are; others are ignored. */
async function rebuildFiles(files) {
  const found = Object.fromEntries(files.filter(({ name }) => FILES.includes(name)).map((file) => [file.name, file]));
  const missing = FILES.slice(0, 2).filter((name) => !found[name]);
  if (missing.length) {
    showError(`${missing.join(" and ")} is missing, expected config.toml and journal.rbd of one run: choose both`);
    return;
  }
  const [config, journal] = await Promise.all([found["config.toml"].text(), found["journal.rbd"].arrayBuffer()]);
  rebuild({ config, journal, result: await found["result.json"]?.text() });
}

async function rebuildExample() {
  const get = (name) => fetch(new URL(`example/${name}`, import.meta.url));
  const [config, journal, result] = await Promise.all(FILES.map(get));
  rebuild({ config: await config.text(), journal: await journal.arrayBuffer(), result: await result.text() });
}

/** The files that were dropped; of a folder, those in it. */
async function droppedFiles({ items, files }) {
  const entries = Array.from(items ?? [], (item) => item.webkitGetAsEntry?.()).filter((entry) => entry?.isDirectory);
  if (!entries.length) return [...files];
  const inside = await new Promise((done, failed) => entries[0].createReader().readEntries(done, failed));
  const plain = inside.filter((entry) => entry.isFile);
  return Promise.all(plain.map((entry) => new Promise((done, failed) => entry.file(done, failed))));
}

/** Wire up the section. */
export function startReplica() {
  byId("example").addEventListener("click", rebuildExample);
  byId("files").addEventListener("change", ({ target }) => rebuildFiles([...target.files]));
  const zone = byId("drop");
  zone.addEventListener("dragover", (event) => {
    event.preventDefault();
    zone.classList.add("over");
  });
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", async (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    rebuildFiles(await droppedFiles(event.dataTransfer));
  });
}
