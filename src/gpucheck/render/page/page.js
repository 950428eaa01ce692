"use strict";
// The page is whole without this: it adds a search over a fleet's nodes, and the figures under the pointer.
for (const box of document.querySelectorAll(".search")) {
  const input = box.querySelector("input"), told = box.querySelector("output");
  const part = box.closest("section");
  const rows = Array.from(part.querySelectorAll("tr.node")), cells = Array.from(part.querySelectorAll(".map g"));
  const said = new Map([...rows, ...cells].map(one => [one, one.textContent.toLowerCase()]));
  box.hidden = false;
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = one => words.every(word => said.get(one).includes(word));
    let shown = 0;
    for (const row of rows) { row.hidden = !fits(row); shown += !row.hidden; }
    for (const cell of cells) cell.classList.toggle("off", !fits(cell));
    told.textContent = words.length ? `${shown} of ${rows.length} nodes` : "";
  });
}
const text = value => Number(value.toPrecision(3)).toString();
for (const svg of document.querySelectorAll("svg.lines")) {
  const told = svg.parentElement.querySelector(".readout"), pointer = svg.querySelector(".pointer");
  const [width, height, left, right, top, bottom] = svg.dataset.paper.split(" ").map(Number);
  const [first, last, most] = svg.dataset.span.split(" ").map(Number);
  const curves = Array.from(svg.querySelectorAll("polyline"), line => ({
    name: line.dataset.name,
    points: Array.from(line.points, point => [point.x, point.y]),
  }));
  const places = [...new Set(curves.flatMap(one => one.points.map(point => point[0])))].sort((a, b) => a - b);
  let at = 0;
  const show = () => {
    const x = places[at];
    pointer.setAttribute("x1", x); pointer.setAttribute("x2", x); pointer.removeAttribute("visibility");
    const share = (x - left) / (width - left - right);
    const where = first + share * (last - first);
    const figures = curves.map(one => {
      const near = one.points.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a);
      if (Math.abs(near[0] - x) > 3) return null;
      return `${one.name ? one.name + " " : ""}${text((height - bottom - near[1]) / (height - top - bottom) * most)}`;
    }).filter(Boolean);
    told.textContent = `${svg.dataset.x} about ${text(where)}: ${figures.join(" · ")} ${svg.dataset.y}`;
  };
  const nearest = x => places.reduce((a, b, place) => Math.abs(b - x) < Math.abs(places[a] - x) ? place : a, 0);
  svg.addEventListener("pointermove", event => {
    const frame = svg.getBoundingClientRect();
    at = nearest((event.clientX - frame.left) / frame.width * width);
    show();
  });
  svg.addEventListener("keydown", event => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    at = Math.min(Math.max(at + step, 0), places.length - 1);
    show();
  });
  svg.setAttribute("tabindex", "0");
}
