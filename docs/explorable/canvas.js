// Canvas: what all pictures of the page share: sharp surfaces of the right size, the colours of the theme, arrows.
//
// Tests: tests/test_explorable.py, in a browser.

const NAMES = ["ink", "soft", "line", "paper", "card", "rbd", "fpd", "sgd", "low", "high", "minus", "plus"];
let colours = null;
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  colours = null;
  redraw();
});

/** The colours of the theme, by the names of the style sheet's variables. */
export function palette() {
  if (!colours) {
    const style = getComputedStyle(document.documentElement);
    colours = Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  }
  return colours;
}

/** A colour as red, green and blue. */
export function rgb(colour) {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

const sizes = new WeakMap();
let redraw = () => {};
const observer = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) sizes.set(target, [contentRect.width, contentRect.height]);
  redraw();
});

/** Name what draws everything again when the size of a canvas or the theme changes. */
export function onChange(draw) {
  redraw = draw;
}

/** Width and height of a canvas on the page, in CSS pixels. */
function sizeOf(canvas) {
  if (!sizes.has(canvas)) {
    const { width, height } = canvas.getBoundingClientRect();
    sizes.set(canvas, [width, height]);
    observer.observe(canvas);
  }
  return sizes.get(canvas);
}

/** Whether a canvas can be seen: in a frame that has no place on its page yet, it has no size. */
export function hasSize(canvas) {
  return Math.min(...sizeOf(canvas)) >= 1;
}

/** An empty surface of the canvas's size on the page, in CSS pixels, drawn at the screen's resolution. */
export function surface(canvas) {
  const [width, height] = sizeOf(canvas);
  const ratio = Math.min(devicePixelRatio, 2);
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.lineJoin = "round";
  context.font = "12px system-ui, sans-serif";
  return { context, width, height };
}

/** A line through points [x, y]. */
export function polyline(context, points, colour, width = 2, dash = []) {
  context.beginPath();
  points.forEach(([x, y], n) => (n ? context.lineTo(x, y) : context.moveTo(x, y)));
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.setLineDash(dash);
  context.stroke();
  context.setLineDash([]);
}

/** A disc with a rim. */
export function disc(context, [x, y], radius, colour, rim) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fillStyle = colour;
  context.fill();
  context.strokeStyle = rim;
  context.lineWidth = 1.5;
  context.stroke();
}

/** An arrow; nothing where it would be too short to be seen. */
export function arrow(context, from, to, colour, width = 3) {
  const [dx, dy] = [to[0] - from[0], to[1] - from[1]];
  const length = Math.hypot(dx, dy);
  if (length < 3) return;
  const head = Math.min(11, length * 0.6);
  const [ux, uy] = [dx / length, dy / length];
  polyline(context, [from, [to[0] - ux * head, to[1] - uy * head]], colour, width);
  context.beginPath();
  context.moveTo(to[0], to[1]);
  context.lineTo(to[0] - head * ux - head * 0.5 * uy, to[1] - head * uy + head * 0.5 * ux);
  context.lineTo(to[0] - head * ux + head * 0.5 * uy, to[1] - head * uy - head * 0.5 * ux);
  context.fillStyle = colour;
  context.fill();
}

/** Text with a halo of the card's colour, so that it can be read on anything. */
export function label(context, text, x, y, colour, align = "left") {
  context.textAlign = align;
  context.lineWidth = 4;
  context.strokeStyle = palette().card;
  context.strokeText(text, x, y);
  context.fillStyle = colour;
  context.fillText(text, x, y);
}

const BANDS = 14;
const SHARP = 400; // pixels along a side of a picture of bands, at least
const scratch = document.createElement("canvas");

/** Colours from low to high, one for each band, as pixels of a little-endian image. */
function bandColours(low, high) {
  return Uint32Array.from({ length: BANDS + 1 }, (_, b) => {
    const [red, green, blue] = low.map((channel, c) => Math.round(channel + ((high[c] - channel) * b) / BANDS));
    return (255 << 24) | (blue << 16) | (green << 8) | red;
  });
}

/**
 * Fill a rectangle with bands of height: an n x n grid, row by row from the top, from 0 (low) to 1 (high).
 * Between the places of the grid, heights are interpolated: first between two rows, then along them.
 */
export function bands(context, n, heights, width, height, [low, high] = [rgb(palette().low), rgb(palette().high)]) {
  const between = Math.ceil(SHARP / (n - 1));
  const fine = between * (n - 1) + 1;
  const colours = bandColours(low, high);
  const image = new ImageData(fine, fine);
  const pixels = new Uint32Array(image.data.buffer);
  for (let y = 0, at = 0; y < fine; y++) {
    const i = Math.min(Math.floor(y / between), n - 2);
    const fy = y / between - i;
    const row = (j) => BANDS * (heights[i * n + j] * (1 - fy) + heights[(i + 1) * n + j] * fy) + 0.5;
    let left = row(0);
    pixels[at++] = colours[Math.floor(left)];
    for (let j = 1; j < n; j++) {
      const slope = (row(j) - left) / between;
      for (let x = 1; x <= between; x++) pixels[at++] = colours[Math.floor(left + slope * x)];
      left += slope * between;
    }
  }
  scratch.width = fine;
  scratch.height = fine;
  scratch.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingQuality = "high";
  context.drawImage(scratch, 0, 0, width, height);
}
