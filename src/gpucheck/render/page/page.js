"use strict";
// The page is whole without this: it adds a search over a fleet's nodes.
for (const box of document.querySelectorAll(".search")) {
  const input = box.querySelector("input"), told = box.querySelector("output");
  const part = box.closest("section");
  const rows = Array.from(part.querySelectorAll("tr.node"));
  const said = new Map(rows.map(one => [one, one.textContent.toLowerCase()]));
  box.hidden = false;
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = one => words.every(word => said.get(one).includes(word));
    let shown = 0;
    for (const row of rows) { row.hidden = !fits(row); shown += !row.hidden; }
    told.textContent = words.length ? `${shown} of ${rows.length} nodes` : "";
  });
}
