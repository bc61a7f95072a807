"""What was simulated, from the ``scenario.yaml`` of each run: what all share, and what tells them apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hisparse_sim.errors import InputError
from hisparse_sim.report.page.html import table, text
from hisparse_sim.report.tables import number
from hisparse_sim.scenario.yaml_file import read_mapping

Asked = Mapping[str, Any]
"""A ``scenario.yaml``; empty where it cannot be read."""
_UNTOLD = ("sources", "description", "plan", "calibration_sha256", "version")
_MODES = {
    "resident": "all KV in GPU memory",
    "offload": "finished prefixes offloaded to host memory",
    "hisparse": "Hybrid HiSparse",
}
_HOST = (
    ("hisparse", "HiSparse pool", "host_pool_gib"),
    ("hisparse", "indexer offload", "indexer_offload_gib"),
    ("offload", "KV offload", "kv_offload_gib"),
)
"""Mode, name and field of what lies in host memory."""
_SGLANG = ("mem_fraction_static", "max_running_requests", "chunked_prefill_size", "device_buffer_size",
           "host_to_device_ratio")  # fmt: skip
"""Fields that decide what fits, of ``engine.kind: sglang``."""
_PREFILL = "scenario.cluster.prefill.engine."
_MOST_CELL = 60
GIB = 2**30


def read_asked(folder: Path) -> Asked:
    """The scenario of a run, or nothing: its figures are worth showing without it."""
    try:
        return read_mapping(folder / "scenario.yaml")
    except InputError:
        return {}


def heading(asked: Sequence[Asked], summaries: Sequence[Mapping[str, Any]]) -> str:
    """The question in a line of plain text."""
    scenarios = list(dict.fromkeys(str(s.get("scenario", "a scenario")) for s in summaries))
    named = [(_part(a, "model", "name"), _part(a, "node", "name")) for a in asked]
    if len(set(named)) == 1 and all(named[0]):
        model, node = named[0]
        what = f"{model} on {node}"
    else:
        what = " and ".join(dict.fromkeys(" on ".join(filter(None, n)) for n in named if any(n)))
    names = scenarios[0] if len(scenarios) == 1 else f"{len(scenarios)} scenarios"
    return f"{what}: {names}" if what and len(what) < 90 else names


def question(asked: Sequence[Asked], summaries: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> str:
    """Section of the page: a sentence, the facts that all runs share, and a table of what differs."""
    known = [a for a in asked if a]
    sentences = list(dict.fromkeys(_description(a) for a in known if _description(a)))
    modes = list(dict.fromkeys(str(s.get("mode")) for s in summaries if s.get("mode")))
    sglang = any(s.get("engine") == "sglang" for s in summaries)
    known_as = _MODES | ({"hisparse": "SGLang's HiSparse"} if sglang else {})
    words = [f"{mode} ({known_as[mode]})" if mode in known_as else mode for mode in modes]
    ways = f"KV cache: {'; '.join(words)}." if words else ""
    asks = "How many run at once, how fast is each served, and what limits it?"
    lead = [*(f"{s[:1].upper()}{s[1:].rstrip('.')}." for s in sentences[:4]), ways]
    html = f'<p class="lead">{text(" ".join(filter(None, [*lead, asks])))}</p>'
    facts = [_facts(a, modes) for a in known]
    same = [(k, v) for k, v in (facts[0] if facts else {}).items() if all(f.get(k) == v for f in facts)]
    if same:
        items = "".join(f"<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>" for k, v in same)
        html += f'<dl class="facts">{items}</dl>'
    if len(known) == len(labels) > 1:
        rows = differing(known)
        if rows:
            html += table("What differs between the runs", ["field", *labels], rows)
        else:
            html += "<p>The runs were asked the same.</p>"
    return html


def differing(asked: Sequence[Asked]) -> list[list[str]]:
    """Fields whose values are not the same in all scenarios: path and value in each."""
    flat = [_without_repeats(_flat(a)) for a in asked]
    paths = list(dict.fromkeys(path for fields in flat for path in fields))
    rows = []
    for path in paths:
        values = [fields.get(path, "-") for fields in flat]
        if len(set(values)) > 1:
            rows.append([path.removeprefix("scenario."), *values])
    return rows


def _without_repeats(fields: dict[str, str]) -> dict[str, str]:
    """Without fields of the engines that prefill that are as in those that decode: there are many."""
    return {
        path: value
        for path, value in fields.items()
        if not path.startswith(_PREFILL)
        or fields.get(f"scenario.engine.{path.removeprefix(_PREFILL)}") != value
    }


def _flat(value: Any, path: str = "") -> dict[str, str]:
    if isinstance(value, Mapping):
        found: dict[str, str] = {}
        for key, each in value.items():
            if key not in _UNTOLD:
                found |= _flat(each, f"{path}.{key}" if path else str(key))
        return found
    shown = (
        "-"
        if value is None
        else f"{value:,g}"
        if type(value) is float
        else f"{value:,}"
        if type(value) is int
        else str(value)
    )
    return {path: shown if len(shown) <= _MOST_CELL else shown[: _MOST_CELL - 1] + "…"}


def _facts(asked: Asked, modes: Sequence[str]) -> dict[str, str]:
    """What a reader wants to know first, each in words; of host memory what ``modes`` use."""

    def of(*keys: str) -> Any:
        return _part(asked, *keys)

    found: dict[str, str | None] = {"model": of("model", "hf_id") or of("model", "name")}
    gpus, gpu = of("node", "gpus"), of("node", "gpu", "name")
    link, dram = of("node", "host_link", "kind"), of("node", "dram_bytes")
    if gpu:
        more = [
            f"host link {link}" if link else "",
            f"{dram / GIB:,.0f} GiB host memory" if _is(dram) else "",
        ]
        found["node"] = ", ".join(filter(None, [f"{gpus} × {gpu}", *more]))
    tp, dp = of("engine", "tp") or gpus, of("engine", "dp")
    ways = [
        f"TP {tp}" if tp else "",
        f"DP {dp}" if dp and dp != 1 else "",
        "EP" if of("engine", "ep") else "",
    ]
    version, sglang = of("engine", "version"), of("engine", "kind") == "sglang"
    name = "SGLang" if sglang else f"vLLM {version}" if version else ""
    found["engine"] = ", ".join(filter(None, [name, *ways])) or None
    found["cluster"] = _cluster(asked) or None
    sizes = [
        ("KV dtype", of("engine", "kv_cache_dtype")),
        ("max_num_seqs", of("engine", "max_num_seqs")),
        ("max_num_batched_tokens", of("engine", "max_num_batched_tokens")),
        ("GPU memory used", of("engine", "gpu_memory_utilization")),
        *((name, of("engine", name)) for name in _SGLANG if sglang),
    ]
    found["limits"] = ", ".join(f"{k} {v:,}" if _is(v) else f"{k} {v}" for k, v in sizes if v) or None
    room = [(name, of("engine", field)) for mode, name, field in _HOST if mode in modes]
    found["host memory"] = (
        ", ".join(f"{n} {v:,g} GiB" if _is(v) else f"{n} {v}" for n, v in room if v) or None
    )
    load = [
        of("workload", "kind"),
        _some(of("workload", "concurrency"), "clients"),
        _some(of("workload", "limit"), "sessions at most"),
    ]
    found["workload"] = ", ".join(str(part) for part in load if part) or None
    found["step times"] = f"profile {asked['calibration']}" if asked.get("calibration") else None
    found["seed"] = None if asked.get("seed") is None else str(asked["seed"])
    return {k: str(v) for k, v in found.items() if v}


def _cluster(asked: Asked) -> str:
    """How many instances, and who sends what where; empty of one alone."""

    def of(*keys: str) -> Any:
        return _part(asked, "cluster", *keys)

    count, prefill = of("instances"), of("prefill", "instances")
    if not _is(count) or (count == 1 and not prefill):
        return ""
    apart = (
        f"{prefill} only prefill (KV lands on the {str(of('prefill', 'lands')).replace('gpu', 'GPU')})"
        if prefill
        else ""
    )
    many = f"{count} {'decode' if prefill else 'instances'}"
    return ", ".join(filter(None, [many, apart, f"router {of('router')}" if of("router") else ""]))


def _some(count: Any, of_what: str) -> str:
    return f"{number(count)} {of_what}" if _is(count) else ""


def _is(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _description(asked: Asked) -> str:
    found = _part(asked, "description")
    return found.strip() if isinstance(found, str) else ""


def _part(asked: Asked, *keys: str) -> Any:
    """What stands at ``keys`` of the scenario; none where that is nowhere."""
    found: Any = asked.get("scenario")
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found
