// Keys: the part of the page that shows how a seed becomes directions, number by number.
//
// Tests: tests/test_explorable.py, in a browser.

import { STREAMS, foldIn, rootKey, words } from "./prng.js";
import { direction, parseFamily } from "./families.js";
import { wordHex } from "./bytes.js";
import { palette, rgb, surface } from "./canvas.js";

const DIRECTIONS = 12;
const ELEMENTS = 64; // a power of two: srht is then orthogonal
const byId = (id) => document.getElementById(id);

/** The seed that a field holds, whatever was typed: a whole number from 0 to 2^32 - 1. */
export function seedIn(field) {
  return Math.min(Math.max(0, Math.floor(Number(field.value) || 0)), 2 ** 32 - 1);
}

/** Each number that is folded in, with the key after it. */
function derivation(seed, step) {
  let key = rootKey(seed);
  const rows = [[`seed ${seed}`, key]];
  const folded = [["stream “bases”", STREAMS.bases], [`step ${step}`, step], ["worker 0", 0], ["compartment 0", 0]];
  for (const [name, n] of folded) {
    key = foldIn(key, n);
    rows.push([name, key]);
  }
  return rows;
}

function showKeys(rows) {
  byId("derivation").replaceChildren(
    ...rows.map(([name, key]) => {
      const item = document.createElement("li");
      item.append(Object.assign(document.createElement("span"), { textContent: name }));
      item.append(Object.assign(document.createElement("code"), { textContent: Array.from(key, wordHex).join(" ") }));
      return item;
    }),
  );
}

function drawDirections(key, family) {
  const { context, width, height } = surface(byId("directions"));
  const { minus, card, plus } = palette();
  const [low, middle, high] = [minus, card, plus].map(rgb);
  const [w, h] = [width / ELEMENTS, height / DIRECTIONS];
  for (let i = 0; i < DIRECTIONS; i++) {
    direction(family, key, i, ELEMENTS, DIRECTIONS).forEach((value, j) => {
      const strength = Math.min(1, Math.abs(value) / 2);
      const end = value < 0 ? low : high;
      context.fillStyle = `rgb(${middle.map((c, n) => Math.round(c + (end[n] - c) * strength)).join()})`;
      context.fillRect(j * w, i * h, w - 0.5, h - 1.5);
    });
  }
}

/** Show what the controls say. */
export function drawKeys() {
  const seed = seedIn(byId("keys-seed"));
  const step = Number(byId("keys-step").value);
  const family = parseFamily(byId("keys-family").value);
  byId("keys-step-value").textContent = step;
  const rows = derivation(seed, step);
  const key = rows.at(-1)[1];
  showKeys(rows);
  drawDirections(key, family);
  const first = Array.from(words(key, 0, 0, 1), wordHex).join(" ");
  const entries = Array.from(direction(family, key, 0, ELEMENTS, DIRECTIONS).subarray(0, 4), (x) => x.toPrecision(6));
  byId("first-words").textContent = `threefry(key, (0, 0)) = ${first}`;
  byId("first-entries").textContent = `φ₀ = ${entries.join(", ")}, …`;
}

/** Wire up the section. */
export function startKeys() {
  for (const id of ["keys-seed", "keys-step", "keys-family"]) byId(id).addEventListener("input", drawKeys);
  drawKeys();
}
