// Page: the controls, the clock, and what is drawn at each frame. Everything that is computed is in the other files.
//
// Tests: tests/test_explorable.py, in a browser.

import { FAMILIES } from "./families.js";
import { LANDSCAPES, makeLandscape } from "./landscape.js";
import { Descent } from "./descent.js";
import { LESSONS, RATES } from "./lessons.js";
import { camera, describe, drawView, viewOf } from "./views.js";
import { chart, readable } from "./charts.js";
import { hasSize, onChange, palette } from "./canvas.js";
import { drawKeys, seedIn, startKeys } from "./keys.js";
import { checkVectors, drawReplica, startReplica } from "./replica.js";

const METHODS = ["rbd", "fpd", "sgd"];
const MEMORIES = [0, 0.5, 0.8, 0.9, 0.95, 0.99];
const SPEEDS = [1, 2, 4, 10, 20, 30, 60, 300];
const MOST_STEPS = 3000;
const MOST_DIRECTIONS = 200;
const BUDGET = 9; // milliseconds of a frame that steps may take
const CALM = matchMedia("(prefers-reduced-motion: reduce)").matches;
const byId = (id) => document.getElementById(id);

const CAPTIONS = {
  map: "The whole landscape from above, dark where it is low. The dashed line is the random direction of this step.",
  space: "Drag, or use arrow keys, to turn it. Curves are places of equal loss; the patch is the plane of this step.",
  plane: "A slice through all dimensions: the plane that holds the way straight down and the step. Dark is low.",
  network: "The colour of each place is the class that the network sees there; the dots are the data.",
};

let descents = {}; // by method
let playing = false;
let due = 0; // steps that the clock owes
let before = 0; // time of the last frame
let stale = true; // whether there is something new to draw
const frames = []; // the last ones: when each began and how long its work took

// Settings: what the controls say

function settings() {
  const { Ds } = LANDSCAPES[byId("landscape").value];
  const D = Ds[byId("D").value];
  const d = Math.min(Number(byId("d").value), D);
  const eta = 2 ** Number(byId("eta").value);
  const tied = byId("tied").checked;
  return {
    landscape: byId("landscape").value,
    D,
    d,
    keep: byId("keep").checked,
    family: byId("family").value,
    eta,
    sgdEta: tied ? (eta * d) / D : 2 ** Number(byId("sgd-eta").value),
    tied,
    memory: MEMORIES[byId("memory").value],
    noise: Number(byId("noise").value),
    seed: seedIn(byId("seed")),
  };
}

/** Set the controls as a lesson has them. */
function setControls({ landscape, D, d, keep, family, eta, memory, noise, seed, speed, tied }) {
  byId("landscape").value = landscape;
  limitD();
  byId("D").value = LANDSCAPES[landscape].Ds.indexOf(D);
  limitDirections();
  byId("d").value = d;
  byId(keep ? "keep" : "redraw").checked = true;
  byId("family").value = family;
  byId("eta").value = eta;
  byId("memory").value = MEMORIES.indexOf(memory);
  byId("noise").value = noise;
  byId("seed").value = seed;
  byId("speed").value = SPEEDS.indexOf(speed);
  byId("tied").checked = tied;
}

function limitD() {
  byId("D").max = LANDSCAPES[byId("landscape").value].Ds.length - 1;
}

function limitDirections() {
  byId("d").max = Math.min(LANDSCAPES[byId("landscape").value].Ds[byId("D").value], MOST_DIRECTIONS);
}

/** Show each control's value beside it. */
function showValues() {
  const { D, d, eta, sgdEta, memory, noise, tied } = settings();
  const speed = SPEEDS[byId("speed").value];
  const values = { D, d, eta: readable(eta), "sgd-eta": readable(sgdEta), memory, noise, speed };
  for (const [id, value] of Object.entries(values)) {
    byId(`${id}-value`).textContent = value;
    byId(id).setAttribute("aria-valuetext", value);
  }
  byId("sgd-eta").disabled = tied;
}

// The descents

/** Start again from the top. */
function reset() {
  const chosen = settings();
  const landscape = makeLandscape(chosen.landscape, chosen.D, chosen.seed, chosen.noise);
  descents = Object.fromEntries(
    METHODS.map((method) => [method, new Descent(method, landscape, { ...chosen, eta: etaOf(method, chosen) })]),
  );
  byId("view-caption").textContent = CAPTIONS[viewOf(landscape)];
  due = 0;
  stale = true;
}

function etaOf(method, { eta, sgdEta }) {
  return method === "sgd" ? sgdEta : eta;
}

/** Rates and memory change while the point is on its way. */
function adjust() {
  const chosen = settings();
  for (const method of METHODS) {
    descents[method].eta = Math.fround(etaOf(method, chosen));
    descents[method].beta = Math.fround(chosen.memory);
  }
  stale = true;
}

function step() {
  for (const method of METHODS) descents[method].step();
  stale = true;
  if (ended()) setPlaying(false);
}

/** Whether the point that is shown goes no further. */
function ended() {
  return shown().diverged || shown().arrived || shown().t >= MOST_STEPS;
}

/** The descent that the view follows. */
function shown() {
  return descents[byId("keep").checked ? "fpd" : "rbd"];
}

// What is drawn

function lines(field, per) {
  const colours = palette();
  return METHODS.toReversed().map((method) => ({
    colour: colours[method],
    values: descents[method][field],
    per: per ? descents[method].sends : 1,
    width: method === shown().method ? 3 : 1.75,
  }));
}

/** The mean of the last values, so that a noisy line can be read. */
function smoothed(values, window = 20) {
  let sum = 0;
  return values.map((value, t) => {
    sum += value - (t >= window ? values[t - window] : 0);
    return sum / Math.min(t + 1, window);
  });
}

function drawCharts() {
  const { D, d } = settings();
  const followed = shown();
  chart(byId("loss"), lines("losses", byId("by-numbers").checked), { log: true });
  const expected = Math.sqrt(d / D);
  const { ink, [followed.method]: colour, line } = palette();
  const raw = { colour: line, values: followed.cosines, per: 1, width: 1.5 };
  const mean = { colour, values: smoothed(followed.cosines), per: 1, width: 3 };
  const reference = { value: expected, text: `√(d/D) = ${expected.toFixed(2)}`, colour: ink };
  chart(byId("cosine"), [raw, mean], { range: [Math.min(0, ...followed.cosines.slice(-500)), 1], reference });
}

function showCounters() {
  const { sgd } = descents;
  const followed = shown();
  const sent = { own: followed.t * followed.sends, sgd: sgd.t * sgd.sends };
  byId("sent").textContent = readable(sent.own);
  byId("sent-sgd").textContent = readable(sent.sgd);
  byId("sent-name").textContent = followed.method.toUpperCase();
  byId("sent-bar").style.inlineSize = `${(100 * followed.sends) / sgd.sends}%`;
  byId("sent-bar").dataset.method = followed.method;
  const ratio = sgd.sends / followed.sends;
  byId("sent-ratio").textContent = ratio > 1 ? `${readable(ratio)} times fewer` : "as many";
  byId("step-count").textContent = `step ${followed.t}`;
  const loss = followed.losses.at(-1).toPrecision(3);
  byId("loss-value").textContent = followed.arrived ? `loss ${loss}: arrived` : `loss ${loss}`;
  byId("warning").hidden = !followed.diverged;
}

function draw() {
  drawView(byId("view"), { shown: shown(), sgd: descents.sgd });
  drawCharts();
  showCounters();
  stale = false;
}

let describedAt = 0;

/** Tell readers who do not see the picture, but not at every frame. */
function showDescription(now) {
  if (playing && now - describedAt < 2000) return;
  describedAt = now;
  byId("view").setAttribute("aria-label", describe(shown()));
}

// The clock

function frame(now) {
  const elapsed = Math.min(now - before, 100);
  before = now;
  if (playing) {
    due += (elapsed / 1000) * SPEEDS[byId("speed").value];
    const start = performance.now();
    for (; due >= 1 && playing; due--) {
      step();
      if (performance.now() - start > BUDGET) due = 1;
    }
    if (viewOf(shown().landscape) === "space" && !CALM) {
      camera.around += elapsed / 6000;
      stale = true;
    }
  }
  if (stale && hasSize(byId("view"))) {
    draw();
    showDescription(now);
  }
  frames.push({ began: now, work: performance.now() - now });
  if (frames.length > 60) frames.shift();
  requestAnimationFrame(frame);
}

function setPlaying(value) {
  playing = value;
  byId("play").textContent = playing ? "Pause" : "Play";
  byId("play").setAttribute("aria-pressed", String(playing));
}

/** Means over the last frames, for benchmarks/explorable.py and the curious. */
globalThis.explorable = {
  framesPerSecond: () => (1000 * (frames.length - 1)) / (frames.at(-1).began - frames[0].began),
  frameWork: () => frames.reduce((sum, { work }) => sum + work, 0) / frames.length,
};

// Wiring

function choose(number) {
  const { title, text, settings: chosen } = LESSONS[number];
  setControls(chosen);
  byId("lesson-title").textContent = title;
  byId("lesson-text").textContent = text;
  for (const button of byId("lessons").querySelectorAll("button")) {
    button.setAttribute("aria-current", String(Number(button.dataset.lesson) === number));
  }
  showValues();
  reset();
}

function startLessons() {
  LESSONS.forEach(({ title }, number) => {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.lesson = number;
    button.append(Object.assign(document.createElement("span"), { textContent: number + 1 }), title);
    button.addEventListener("click", () => {
      choose(number);
      setPlaying(true);
    });
    const item = document.createElement("li");
    item.append(button);
    byId("lessons").append(item);
  });
}

/** What follows when a control is moved: some change the landscape, some only the next step. */
function startControls() {
  for (const family of FAMILIES) byId("family").append(new Option(family));
  for (const family of FAMILIES) byId("keys-family").append(new Option(family));
  for (const [name, { title }] of Object.entries(LANDSCAPES)) byId("landscape").append(new Option(title, name));
  byId("landscape").addEventListener("input", () => {
    limitD();
    limitDirections();
    byId("eta").value = RATES[byId("landscape").value];
    byId("noise").value = 0;
  });
  byId("D").addEventListener("input", limitDirections);
  for (const id of ["landscape", "D", "d", "family", "noise", "seed"]) byId(id).addEventListener("input", reset);
  for (const id of ["eta", "sgd-eta", "tied", "memory"]) byId(id).addEventListener("input", adjust);
  for (const id of ["keep", "redraw", "by-steps", "by-numbers"]) {
    byId(id).addEventListener("input", () => (stale = true));
  }
  byId("controls").addEventListener("input", showValues);
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("speed").addEventListener("input", showValues);
}

function startTransport() {
  byId("play").addEventListener("click", () => {
    if (!playing && ended()) reset();
    setPlaying(!playing);
  });
  byId("step").addEventListener("click", () => {
    setPlaying(false);
    step();
  });
  byId("reset").addEventListener("click", () => {
    setPlaying(false);
    reset();
  });
}

function turn(around, above) {
  camera.around += around;
  camera.above = Math.min(1.5, Math.max(-1.5, camera.above + above));
  stale = true;
}

function startCamera() {
  const view = byId("view");
  view.addEventListener("pointermove", (event) => {
    if (event.buttons & 1 && viewOf(shown().landscape) === "space") turn(event.movementX / 120, event.movementY / 120);
  });
  const keys = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] };
  view.addEventListener("keydown", (event) => {
    if (!(event.key in keys) || viewOf(shown().landscape) !== "space") return;
    event.preventDefault();
    turn(...keys[event.key]);
  });
}

/** Everything is drawn again when its size or the theme changes. */
function redraw() {
  stale = true;
  drawKeys();
  drawReplica();
}

startLessons();
startControls();
startTransport();
startCamera();
choose(0);
startKeys();
startReplica();
checkVectors();
onChange(redraw);
setPlaying(!CALM);
requestAnimationFrame(frame);
