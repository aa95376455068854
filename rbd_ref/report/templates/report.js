// The values under the pointer. A figure carries its two scales as attributes, which turn pixels back into numbers.
for (const svg of document.querySelectorAll("figure svg")) {
  const box = svg.nextElementSibling, cursor = svg.querySelector(".cursor");
  const [x, y] = [svg.dataset.x, svg.dataset.y].map(text => text.split(" ").map(Number));
  const value = ([low, high, start, end, log], pixel) => {
    const part = (pixel - start) / (end - start);
    const number = log ? low * (high / low) ** part : low + part * (high - low);
    return number.toLocaleString("en", {maximumSignificantDigits: 4});
  };
  const runs = [...svg.querySelectorAll(".run")].map(run => {
    run.querySelector("title").remove();
    const pairs = run.querySelector("polyline").getAttribute("points").split(" ");
    return {run, points: pairs.map(pair => pair.split(",").map(Number))};
  });
  const line = (colour, ...texts) => {
    for (const text of ["", ...texts]) box.appendChild(document.createElement("span")).textContent = text;
    box.children[box.children.length - 3].className = colour;
  };
  const move = event => {
    const frame = svg.getBoundingClientRect();
    const at = Math.min(x[3], Math.max(x[2], (event.clientX - frame.left) * svg.viewBox.baseVal.width / frame.width));
    cursor.setAttribute("transform", `translate(${at} 0)`);
    svg.classList.add("read");
    box.hidden = false;
    box.classList.toggle("left", at > (x[2] + x[3]) / 2);
    box.replaceChildren();
    line("", svg.dataset.label, value(x, at));
    for (const {run, points} of runs) {
      const near = points.reduce((a, b) => Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a);
      const {number, name} = run.dataset;
      if (points[0][0] < at + 12 && points.at(-1)[0] > at - 12) line(`dot r${number}`, `${number} ${name}`, value(y, near[1]));
    }
  };
  svg.addEventListener("pointermove", move);
  svg.addEventListener("pointerdown", move);
  svg.addEventListener("pointerleave", () => { box.hidden = true; svg.classList.remove("read"); });
}

// On paper everything is unfolded.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(one => { one.open = true; }));
