"use strict";
// What every page has: data, theme, tables that sort, and a form for paper.

const DATA = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const redrawers = [];

function redraw() { for (const each of redrawers) each(); }

function setTheme(theme) { root.dataset.theme = theme; redraw(); }

document.getElementById("theme").addEventListener("click", () => {
  const theme = root.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("hisparse-theme", theme); } catch (e) { /* not kept, then */ }
  setTheme(theme);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
  let chosen = null;
  try { chosen = localStorage.getItem("hisparse-theme"); } catch (e) { /* none */ }
  if (!chosen) setTheme(event.matches ? "dark" : "light");
});

// Paper is white, and what is folded cannot be opened there.
let before = null;
addEventListener("beforeprint", () => {
  before = { theme: root.dataset.theme, open: [...document.querySelectorAll("details:not([open])")] };
  before.open.forEach((d) => { d.open = true; });
  setTheme("light");
});
addEventListener("afterprint", () => {
  if (!before) return;
  before.open.forEach((d) => { d.open = false; });
  setTheme(before.theme);
  before = null;
});

// A click on a heading sorts by it, a second one the other way; cells without a value come last.
function sortBy(table, index, heading) {
  const down = heading.getAttribute("aria-sort") === "ascending";
  const value = (row) => row.cells[index].dataset.v;
  const rows = [...table.tBodies[0].rows];
  const numeric = rows.every((row) => value(row) === undefined || !Number.isNaN(Number(value(row))));
  rows.sort((a, b) => {
    const x = value(a), y = value(b);
    if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
    const order = numeric ? Number(x) - Number(y) : x.localeCompare(y, "en", { numeric: true });
    return down ? -order : order;
  });
  for (const th of table.tHead.rows[0].cells) th.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  table.tBodies[0].append(...rows);
}
for (const table of document.querySelectorAll("table.sorts")) {
  [...table.tHead.rows[0].cells].forEach((heading, index) => {
    heading.querySelector("button").addEventListener("click", () => sortBy(table, index, heading));
  });
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// 1500000 is 1.5M; four digits are enough for a reader.
function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  for (const [least, unit, letter] of [[1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]]) {
    if (size >= least) return `${Number((value / unit).toPrecision(4))}${letter}`;
  }
  return String(Number(value.toPrecision(size >= 1000 ? 4 : 3)));
}
