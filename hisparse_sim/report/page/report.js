// The timelines and latencies of a report.

const colourOf = (index) => (index % 7) + 1;
const [timeUnit, timeScale] = ((end) => {
  for (const [unit, scale] of [["days", 86400], ["h", 3600], ["min", 60]]) if (end >= 5 * scale) return [unit, scale];
  return end < 0.5 ? ["ms", 1e-3] : ["s", 1];
})(Math.max(0, ...DATA.runs.map((run) => run.end_s)));

// A time, with as many digits as its neighbours a fortieth of `width` away need to differ.
function time(x, width) {
  const step = (width || 1) / 10 / timeScale;
  const digits = Math.min(6, Math.max(0, Math.ceil(1 - Math.log10(step || 1))));
  return `${Number((x / timeScale).toFixed(digits)).toLocaleString("en-US", { maximumFractionDigits: 6 })} ${timeUnit}`;
}

const timelines = new Domain(0, Math.max(1e-3, ...DATA.runs.map((run) => run.end_s)), { format: time });
timelines.scale = timeScale;
const place = document.getElementById("timelines");

function points(run, key, more) {
  const curve = run.curves[key];
  if (!curve) return null;
  return { x: curve.mean.map((_, i) => (i + 0.5) * run.dt_s), y: curve.mean, low: curve.low, high: curve.high, dt: run.dt_s, ...more };
}

// One run: a chart a panel. Several: a chart a quantity, with a line a run.
function drawTimelines(only) {
  place.replaceChildren();
  timelines.charts = [];
  const runs = only === null ? DATA.runs : [DATA.runs[only]];
  for (const panel of DATA.panels) {
    const make = (title, lines) => {
      const known = lines.filter((line) => line && line.y.some((v) => v));
      if (known.length) new Chart(place, { ...panel, title, lines: known, domain: timelines });
    };
    if (runs.length === 1)
      make(panel.title, panel.lines.map((l) => points(runs[0], l.key, { name: l.name, colour: l.colour })));
    else if (panel.together)
      for (const l of panel.lines) {
        const title = panel.lines.length > 1 ? `${panel.title}: ${l.name}` : panel.title;
        make(title, runs.map((run, i) => points(run, l.key, { name: run.name, colour: colourOf(i), dash: DASHES[i % DASHES.length] })));
      }
  }
  if (!place.children.length) place.append(element("p", {}, "No step was taken, so there is nothing over time."));
}

const chips = document.getElementById("runs");
if (DATA.runs.length > 1) {
  const choices = [["All runs", null], ...DATA.runs.map((run, i) => [run.name, i])];
  for (const [name, only] of choices) {
    const chip = element("button", { type: "button", "aria-pressed": String(only === null) }, name);
    chip.addEventListener("click", () => {
      for (const other of chips.children) other.setAttribute("aria-pressed", String(other === chip));
      drawTimelines(only);
    });
    chips.append(chip);
  }
}

document.getElementById("tools").hidden = false;
const doing = {
  in: () => timelines.zoom(2), out: () => timelines.zoom(0.5), all: () => timelines.reset(),
  left: () => timelines.pan(-0.5), right: () => timelines.pan(0.5),
};
for (const button of document.querySelectorAll(".zoom button")) button.addEventListener("click", doing[button.dataset.do]);
timelines.onchange = () => {
  const [a, b] = timelines.shown;
  document.getElementById("window").textContent = timelines.zoomed ? `${time(a, b - a)} to ${time(b, b - a)}` : "";
};

drawTimelines(null);
for (const { title, unit, lines } of DATA.latencies) {
  const format = (x) => `${short(x)} ${unit}`;
  const all = lines.flatMap((line) => [line.x[0], line.x[line.x.length - 1]]);
  const low = Math.min(...all), high = Math.max(...all), log = low > 0 && high >= 5 * low;
  const domain = log ? new Domain(low / 1.1, high * 1.1, { log, format }) : new Domain(0, high * 1.05 || 1, { format });
  const named = lines.map((line) => ({ ...line, i: DATA.runs.findIndex((run) => run.name === line.name) }));
  const drawn = named.map((line) => ({
    ...line, name: line.name || "requests", colour: colourOf(line.i), dash: DASHES[line.i % DASHES.length], dt: Infinity,
  }));
  new Chart(document.getElementById("latencies"), { title, unit: "% of requests", lines: drawn, domain, top: 104, step: true });
  redrawers.push(() => domain.draw());
}
redrawers.push(() => { for (const chart of timelines.charts) chart.draw(); });
