// How many requests fit: estimate/concurrency.py and memory/{budget,host,reserve}.py of engine version 0.33,
// line by line. Sizes are whole bytes below 2^53. What vLLM refuses is thrown as Refused.

class Refused extends Error {}
const GIB = 2 ** 30;
const MODES = ["resident", "offload", "hisparse"];
const ceilDiv = (a, b) => Math.ceil(a / b);
const roundUp = (value, multiple) => ceilDiv(value, multiple) * multiple;
const gib = (bytes, digits = 0) => (bytes / GIB).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const whole = (value) => value.toLocaleString("en-US");

// `q`: model, node, tp (null: the node's GPUs), dp, ep, dtype, context, mtp, hot_rows (null), host_pool_gib
// ("auto"), shared_host_pool, indexer_offload_gib, kv_offload_gib, gpu_memory_utilization, max_model_len
// ("auto"), max_num_seqs, max_num_batched_tokens, users (null).
function estimate(q) {
  const on = setting(q);
  const kv = { main: derivedKv(on, reserveBytes(on)) };
  const pools = {}, modes = {};
  for (const mode of MODES) {
    pools[mode] = modePools(on, mode, kv.main);
    const count = pools[mode].count(q.context);
    const range = [1 + DATA.rules.reserve_share, 1 - DATA.rules.reserve_share].map((share) => {
      const reserve = Math.floor((reserveBytes(on) / GIB) * share * GIB);
      return modePools(on, mode, derivedKv(on, reserve)).count(q.context).requests * q.dp;
    });
    modes[mode] = { requests: count.requests * q.dp, per_dp: count.requests, limit: count.limit, range, words: pools[mode].words(count, q.context) };
    if (q.users) modes[mode].longest = longest(on, pools[mode], q.users);
  }
  const sparse = pools.hisparse, onGpu = Math.min(sparse.count(q.context).gpu, q.max_num_seqs);
  const hostNeed = (requests) => {
    const pages = ceilDiv(q.context, on.block);
    return ceilDiv(Math.max(requests * pages + 1, pages + 2) * sparse.sizes.hostBlock, GIB);
  };
  return {
    modes, pools,
    min_host_gib_per_dp: sparse.sizes && onGpu ? hostNeed(onGpu) : null,
    users_host_gib_per_dp: sparse.sizes && q.users ? hostNeed(ceilDiv(q.users, q.dp)) : null,
    resident_share: sparse.sizes ? sparse.residentShare(q.context, modes.hisparse.per_dp) : null,
    memory: { gpu: on.node.memory_bytes, weights: weightBytes(on), reserve: reserveBytes(on), kv: kv.main,
      unused: on.node.memory_bytes - Math.floor(on.node.memory_bytes * q.gpu_memory_utilization) },
    nodes: on.placement.nodes, host_pool: sparse.sizes ? sparse.sizes.hostPool : null, host_copies: on.copies,
  };
}

// The question with its model, node, layout and placement; throws what vLLM or `estimate` refuse.
function setting(q) {
  const model = DATA.models[q.model], node = DATA.nodes[q.node], tp = q.tp || node.gpus;
  if (q.max_model_len !== "auto" && q.max_model_len > model.max_context_tokens)
    throw new Refused(`max_model_len: ${q.model} is made for at most ${whole(model.max_context_tokens)} tokens`);
  if (q.max_num_batched_tokens < q.max_num_seqs) {
    const [tokens, seqs] = [whole(q.max_num_batched_tokens), whole(q.max_num_seqs)];
    if (q.max_num_batched_tokens === DATA.engine.max_num_batched_tokens) throw new Refused(`max_num_seqs: ${seqs} is more than max_num_batched_tokens, ${tokens}`);
    throw new Refused(`max_num_batched_tokens: ${tokens} is less than max_num_seqs, ${seqs}`);
  }
  if (q.context > model.max_context_tokens)
    throw new Refused(`context: ${q.model} is made for at most ${whole(model.max_context_tokens)} tokens`);
  if (q.max_model_len !== "auto" && q.context > q.max_model_len)
    throw new Refused(`context: ${whole(q.context)} tokens are more than max_model_len, ${whole(q.max_model_len)}`);
  const placement = place(node, tp, q.dp);
  const found = node.layouts[`${q.model}/${q.dtype}/${q.mtp ? 1 : 0}/${tp}`];
  if (found === undefined) throw new Refused(`tp: ${tp} is none of ${DATA.tp.join(", ")}`);
  if (typeof found === "string") throw new Refused(found.replace("engine.", ""));
  const [block, blockBytes, groups, sparseBytes, hostBytes] = DATA.layouts[found];
  const shared = q.shared_host_pool && tp > 1 && placement.perNode > 0;
  const on = { q, model, node, tp, placement, block, blockBytes, groups, sparseBytes, hostBytes, shared };
  on.copies = shared ? placement.perNode : placement.ranks;
  if (groups) on.hotBlocks = groups * ceilDiv(hotRows(on), block);
  return on;
}

function place(node, tp, dp) {
  const ranks = tp * dp, gpus = node.gpus;
  if (ranks <= gpus) return { nodes: 1, ranks, perNode: dp };
  if (tp <= gpus) {
    if (gpus % tp) throw new Refused(`tp: ${dp} replicas of ${tp} GPUs do not fill nodes of ${gpus} GPUs evenly`);
    return { nodes: ceilDiv(dp, gpus / tp), ranks: gpus, perNode: gpus / tp };
  }
  if (tp % gpus) throw new Refused(`tp: ${tp} is not a whole number of ${gpus}-GPU nodes`);
  return { nodes: Math.floor((dp * tp) / gpus), ranks: gpus, perNode: 0 };
}

function hotRows({ q, model }) {
  const least = (q.mtp + 1) * model.index_topk, rows = q.hot_rows || (q.mtp + 2) * model.index_topk;
  if (q.mtp && (least > DATA.rules.max_hot_rows || (!q.hot_rows && rows > DATA.rules.max_hot_rows)))
    throw new Refused(`mtp: ${q.mtp} draft tokens need a hot buffer of ${whole(rows)} rows, and it has at most ${whole(DATA.rules.max_hot_rows)}`);
  if (rows < least || rows > DATA.rules.max_hot_rows)
    throw new Refused(`hot_rows: a hot buffer needs ${whole(least)} (top-k ${whole(model.index_topk)} × ${q.mtp + 1} tokens a decode step) to ${whole(DATA.rules.max_hot_rows)} rows, not ${whole(rows)}`);
  return rows;
}

function weightBytes({ q, model, tp }) {
  return ceilDiv(model.shared_bytes, tp) + ceilDiv(model.routed_bytes, q.ep ? tp * q.dp : tp);
}

function reserveBytes({ q, model, tp }) {
  const rules = DATA.rules;
  if (model.attention === "dsa") return rules.dsa_reserve_bytes;
  let width = 3 * Math.floor(model.intermediate_size / tp);
  if (model.num_experts) {
    const expert = Math.floor(model.moe_intermediate_size / (q.ep ? 1 : tp));
    width = Math.max(width, model.experts_per_token * (3 * expert + model.hidden_size));
  }
  const activations = 2 * q.max_num_batched_tokens * (width + 3 * model.hidden_size);
  return rules.runtime_bytes + Math.max(q.max_num_seqs * model.vocab_size * rules.sampler_bytes_per_logit, activations);
}

function derivedKv(on, reserve) {
  return Math.floor(on.node.memory_bytes * on.q.gpu_memory_utilization) - weightBytes(on) - reserve;
}

// Host memory: pools and offloads of one node.
function perNode({ placement, tp }, size) {
  return Math.floor(size * GIB * (placement.perNode || placement.ranks / tp));
}
function hostPool(on) {
  const { q, node } = on, room = node.dram_bytes * DATA.rules.host_share, beside = perNode(on, q.indexer_offload_gib);
  if (beside > room) throw new Refused(`indexer_offload_gib: leaves no host pool in ${gib(node.dram_bytes)} GiB of host memory`);
  const most = Math.max(0, Math.floor((room - beside) / on.copies));
  if (q.host_pool_gib === "auto") return most;
  const asked = Math.floor(q.host_pool_gib * GIB);
  if (asked > most) throw new Refused(`${asked * on.copies <= room ? "indexer_offload_gib" : "host_pool_gib"}: ${on.copies} pools a node; at most ${gib(most, 1)} GiB each (vLLM stops at 95 % of host memory)`);
  return asked;
}

const inFlight = (on, tokens) => ceilDiv(Math.min(on.q.max_num_batched_tokens * (DATA.engine.async_scheduling ? 2 : 1), tokens), on.block);

function modePools(on, mode, kv) {
  const { q, model, node } = on;
  const nothing = (limit, why) => ({ sizes: null, count: () => ({ requests: 0, limit, gpu: 0 }), words: () => why });
  const refusal = node.refuses[q.model];
  if (mode === "hisparse" && refusal) return nothing("unsupported", refusal);
  if (kv < on.blockBytes) {
    if (kv > 0) return nothing("hbm", `one block of ${whole(on.block)} tokens takes ${gib(on.blockBytes, 2)} GiB; ${gib(kv, 2)} are left`);
    return nothing("weights", `${q.model} does not fit on ${q.node}: a GPU needs ${gib(weightBytes(on), 1)} GiB for weights and ${gib(reserveBytes(on), 1)} for activations and runtime, of ${gib(node.memory_bytes * q.gpu_memory_utilization, 1)}`);
  }
  if (mode === "offload" && perNode(on, q.kv_offload_gib) > node.dram_bytes)
    throw new Refused(`kv_offload_gib: ${q.kv_offload_gib} GiB a replica do not fit ${gib(node.dram_bytes)} GiB of host memory`);
  const sparse = mode === "hisparse";
  const blocks = Math.floor(kv / (sparse ? on.sparseBytes : on.blockBytes));
  const host = sparse ? hostPool(on) : 0;
  const hostBlock = on.shared ? roundUp(on.hostBytes, DATA.rules.host_align_bytes) : on.hostBytes;
  const hostBlocks = sparse ? Math.floor(host / hostBlock) : 0;
  const pagesOf = (tokens) => ceilDiv(tokens, on.block);
  const admitted = (tokens) => pagesOf(tokens) + (sparse ? on.groups * inFlight(on, tokens) + on.hotBlocks : 0);
  const fits = (tokens) => admitted(tokens) <= blocks - 1 && (!sparse || pagesOf(tokens) + 2 <= hostBlocks);
  const asked = q.max_model_len === "auto" ? model.max_context_tokens : q.max_model_len;
  const most = largest(asked, fits);
  if (most === 0 || (q.max_model_len !== "auto" && most < asked)) {
    const short = sparse && pagesOf(q.max_model_len === "auto" ? 1 : asked) + 2 > hostBlocks;
    const what = `one request of ${most === 0 ? "any length" : `${whole(asked)} tokens (max_model_len)`} does not fit`;
    return nothing(short ? "host_pool" : "hbm", `${what} ${short ? `a host pool of ${whole(hostBlocks)} blocks` : `${whole(Math.max(0, blocks - 1))} free GPU blocks`}${most ? `; at most ${whole(most)} tokens would` : ""}`);
  }
  const cap = inFlight(on, most), free = blocks - 1;
  const steady = (tokens) => pagesOf(tokens) + on.groups * Math.min(inFlight(on, tokens), DATA.rules.tail_pages) + on.hotBlocks;
  const watermark = sparse ? Math.max(on.hotBlocks, Math.floor(blocks / 10)) : 0;

  function onGpu(tokens) {
    const pages = pagesOf(tokens), first = pages + on.groups * Math.min(pages, cap) + on.hotBlocks;
    if (first > free) return [0, false];
    const hot = 1 + Math.floor((free - first) / steady(tokens));
    const stay = pages < cap ? Math.floor((free - watermark) / (pages * (1 + on.groups))) : 0;
    return [Math.max(hot, stay), stay > hot];
  }
  function count(tokens) {
    const pages = pagesOf(tokens);
    let gpu = Math.floor(free / pages), inHost = null, stays = false;
    if (sparse) {
      [gpu, stays] = onGpu(tokens);
      inHost = pages + 2 > hostBlocks ? 0 : Math.floor((hostBlocks - 1) / pages);
    }
    const held = inHost === null ? gpu : Math.min(gpu, inHost);
    if (q.max_num_seqs <= held) return { requests: q.max_num_seqs, limit: "max_num_seqs", gpu, stays };
    return { requests: held, limit: inHost !== null && inHost < gpu ? "host_pool" : "hbm", gpu, stays };
  }
  function words(found, tokens) {
    const pages = pagesOf(tokens);
    if (found.limit === "max_num_seqs") return `max_num_seqs ${q.max_num_seqs}; memory holds ${whole(found.gpu)}`;
    if (found.limit === "host_pool") return `host pool: ${gib(host)} GiB, ${gib(pages * hostBlock, 2)} GiB a request; the GPU pool would hold ${whole(found.gpu)}`;
    if (!sparse) return `HBM: ${gib(kv, 1)} GiB for KV, ${gib(pages * on.blockBytes, 2)} GiB a request`;
    if (found.stays) return `HBM: requests this short stay on the GPU, ${pages * (1 + on.groups)} blocks each`;
    if (!found.requests) return `HBM: admitting one request takes ${whole(pages + on.groups * Math.min(pages, cap) + on.hotBlocks)} blocks, the pool has ${whole(free)}`;
    const each = steady(tokens), share = (part) => `${Math.round((100 * part) / each)} %`;
    return `HBM: ${whole(free)} blocks, ${whole(each)} a request (${share(pages)} indexer keys, ${share(on.hotBlocks)} hot buffer)`;
  }
  function residentShare(tokens, requests) {
    if (!requests || count(tokens).stays) return 1;
    const pages = pagesOf(tokens), left = free - requests * (pages + on.hotBlocks);
    return Math.max(0, Math.min(1, left / (requests * pages * on.groups)));
  }
  return { sizes: { blocks, hostBlocks, hostBlock, hostPool: host, max_model_len: most }, count, words, residentShare };
}

// The largest whole number up to `most` that fits, if smaller ones do; 0 for none.
function largest(most, fits) {
  if (fits(most)) return most;
  let low = 0, high = most;
  while (high - low > 1) { const middle = Math.floor((low + high) / 2); if (fits(middle)) low = middle; else high = middle; }
  return low;
}

// The longest context at which so many users run at once.
function longest({ q, model }, pools, users) {
  const each = ceilDiv(users, q.dp);
  return largest(q.max_model_len === "auto" ? model.max_context_tokens : q.max_model_len, (tokens) => pools.count(tokens).requests >= each);
}

// 128k is 131,072 and 1M 1,048,576 tokens; null for what is no number of tokens.
function parseTokens(words) {
  const found = /^(\d[\d_,]*(?:\.\d+)?)\s*([kKmM]?)$/.exec(words.trim());
  if (!found) return null;
  const tokens = Number(found[1].replace(/[,_]/g, "")) * { "": 1, k: 1024, m: 1048576 }[found[2].toLowerCase()];
  return tokens > 0 && Number.isInteger(tokens) ? tokens : null;
}
