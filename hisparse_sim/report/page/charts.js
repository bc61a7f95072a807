// Charts on canvas. Those that share a domain zoom together and show one cursor.

const NEAR_PX = 2.5;
const DASHES = [[], [7, 3], [2, 2], [9, 3, 2, 3], [12, 4], [4, 4], [1, 3]];

class Domain {
  // Of the x axis: all of it, and what is shown. `log`: equal ratios are equally long; `marks`: where ticks may be.
  constructor(low, high, { log = false, format = short, marks = null } = {}) {
    Object.assign(this, { all: [low, high], shown: [low, high], log, format, marks, cursor: null, charts: [], onchange: null });
  }
  to(x) { return this.log ? Math.log(x) : x; }
  from(t) { return this.log ? Math.exp(t) : t; }
  get zoomed() { return this.shown[0] > this.all[0] || this.shown[1] < this.all[1]; }
  show(low, high) {
    const [first, last] = this.all.map((x) => this.to(x));
    let a = this.to(low), b = this.to(high);
    const width = Math.min(Math.max(b - a, (last - first) * 1e-4), last - first);
    a = Math.min(Math.max((a + b - width) / 2, first), last - width);
    // Ends are exact, so that "the whole run" is that.
    this.shown = [a <= first ? this.all[0] : this.from(a), a + width >= last ? this.all[1] : this.from(a + width)];
    this.draw();
  }
  zoom(factor, at) {
    const [a, b] = this.shown.map((x) => this.to(x));
    const t = at === undefined ? (a + b) / 2 : this.to(at);
    this.show(this.from(t - (t - a) / factor), this.from(t + (b - t) / factor));
  }
  pan(share) {
    const [a, b] = this.shown.map((x) => this.to(x));
    const [first, last] = this.all.map((x) => this.to(x));
    const move = Math.min(Math.max((b - a) * share, first - a), last - b);
    this.show(this.from(a + move), this.from(b + move));
  }
  reset() { this.show(...this.all); }
  point(x) { this.cursor = x; this.draw(); }
  draw() { for (const chart of this.charts) chart.later(); if (this.onchange) this.onchange(); }
}

function ticks(low, high, most, whole = false) {
  const raw = (high - low) / Math.max(most, 1);
  const power = 10 ** Math.floor(Math.log10(raw));
  let step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  if (whole) step = Math.max(1, Math.round(step));
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

function logTicks(low, high, most) {
  const decades = Math.log10(high / low), found = [];
  if (decades < 0.7) return ticks(low, high, most);
  const digits = decades < 2.2 ? [1, 2, 5] : [1];
  const skip = digits.length > 1 ? 1 : Math.ceil(decades / most);
  for (let d = Math.floor(Math.log10(low)); d <= Math.ceil(Math.log10(high)); d += skip)
    for (const m of digits) { const x = m * 10 ** d; if (x >= low * 0.999 && x <= high * 1.001) found.push(Number(x.toPrecision(3))); }
  return found;
}

class Chart {
  // `lines`: {name, colour, dash, x, y, low, high}; `stacked`: layers; `step`: between points y stays what it was.
  constructor(parent, { title, unit, lines, domain, stacked = false, top = null, step = false, interval = 0 }) {
    Object.assign(this, { title, unit, lines, domain, stacked, top, step, interval, drag: null, pending: false });
    this.canvas = element("canvas", { tabindex: "0", role: "img" });
    this.legend = element("div", { class: "legend" });
    const caption = element("figcaption", {}, title, element("span", {}, unit ? `  ${unit}` : ""));
    this.figure = element("figure", { class: "chart" }, caption, this.legend, this.canvas);
    parent.append(this.figure);
    this.hidden = new Set();
    this.values = lines.map((line, i) => this.entry(line, i));
    this.canvas.setAttribute("aria-label", this.words());
    domain.charts.push(this);
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  words() {
    const parts = this.lines.map((line) => {
      const known = line.y.filter((v) => v !== null);
      const most = (line.high || line.y).reduce((a, v) => Math.max(a, v ?? 0), 0);
      return this.step ? line.name : `${line.name}: mean ${short(known.reduce((a, v) => a + v, 0) / (known.length || 1))}, most ${short(most)}`;
    });
    return `${this.title}${this.unit ? `, ${this.unit}` : ""}. ${parts.join("; ")}. Arrow keys read values, plus and minus zoom, Escape shows all.`;
  }

  entry(line, index) {
    const look = this.stacked
      ? `<svg width="12" height="12" aria-hidden="true"><rect width="12" height="12" rx="2" fill="var(--c${line.colour})"/></svg>`
      : `<svg width="22" height="10" aria-hidden="true"><line x1="0" y1="5" x2="22" y2="5" stroke="var(--c${line.colour})" stroke-width="2.4" stroke-dasharray="${(line.dash || []).join(" ")}"/></svg>`;
    const button = element("button", { type: "button", "aria-pressed": "true" });
    const value = element("b");
    button.innerHTML = look;
    button.append(line.name, value);
    button.addEventListener("click", () => {
      if (!this.hidden.delete(index)) this.hidden.add(index);
      button.setAttribute("aria-pressed", String(!this.hidden.has(index)));
      this.later();
    });
    this.legend.append(button);
    return value;
  }

  later() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.draw(); });
  }

  at(px) { // what stands at a pixel from the left
    const [a, b] = this.domain.shown.map((x) => this.domain.to(x));
    return this.domain.from(a + ((px - this.left) / (this.wide || 1)) * (b - a));
  }
  px(x) {
    const [a, b] = this.domain.shown.map((v) => this.domain.to(v));
    return this.left + ((this.domain.to(x) - a) / (b - a)) * this.wide;
  }

  // First and last point to draw, one beyond each end of what is shown.
  range(line) {
    const [a, b] = this.domain.shown, n = line.x.length;
    return [Math.max(0, lower(line.x, a) - 1), Math.min(n - 1, lower(line.x, b))];
  }

  // A line as this width can show it: where points are closer than `NEAR_PX`, means of several and
  // the least and most of them. What is read at the cursor is what is drawn.
  seen(line) {
    if (this.step) return line;
    const [a, b] = this.range(line), each = Math.ceil(((b - a + 1) * NEAR_PX) / Math.max(this.wide, 1));
    if (each < 2) return line;
    const x = [], y = [], low = [], high = [];
    for (let i = a - (a % each); i <= b; i += each) {
      let sum = 0, known = 0, least = Infinity, most = -Infinity;
      for (let k = i; k < Math.min(i + each, line.x.length); k++) {
        if (line.y[k] === null) continue;
        sum += line.y[k]; known++;
        least = Math.min(least, line.low ? line.low[k] : line.y[k]);
        most = Math.max(most, line.high ? line.high[k] : line.y[k]);
      }
      x.push((line.x[i] + line.x[Math.min(i + each, line.x.length) - 1]) / 2);
      y.push(known ? sum / known : null); low.push(known ? least : null); high.push(known ? most : null);
    }
    return { ...line, x, y, low, high, dt: line.dt * each };
  }

  draw() {
    const box = this.canvas.getBoundingClientRect(), scale = devicePixelRatio || 1;
    if (!box.width) return;
    const w = Math.round(box.width), h = Math.round(box.height);
    if (this.canvas.width !== Math.round(w * scale) || this.canvas.height !== Math.round(h * scale)) {
      this.canvas.width = Math.round(w * scale); this.canvas.height = Math.round(h * scale);
    }
    const g = this.canvas.getContext("2d"), css = getComputedStyle(root);
    const colour = (name) => css.getPropertyValue(`--${name}`).trim();
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.clearRect(0, 0, w, h);
    g.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    Object.assign(this, { left: 44, up: 8, wide: w - 44 - 8, tall: h - 8 - 22 });
    this.drawn = this.lines.map((line) => this.seen(line));
    const shown = this.drawn.filter((_, i) => !this.hidden.has(i));
    const stacks = this.stacked ? this.pile(shown) : null;
    const high = this.top ?? this.highest(shown, stacks);
    const y = (v) => this.up + this.tall * (1 - v / high);
    this.axes(g, high, y, colour, h);
    g.save();
    g.beginPath(); g.rect(this.left, this.up - 2, this.wide, this.tall + 4); g.clip();
    const band = Number(colour("band"));
    if (stacks) for (let i = shown.length - 1; i >= 0; i--) this.area(g, shown[i], stacks[i - 1], stacks[i], y, colour(`c${shown[i].colour}`), 0.85);
    else {
      for (const line of shown) if (line.high) this.area(g, line, line.low, line.high, y, colour(`c${line.colour}`), band);
      for (const line of shown) this.stroke(g, line, y, colour(`c${line.colour}`));
    }
    this.overlay(g, colour);
    g.restore();
    this.mark(g, colour, h);
    this.say();
    if (document.activeElement === this.canvas && this.domain.cursor !== null) this.canvas.setAttribute("aria-description", this.reading());
  }

  pile(shown) {
    const n = Math.max(0, ...shown.map((line) => line.y.length)), sums = [];
    for (const line of shown) {
      const below = sums[sums.length - 1];
      sums.push(Array.from({ length: n }, (_, i) => (below ? below[i] : 0) + (line.y[i] ?? 0)));
    }
    return sums;
  }

  highest(shown, stacks) {
    let most = 0;
    shown.forEach((line, k) => {
      const [a, b] = this.range(line), values = stacks ? stacks[k] : line.high || line.y;
      for (let i = a; i <= b; i++) if (values[i] > most) most = values[i];
    });
    return most > 0 ? most * 1.06 : 1;
  }

  axes(g, high, y, colour, h) {
    g.lineWidth = 1; g.textBaseline = "middle"; g.textAlign = "right";
    for (const value of ticks(0, high, this.tall < 110 ? 3 : 4, !this.unit && high > 4)) {
      g.strokeStyle = colour("rule"); g.beginPath(); g.moveTo(this.left, y(value)); g.lineTo(this.left + this.wide, y(value)); g.stroke();
      g.fillStyle = colour("soft"); g.fillText(short(value), this.left - 6, y(value));
    }
    const [a, b] = this.domain.shown, most = Math.max(2, Math.floor(this.wide / 80));
    g.textBaseline = "top"; g.textAlign = "center";
    const fixed = this.domain.marks && this.domain.marks.filter((x) => x >= a && x <= b);
    const marks = fixed && fixed.length > 1 ? fixed.filter((_, i) => (fixed.length - 1 - i) % Math.ceil(fixed.length / most) === 0) : this.domain.log ? logTicks(a, b, most) : ticks(a / this.scale(), b / this.scale(), most).map((t) => t * this.scale());
    const digits = this.domain.log ? null : b - a;
    for (const x of marks) {
      const at = this.px(x), label = this.domain.format(x, digits), half = g.measureText(label).width / 2;
      g.fillText(label, Math.min(Math.max(at, this.left + half - 20), this.left + this.wide - half + 6), h - 15);
      g.beginPath(); g.moveTo(at, this.up + this.tall); g.lineTo(at, this.up + this.tall + 4); g.stroke();
    }
  }
  scale() { return this.domain.scale || 1; }

  area(g, line, low, high, y, colour, alpha) {
    const [a, b] = this.range(line);
    g.fillStyle = colour; g.globalAlpha = alpha;
    let open = null;
    const close = (end) => {
      if (open === null) return;
      g.beginPath();
      for (let i = open; i <= end; i++) g.lineTo(this.px(line.x[i]), y(high[i]));
      for (let i = end; i >= open; i--) g.lineTo(this.px(line.x[i]), y(low ? low[i] : 0));
      g.closePath(); g.fill(); open = null;
    };
    for (let i = a; i <= b; i++) {
      if (high[i] === null || high[i] === undefined) close(i - 1);
      else if (open === null) open = i;
    }
    close(b);
    g.globalAlpha = 1;
  }

  stroke(g, line, y, colour) {
    const [a, b] = this.range(line);
    g.strokeStyle = colour; g.lineWidth = 1.8; g.lineJoin = "round"; g.setLineDash(line.dash || []);
    g.beginPath();
    let pen = false;
    for (let i = a; i <= b; i++) {
      const value = line.y[i];
      if (value === null) { pen = false; continue; }
      if (pen && this.step) g.lineTo(this.px(line.x[i]), y(line.y[i - 1]));
      if (pen) g.lineTo(this.px(line.x[i]), y(value)); else g.moveTo(this.px(line.x[i]), y(value));
      // A point alone, between two gaps, is a dot.
      if (!pen && (i === line.x.length - 1 || line.y[i + 1] === null)) g.lineTo(this.px(line.x[i]) + 1.5, y(value));
      pen = true;
    }
    g.stroke(); g.setLineDash([]);
  }

  overlay(g, colour) {
    if (this.drag && this.drag.kind === "select") {
      g.fillStyle = colour("accent"); g.globalAlpha = 0.18;
      g.fillRect(Math.min(this.drag.from, this.drag.to), this.up, Math.abs(this.drag.to - this.drag.from), this.tall);
      g.globalAlpha = 1;
    }
    const x = this.domain.cursor;
    if (x === null) return;
    const at = this.px(x);
    g.strokeStyle = colour("soft"); g.lineWidth = 1; g.beginPath(); g.moveTo(at, this.up); g.lineTo(at, this.up + this.tall); g.stroke();
  }

  // Where the cursor stands, over the labels of the axis.
  mark(g, colour, h) {
    const x = this.domain.cursor;
    if (x === null) return;
    const label = this.domain.format(x, this.domain.shown[1] - this.domain.shown[0]), wide = g.measureText(label).width + 8;
    const left = Math.min(Math.max(this.px(x) - wide / 2, 0), this.left + this.wide + 8 - wide);
    g.fillStyle = colour("ink"); g.fillRect(left, h - 18, wide, 17);
    g.fillStyle = colour("bg"); g.textAlign = "left"; g.textBaseline = "middle"; g.fillText(label, left + 4, h - 9);
  }

  value(line) {
    const x = this.domain.cursor;
    if (x === null || !line.x.length) return undefined;
    let i = lower(line.x, x);
    if (this.step) return i === 0 && x < line.x[0] ? 0 : line.y[Math.min(i, line.x.length - 1) - (line.x[i] > x ? 1 : 0)];
    if (i > 0 && (i === line.x.length || x - line.x[i - 1] < line.x[i] - x)) i--;
    return Math.abs(line.x[i] - x) > line.dt ? null : i;
  }

  reading() {
    return this.lines.map((line, i) => `${line.name} ${this.values[i].textContent}`).join(", ") + ` at ${this.domain.format(this.domain.cursor, 0.1)}`;
  }

  say() {
    this.drawn.forEach((line, k) => {
      const found = this.value(line);
      let words = "";
      if (found !== undefined) {
        if (this.step) words = `${short(found)} %`;
        else if (found === null) words = "–";
        else {
          words = short(line.y[found]);
          if (line.high && line.low[found] !== null && line.low[found] !== line.high[found]) words += ` (${short(line.low[found])}–${short(line.high[found])})`;
        }
      }
      if (this.values[k].textContent !== words) this.values[k].textContent = words;
    });
  }

  listen() {
    const canvas = this.canvas, domain = this.domain, fingers = new Map();
    const where = (event) => event.clientX - canvas.getBoundingClientRect().left;
    const inside = (px) => Math.min(Math.max(px, this.left), this.left + this.wide);
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      fingers.set(event.pointerId, where(event));
      const px = where(event);
      if (event.pointerType === "mouse") this.drag = { kind: event.shiftKey ? "pan" : "select", from: inside(px), to: inside(px) };
      else this.drag = { kind: fingers.size > 1 ? "pinch" : domain.zoomed ? "pan" : "read", from: px, to: px };
      domain.point(this.at(inside(px)));
    });
    canvas.addEventListener("pointermove", (event) => {
      const px = where(event), drag = this.drag;
      if (drag && drag.kind === "pinch" && fingers.has(event.pointerId) && fingers.size === 2) {
        const old = [...fingers.values()];
        fingers.set(event.pointerId, px);
        const now = [...fingers.values()];
        const gap = (pair) => Math.max(Math.abs(pair[0] - pair[1]), 12);
        const middle = (now[0] + now[1]) / 2;
        domain.pan(-(middle - (old[0] + old[1]) / 2) / this.wide);
        domain.zoom(gap(now) / gap(old), this.at(inside(middle)));
        return;
      }
      if (fingers.has(event.pointerId)) fingers.set(event.pointerId, px);
      if (drag && drag.kind === "pan") { domain.pan(-(px - drag.to) / this.wide); drag.to = px; }
      else if (drag && drag.kind === "select") drag.to = inside(px);
      domain.point(this.at(inside(px)));
    });
    const up = (event) => {
      fingers.delete(event.pointerId);
      const drag = this.drag;
      if (fingers.size === 0) this.drag = null;
      if (drag && drag.kind === "select" && event.type === "pointerup" && Math.abs(drag.to - drag.from) > 5)
        domain.show(...[drag.from, drag.to].sort((a, b) => a - b).map((px) => this.at(px)));
      else domain.draw();
    };
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("pointercancel", up);
    canvas.addEventListener("pointerleave", () => { if (!this.drag) domain.point(null); });
    canvas.addEventListener("dblclick", () => domain.reset());
    canvas.addEventListener("wheel", (event) => {
      if (!(event.ctrlKey || event.metaKey || event.shiftKey || document.activeElement === canvas)) return;
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) domain.pan(event.deltaX / this.wide);
      else domain.zoom(Math.exp(-event.deltaY / 300), this.at(inside(where(event))));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const [a, b] = domain.shown.map((x) => domain.to(x)), step = (b - a) / 60;
      const from = domain.cursor === null ? (a + b) / 2 : domain.to(domain.cursor);
      const keys = {
        ArrowLeft: () => (event.shiftKey ? domain.pan(-0.25) : domain.point(domain.from(Math.max(a, from - step)))),
        ArrowRight: () => (event.shiftKey ? domain.pan(0.25) : domain.point(domain.from(Math.min(b, from + step)))),
        "+": () => domain.zoom(1.5, domain.cursor ?? undefined), "=": () => domain.zoom(1.5, domain.cursor ?? undefined),
        "-": () => domain.zoom(1 / 1.5, domain.cursor ?? undefined),
        Escape: () => { domain.cursor = null; domain.reset(); canvas.blur(); }, Home: () => domain.reset(),
      };
      if (keys[event.key] && !event.ctrlKey && !event.metaKey) { event.preventDefault(); keys[event.key](); }
    });
  }
}

// Index of the first of ascending values that is not below x.
function lower(values, x) {
  let a = 0, b = values.length;
  while (a < b) { const m = (a + b) >> 1; if (values[m] < x) a = m + 1; else b = m; }
  return a;
}
