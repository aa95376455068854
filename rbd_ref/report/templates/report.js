// What a reader can do: hide, show and filter groups of runs, sort the table, and read values under the pointer.
// A figure carries its two scales as attributes, which turn pixels back into numbers.
const all = (query, root = document) => [...root.querySelectorAll(query)];
const COLOURS = 7, DISTANCE = 14;
const [TOP, BOTTOM, MARGIN] = [14, 254, 416];
const wanted = {};  // the place of a filter: the place of the value that is chosen in it
const hidden = new Set();  // the numbers of groups that are not shown

// Labels in the margin: apart, around the middle of those that are too close, inside the frame (as in figures.py).
const pushed = (heights, sign, limit) => {
  const order = heights.map((_, i) => i).sort((a, b) => heights[a] - heights[b]), placed = [...heights];
  let bound = sign * limit;
  for (const i of sign > 0 ? order : order.reverse()) {
    placed[i] = sign * Math.max(sign * placed[i], bound);
    bound = sign * placed[i] + DISTANCE;
  }
  return placed;
};
const spread = heights => {
  const down = pushed(heights, 1, -Infinity), up = pushed(heights, -1, Infinity);
  return pushed(pushed(down.map((a, i) => (a + up[i]) / 2), 1, TOP), -1, BOTTOM);
};
const placeLabels = svg => {
  const shown = all(".label", svg).filter(label => !label.closest(".off")).reverse();
  const curves = shown.filter(label => !label.closest(".reference"));
  const room = curves.length > 2 * COLOURS ? COLOURS : 2 * COLOURS;
  curves.forEach((label, i) => label.classList.toggle("spare", i >= room));
  const roomy = shown.filter(label => !label.matches(".spare")), heights = spread(roomy.map(label => Number(label.dataset.y)));
  roomy.forEach((label, i) => {
    const {x, y} = label.dataset;
    label.querySelector("path").setAttribute("d", `M${x} ${y}H${MARGIN}L${MARGIN + 8} ${heights[i]}`);
    label.querySelector("text").setAttribute("y", heights[i]);
  });
};

// A line that is joined of groups keeps to those that are shown.
const joinPoints = run => {
  const points = all(".point:not(.off) circle", run).map(circle => [circle.getAttribute("cx"), circle.getAttribute("cy")]);
  run.querySelector("polyline").setAttribute("points", points.map(point => point.join(",")).join(" "));
  run.classList.toggle("off", !points.length);
  if (points.length) [run.querySelector(".label").dataset.x, run.querySelector(".label").dataset.y] = points.at(-1);
};

// Groups without a colour get one while few are shown.
const colour = section => {
  const items = all(".legend li", section);
  const shown = items.filter(item => !hidden.has(item.dataset.number));
  const own = item => item.dataset.look;
  const used = new Set(shown.map(own));
  const free = Array.from({length: 2 * COLOURS}, (_, i) => `k${i % COLOURS + 1}${i < COLOURS ? "" : " dashed"}`).filter(look => !used.has(look));
  for (const item of items) {
    const few = shown.length <= 2 * COLOURS && own(item) === "k0" && shown.includes(item);
    const look = few ? free.shift() : own(item);
    for (const one of all(`.run.r${item.dataset.number}`)) {
      one.classList.remove("dashed", ...Array.from({length: COLOURS + 1}, (_, i) => `k${i}`));
      one.classList.add(...look.split(" "));
    }
  }
};

const refresh = () => {
  hidden.clear();
  for (const item of all(".legend li")) {
    const choices = item.dataset.choices.split(" ");
    const passes = Object.entries(wanted).every(([filter, value]) => value === "" || choices[filter] === value);
    item.hidden = !passes;
    if (!passes || !item.querySelector("input").checked) hidden.add(item.dataset.number);
    all(`figure .r${item.dataset.number}, tr.r${item.dataset.number}`).forEach(one => one.classList.toggle("off", hidden.has(item.dataset.number)));
  }
  all(".reference").forEach(one => one.classList.toggle("off", one.dataset.groups.split(" ").every(number => hidden.has(number))));
  all("figure .run:has(.point)").forEach(joinPoints);
  for (const figure of all("figure")) {
    const shown = new Set(all(".plot .run:not(.off)", figure).map(run => run.dataset.number));
    figure.hidden = !shown.size;
    all(".letters li", figure).forEach(item => { item.hidden = !shown.has(item.dataset.number); });
  }
  all("section.data").forEach(section => {
    section.hidden = all(".legend li", section).every(item => item.hidden);
    colour(section);
  });
  document.querySelector(".nothing").hidden = all("section.data").some(section => !section.hidden);
  all(".plot svg").forEach(placeLabels);
};

for (const item of all(".legend li")) {
  const {number} = item.dataset, box = item.querySelector("input");
  item.dataset.look = [...item.querySelector(".key").classList].filter(name => /^(k\d|dashed)$/.test(name)).join(" ");
  box.disabled = false;
  box.addEventListener("change", refresh);
  const light = on => all(`figure .run.r${number}, figure .run:has(.point.r${number})`).forEach(one => one.classList.toggle("lit", on));
  for (const [name, on] of [["pointerenter", true], ["pointerleave", false], ["focusin", true], ["focusout", false]]) {
    item.addEventListener(name, () => light(on && !hidden.has(number)));
  }
}
for (const switches of all(".switches")) {
  switches.hidden = all("li", switches.parentElement).length < 2;
  all("button", switches).forEach(button => button.addEventListener("click", () => {
    all("li:not([hidden]) input", switches.parentElement).forEach(box => { box.checked = !!button.dataset.all; });
    refresh();
  }));
}
for (const filters of all(".filters")) {
  filters.hidden = false;
  all("select", filters).forEach((select, i) => select.addEventListener("change", () => { wanted[i] = select.value; refresh(); }));
  filters.querySelector("form").addEventListener("reset", () => {
    Object.keys(wanted).forEach(key => delete wanted[key]);
    all(".legend input").forEach(box => { box.checked = true; });
    refresh();
  });
}

// A heading sorts: numbers by size, the largest first, then texts; what is missing stays at the end.
all("thead th").forEach((head, column) => {
  const button = document.createElement("button"), body = head.closest("table").tBodies[0];
  button.type = "button";
  button.append(...head.childNodes);
  head.append(button);
  const text = row => row.cells[column].textContent.trim();
  const value = row => head.className === "number" ? parseFloat(text(row).replaceAll(",", "")) : NaN;
  button.addEventListener("click", () => {
    const down = head.ariaSort ? head.ariaSort === "ascending" : head.className === "number";
    all("th[aria-sort]").forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const order = (a, b) => {
      const [x, y] = [value(a), value(b)];
      if (isNaN(x) !== isNaN(y)) return isNaN(x) - isNaN(y);
      return (down ? -1 : 1) * (isNaN(x) ? text(a).localeCompare(text(b), "en", {numeric: true}) : x - y);
    };
    body.append(...[...body.rows].sort(order));
  });
});

// The values under the pointer, or at the arrow keys.
for (const svg of all(".plot svg")) {
  const box = svg.nextElementSibling, cursor = svg.querySelector(".cursor");
  const [x, y] = [svg.dataset.x, svg.dataset.y].map(text => text.split(" ").map(Number));
  const value = ([low, high, start, end, log], pixel) => {
    const part = (pixel - start) / (end - start);
    const number = log ? low * (high / low) ** part : low + part * (high - low);
    return number.toLocaleString("en", {maximumSignificantDigits: 4});
  };
  all("title", svg).forEach(title => title.remove());
  const points = run => run.querySelector("polyline").getAttribute("points").split(" ").map(pair => pair.split(",").map(Number));
  const line = (colours, ...texts) => {
    for (const text of ["", ...texts]) box.appendChild(document.createElement("span")).textContent = text;
    box.children[box.children.length - 3].className = colours;
  };
  let at = (x[2] + x[3]) / 2;
  const show = (pixel, height) => {
    at = Math.min(x[3], Math.max(x[2], pixel));
    cursor.setAttribute("transform", `translate(${at} 0)`);
    svg.classList.add("read");
    box.hidden = false;
    box.classList.toggle("left", at > (x[2] + x[3]) / 2);
    box.replaceChildren();
    line("", svg.dataset.label, value(x, at));
    const near = all(".run:not(.off)", svg).map(run => ({run, line: points(run)}))
      .filter(({line}) => line[0][0] < at + 12 && line.at(-1)[0] > at - 12)
      .map(({run, line}) => ({run, y: line.reduce((a, b) => Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a)[1]}));
    near.sort((a, b) => Math.abs(a.y - height) - Math.abs(b.y - height));
    for (const {run, y: place} of near.slice(0, 8).sort((a, b) => a.y - b.y)) {
      const {number, name} = run.dataset;
      line(`dot ${[...run.classList].filter(one => /^k\d$/.test(one))}`, `${number} ${name}`, value(y, place));
    }
  };
  const move = event => {
    const frame = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / frame.width;
    show((event.clientX - frame.left) * scale, (event.clientY - frame.top) * scale);
  };
  const leave = () => { box.hidden = true; svg.classList.remove("read"); };
  svg.addEventListener("pointermove", move);
  svg.addEventListener("pointerdown", move);
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", event => {
    const step = {ArrowLeft: -8, ArrowRight: 8}[event.key];
    if (!step) return;
    event.preventDefault();
    show(at + step, TOP);
  });
}
