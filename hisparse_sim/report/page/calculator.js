// The form of the calculator: each change is answered at once, and kept in the address.

const form = document.getElementById("form");
const NAMES = { resident: "Resident", offload: "Offload", hisparse: "HiSparse" };
const WORDS = { weights: "the weights", hbm: "GPU memory", host_pool: "the host pool", max_num_seqs: "max_num_seqs", unsupported: "not supported" };
const DEFAULTS = {
  model: "glm-5.3" in DATA.models ? "glm-5.3" : Object.keys(DATA.models)[0], node: "8xh200" in DATA.nodes ? "8xh200" : Object.keys(DATA.nodes)[0],
  tp: "", dp: "1", ep: true, context: "128k", users: "", dtype: "fp8", gpu_memory_utilization: String(DATA.engine.gpu_memory_utilization),
  max_model_len: "auto", max_num_seqs: String(DATA.engine.max_num_seqs), max_num_batched_tokens: String(DATA.engine.max_num_batched_tokens),
  mtp: "0", host_pool_gib: "auto", shared_host_pool: true, hot_rows: "auto", indexer_offload_gib: "0", kv_offload_gib: "0",
};
const LENGTHS = [8, 16, 32, 64, 128, 256, 512, 1024].map((k) => k * 1024);

function options(name, pairs) {
  form.elements[name].replaceChildren(...pairs.map(([value, words]) => element("option", { value }, words)));
}
options("model", Object.keys(DATA.models).map((name) => [name, name]));
options("node", Object.entries(DATA.nodes).map(([name, node]) => [name, `${name} (${node.gpus} × ${node.gpu})`]));
options("tp", [["", "all GPUs of a node"], ...DATA.tp.map((n) => [String(n), String(n)])]);
options("dtype", DATA.dtypes.map((name) => [name, name]));

function fill(values) {
  for (const [name, value] of Object.entries(values)) {
    const field = form.elements[name];
    if (field.type === "checkbox") field.checked = value === true || value === "true";
    else field.value = value;
  }
}

// The question as the form has it; throws Refused naming the field.
function asked() {
  const raw = Object.fromEntries(Object.keys(DEFAULTS).map((name) => [name, form.elements[name].type === "checkbox" ? form.elements[name].checked : form.elements[name].value.trim()]));
  const number = (name, { least = 0, most = Infinity, whole: integer = false } = {}) => {
    const value = Number(raw[name]);
    if (raw[name] === "" || !Number.isFinite(value) || value < least || value > most || (integer && !Number.isInteger(value)))
      throw new Refused(`${name}: “${raw[name]}” is no ${integer ? "whole " : ""}number of at least ${least}${most < Infinity ? ` and at most ${most}` : ""}`);
    return value;
  };
  const tokens = (name) => {
    const value = parseTokens(raw[name]);
    if (value === null) throw new Refused(`${name}: “${raw[name]}” is not a number of tokens; write 8192, 8k or 1M`);
    return value;
  };
  const or = (name, word, read) => (raw[name] === word || raw[name] === "" ? word : read(name));
  const share = number("gpu_memory_utilization", { most: 1 });
  if (share === 0) throw new Refused("gpu_memory_utilization: 0 leaves nothing");
  const pool = or("host_pool_gib", "auto", number);
  if (pool === 0) throw new Refused("host_pool_gib: 0 GiB hold nothing; write auto or a size");
  const rows = or("hot_rows", "auto", tokens);
  return {
    model: raw.model, node: raw.node, tp: raw.tp ? Number(raw.tp) : null, dp: number("dp", { least: 1, whole: true }), ep: raw.ep,
    dtype: raw.dtype, context: tokens("context"), users: raw.users === "" ? null : number("users", { least: 1, whole: true }),
    gpu_memory_utilization: share, max_model_len: or("max_model_len", "auto", tokens),
    max_num_seqs: number("max_num_seqs", { least: 1, whole: true }), max_num_batched_tokens: tokens("max_num_batched_tokens"),
    mtp: number("mtp", { whole: true }), host_pool_gib: pool, shared_host_pool: raw.shared_host_pool, hot_rows: rows === "auto" ? null : rows,
    indexer_offload_gib: number("indexer_offload_gib"), kv_offload_gib: number("kv_offload_gib"),
  };
}

// The same question for the command line.
function command(q) {
  const parts = ["hisparse-sim estimate", `--model ${q.model}`, `--node ${q.node}`, `--context ${q.context}`];
  const flag = (name, value, usual) => { if (value !== usual) parts.push(`${name} ${value}`); };
  const set = (name, value, usual) => { if (value !== usual) parts.push(`--set engine.${name}=${value}`); };
  flag("--tp", q.tp, null); flag("--dp", q.dp, 1);
  if (!q.ep) parts.push("--no-ep");
  flag("--kv-dtype", q.dtype, "fp8"); flag("--hot-rows", q.hot_rows, null); flag("--host-pool", q.host_pool_gib, "auto");
  flag("--mtp", q.mtp, 0); flag("--max-num-batched-tokens", q.max_num_batched_tokens, 8192); flag("--users", q.users, null);
  set("gpu_memory_utilization", q.gpu_memory_utilization, DATA.engine.gpu_memory_utilization);
  set("max_num_seqs", q.max_num_seqs, DATA.engine.max_num_seqs); set("max_model_len", q.max_model_len, "auto");
  set("shared_host_pool", q.shared_host_pool, true); set("indexer_offload_gib", q.indexer_offload_gib, 0); set("kv_offload_gib", q.kv_offload_gib, 0);
  return parts.join(" ");
}

function show() {
  const refused = document.getElementById("refused"), found = document.getElementById("found");
  try {
    const q = asked(), answer = estimate(q);
    refused.hidden = true; found.hidden = false;
    tiles(q, answer); sentence(q, answer); memory(answer); lengths(q);
    document.getElementById("command").textContent = command(q);
    form.elements.ep.disabled = !DATA.models[q.model].num_experts;
    const most = DATA.models[q.model].max_context_tokens;
    slider.value = (1000 * Math.log(q.context / 1024)) / Math.log(most / 1024);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    refused.textContent = error.message; refused.hidden = false; found.hidden = true;
  }
}

function tiles(q, answer) {
  const most = Math.max(1, ...MODES.map((mode) => answer.modes[mode].requests));
  document.getElementById("modes").replaceChildren(...MODES.map((mode, i) => {
    const one = answer.modes[mode], bar = element("i", { class: `c${i + 1}`, style: `width:${(100 * one.requests) / most}%` });
    const range = one.range[0] === one.range[1] ? "" : ` (${whole(one.range[0])} to ${whole(one.range[1])})`;
    const number = element("b", {}, whole(one.requests), element("small", {}, range));
    const more = q.users ? element("p", {}, one.longest ? `${whole(q.users)} users: up to ${whole(one.longest)} tokens each` : `never ${whole(q.users)} users at once`) : "";
    return element("section", { class: "tile", "data-mode": mode }, element("h3", {}, NAMES[mode]),
      element("div", { class: "figure" }, number, element("span", { class: "bar" }, bar)), element("p", {}, `Limit: ${WORDS[one.limit]}`), element("p", {}, one.words), more);
  }));
}

function sentence(q, answer) {
  const sparse = answer.modes.hisparse, base = answer.modes.resident, parts = [];
  if (sparse.requests > base.requests && base.requests) parts.push(`HiSparse runs ${short(sparse.requests / base.requests)} times as many requests of ${whole(q.context)} tokens.`);
  else if (sparse.requests > base.requests) parts.push(`Only HiSparse runs requests of ${whole(q.context)} tokens.`);
  else if (sparse.limit !== "unsupported") parts.push("HiSparse does not run more requests than fit resident.");
  if (answer.min_host_gib_per_dp !== null) parts.push(`What its GPU pool can run needs ${whole(answer.min_host_gib_per_dp)} GiB of host pool a replica; it has ${gib(answer.host_pool)}.`);
  if (answer.users_host_gib_per_dp !== null) parts.push(`${whole(q.users)} users need ${whole(answer.users_host_gib_per_dp)}.`);
  if (sparse.requests && answer.resident_share !== null) parts.push(`With a full batch ${Math.round(100 * answer.resident_share)} % of the pages still lie on the GPU as well.`);
  if (answer.nodes > 1) parts.push(`This takes ${answer.nodes} nodes.`);
  document.getElementById("sentence").textContent = parts.join(" ");
}

function memory({ memory: m }) {
  const parts = [["weights", m.weights, "c2"], ["activations and runtime", m.reserve, "c5"], ["KV cache", Math.max(0, m.kv), "c1"], ["left unused", m.unused, "none"]];
  const total = Math.max(m.gpu, parts.reduce((sum, part) => sum + part[1], 0));
  document.getElementById("memory").replaceChildren(...parts.map(([, size, c]) => element("i", { class: c, style: `width:${(100 * size) / total}%` })));
  document.getElementById("memorykey").replaceChildren(...parts.map(([name, size, c]) => element("li", {}, element("i", { class: c }), `${name} `, element("b", {}, `${gib(size, 1)} GiB`))));
}

// Requests over context lengths, drawn and in a table.
function lengths(q) {
  const most = DATA.models[q.model].max_context_tokens, end = q.max_model_len === "auto" ? most : q.max_model_len;
  const at = (context) => estimate({ ...q, context, users: null }).modes;
  const rows = [...new Set([...LENGTHS.filter((n) => n <= end), end])].sort((a, b) => a - b).map((context) => [context, at(context)]);
  const first = Math.min(1024, end), x = [];
  for (let i = 0; i <= 80; i++) x.push(Math.min(end, Math.round(first * (end / first) ** (i / 80))));
  const drawn = x.map(at);
  const domain = new Domain(first, Math.max(end, first + 1), { log: true, marks: Array.from({ length: 21 }, (_, i) => 2 ** i), format: (n) => (n >= 1048576 ? `${Number((n / 1048576).toPrecision(3))}M` : n >= 1024 ? `${Number((n / 1024).toPrecision(3))}k` : String(Math.round(n))) });
  const place = document.getElementById("chart");
  place.replaceChildren();
  chart = new Chart(place, {
    title: "Requests at once by context", unit: "", domain,
    lines: MODES.map((mode, i) => ({ name: NAMES[mode], colour: i + 1, dash: DASHES[i], x, y: drawn.map((modes) => modes[mode].requests), dt: Infinity })),
  });
  const head = element("tr", {}, ...["context", ...MODES.map((mode) => NAMES[mode])].map((words) => element("th", { scope: "col" }, words)), element("th", { scope: "col", class: "words" }, "HiSparse is limited by"));
  const body = rows.map(([context, modes]) => element("tr", {}, element("th", { scope: "row" }, whole(context)), ...MODES.map((mode) => element("td", {}, whole(modes[mode].requests))), element("td", { class: "words" }, WORDS[modes.hisparse.limit])));
  const table = element("table", {}, element("caption", {}, "By context length"), element("thead", {}, head), element("tbody", {}, ...body));
  document.getElementById("lengths").replaceChildren(element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Requests by context length" }, table));
}

let chart = null;
redrawers.push(() => chart && chart.draw());
const slider = document.getElementById("slider");
slider.addEventListener("input", () => {
  const most = DATA.models[form.elements.model.value].max_context_tokens;
  const tokens = Math.round((1024 * (most / 1024) ** (slider.value / 1000)) / 256) * 256;
  form.elements.context.value = tokens % 1024 ? String(tokens) : `${tokens / 1024}k`;
});
form.addEventListener("input", () => {
  const changed = Object.keys(DEFAULTS).map((name) => [name, form.elements[name].type === "checkbox" ? form.elements[name].checked : form.elements[name].value]).filter(([name, value]) => value !== DEFAULTS[name]);
  history.replaceState(null, "", `#${new URLSearchParams(changed.map(([name, value]) => [name, String(value)]))}`);
  show();
});
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", (event) => {
  event.preventDefault();
  fill(DEFAULTS);
  history.replaceState(null, "", "#");
  show();
});
fill(DEFAULTS);
const kept = [...new URLSearchParams(location.hash.slice(1))].filter(([name]) => name in DEFAULTS);
fill(Object.fromEntries(kept));
for (const [name] of kept) { const folded = form.elements[name].closest("details"); if (folded) folded.open = true; }
show();
