"""vLLM's metrics, old and new names, as figures: one scrape, two around a benchmark, or a range.

Names are those of vLLM's docs/usage/metrics.md: V1 (``kv_cache_usage_perc``, ``prefix_cache_queries``), V0
(``gpu_cache_usage_perc``, ``avg_generation_throughput_toks_per_s``) and of HiSparse's connector, whose
gauges had other names in one revision (``host_cache_usage_perc`` for ``host_blocks_usage``).
``_created`` are times, ``kv_offload_cpu_cache_usage_perc`` counts what is pinned in flight and
``num_requests_waiting_by_reason`` splits what ``num_requests_waiting`` says: none of them is a figure here.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hisparse_sim.errors import InputError
from hisparse_sim.validation.measured.evidence import Evidence, read_measured
from hisparse_sim.validation.measured.prometheus import Scrape, minus, parse_scrape, quantile
from hisparse_sim.validation.measured.range_query import read_range
from hisparse_sim.validation.measured.samples import Sample, add_samples
from hisparse_sim.workload.traces.rows import MAX_CLOCK

RUNNING = ("vllm:num_requests_running",)
WAITING = ("vllm:num_requests_waiting",)
KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
HISTOGRAMS = {
    "ttft_s": ("vllm:time_to_first_token_seconds",),
    "itl_s": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "tpot_s": ("vllm:request_time_per_output_token_seconds",),
    "e2e_s": ("vllm:e2e_request_latency_seconds",),
    "queue_s": ("vllm:request_queue_time_seconds",),
}
COUNTERS = {
    "preemptions": ("vllm:num_preemptions",),
    "prompt_tokens": ("vllm:prompt_tokens",),
    "output_tokens": ("vllm:generation_tokens",),
    "requests_completed": ("vllm:request_success",),
    "host_to_device_bytes": ("vllm:hisparse_host_to_device_bytes",),
}
_RATIOS = {
    "prefix_hit_rate": (
        ("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
        ("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
    ),
    "external_hit_rate": (("vllm:external_prefix_cache_hits",), ("vllm:external_prefix_cache_queries",)),
    "draft_acceptance": (
        ("vllm:spec_decode_num_accepted_tokens",),
        ("vllm:spec_decode_num_draft_tokens",),
    ),
}
HOST_USAGE = ("vllm:hisparse_host_blocks_usage", "vllm:hisparse_host_cache_usage_perc")
_TABLE = {
    "running": ("running", "num_running", "num_requests_running"),
    "waiting": ("waiting", "num_waiting", "num_requests_waiting"),
}
_TIMES = ("t", "time_s", "time", "timestamp")


def read_metrics(paths: Sequence[Path]) -> Evidence:
    """Of one file, or of two scrapes, before and after. Raises InputError for what is no metrics."""
    if len(paths) > 2:
        raise InputError(f"is given {len(paths)} times; one file, or a scrape before and one after",
                         where="--metrics")  # fmt: skip
    found = Evidence("metrics", str(paths[-1]))
    if len(paths) == 2:
        scrapes = [_scrape(path, found) for path in paths]
        before, after = scrapes
        if before is not None and after is not None:
            _between(before, after, found, paths)
        elif (one := before or after) is not None:
            _figures(one, found, since="since the engine started")
        else:
            raise InputError("; ".join(found.problems))
        _know_something(found)
        return found
    path = paths[0]
    text, found.problems = read_measured(path)
    start = text.lstrip()[:1]
    if start in ("{", "["):
        read_range(_json(text, str(path)), found)
    elif start != "#" and _is_table(text):
        _table(text, found)
    else:
        scrape = parse_scrape(text, str(path))
        found.problems += scrape.problems
        _figures(scrape, found, since="since the engine started")
    _know_something(found)
    return found


def _know_something(found: Evidence) -> None:
    if not found.figures and not found.settings and not found.notes:
        raise InputError("holds no metric of vLLM's that is known (vllm:…)", where=found.path)


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise InputError("is no whole JSON; the file may be cut", where=f"{where}:{line}") from None


def _scrape(path: Path, found: Evidence) -> Scrape | None:
    """One of two; none, and a problem more, if it is none."""
    try:
        text, problems = read_measured(path)
        scrape = parse_scrape(text, str(path))
    except InputError as error:
        found.problems.append(str(error))
        return None
    found.problems += problems + scrape.problems
    return scrape


def _between(before: Scrape, after: Scrape, found: Evidence, paths: Sequence[Path]) -> None:
    names = ("output_tokens", "prompt_tokens", "requests_completed")
    counts = [(before.total(COUNTERS[name]) or 0.0, after.total(COUNTERS[name])) for name in names]
    if any(late is not None and late < early for early, late in counts):
        found.problems.append(
            f"{paths[1]}: counters are below those of {paths[0]}: the scrapes are in the wrong order, or the "
            "engine started anew between them; the first is left out"
        )
        _figures(after, found, since="since the engine started")
    else:
        _figures(minus(after, before), found, since="between the scrapes")


def _figures(scrape: Scrape, found: Evidence, *, since: str) -> None:
    figures = found.figures
    for name, names in COUNTERS.items():
        if (value := scrape.total(names)) is not None:
            figures[name] = value
    figures |= ratios(scrape.total)
    for name, written in HISTOGRAMS.items():
        _histogram(scrape, name, written, figures)
    if figures.get("output_tokens") == 0 and not figures.get("prompt_tokens"):
        found.notes.append(f"nothing was served {since}: counters are left out")
        figures.clear()
    if figures:
        found.notes.append(f"counters and histograms are those {since}; percentiles lie within buckets")
    _gauges(scrape, found)
    _config(scrape, found)


def ratios(total: Callable[[tuple[str, ...]], float | None]) -> dict[str, float]:
    """Shares of two counters each. ``total``: of a counter by its names."""
    figures = {}
    for name, (part, whole) in _RATIOS.items():
        many, few = total(whole), total(part)
        if many and few is not None:
            figures[name] = few / many
    hits, misses = total(("vllm:hisparse_cache_hits",)), total(("vllm:hisparse_cache_misses",))
    if hits is not None and misses is not None and hits + misses:
        figures["hot_hit_rate"] = hits / (hits + misses)
    drafts, accepted = (
        total((f"vllm:spec_decode_num_{what}",)) for what in ("drafts", "accepted_tokens")
    )  # fmt: skip
    if drafts and accepted is not None:
        figures["acceptance_length"] = 1 + accepted / drafts
    return figures


def _histogram(scrape: Scrape, name: str, names: Sequence[str], figures: dict[str, float]) -> None:
    for written in names:
        count, total = scrape.total((f"{written}_count",)), scrape.total((f"{written}_sum",))
        if not count or total is None:
            continue
        figures[f"{name}_mean"] = total / count
        buckets = scrape.buckets(written)
        for point, q in (("p50", 0.5), ("p99", 0.99)):
            if (value := quantile(buckets, q)) is not None:
                figures[f"{name}_{point}"] = value
        return


def _gauges(scrape: Scrape, found: Evidence) -> None:
    """Of one moment."""
    sample = Sample(
        running=scrape.total(RUNNING),
        waiting=scrape.total(WAITING),
        kv_usage=scrape.mean(KV_USAGE),
        prompt_tokens_per_s=scrape.total(("vllm:avg_prompt_throughput_toks_per_s",)),
        output_tokens_per_s=scrape.total(("vllm:avg_generation_throughput_toks_per_s",)),
        prefix_hit_rate=scrape.mean(("vllm:gpu_prefix_cache_hit_rate",)),
    )
    if sample.busy:
        found.notes.append("gauges are those of one moment")
    elif sample.running is not None:
        found.notes.append("the engine was idle when it was scraped: gauges are left out")
    if sample.busy:
        before = dict(found.figures)
        add_samples(found, [sample])
        for name in ("running_max", "waiting_max", "gpu_kv_usage_max"):
            found.figures.pop(name, None)
        found.figures |= before
    if (usage := scrape.mean(HOST_USAGE)) is not None:
        found.figures["host_usage_max"] = usage / 100 if usage > 1 else usage


def _config(scrape: Scrape, found: Evidence) -> None:
    """``vllm:cache_config_info`` carries settings as labels; the host pool's size is a gauge."""
    labels = scrape.labels("vllm:cache_config_info")
    for name, field, make in (
        ("num_gpu_blocks", "num_gpu_blocks", int),
        ("block_size", "block_size", int),
        ("gpu_memory_utilization", "gpu_memory_utilization", float),
    ):
        try:
            found.settings[field] = make(labels[name])
        except (KeyError, ValueError):
            continue
    if (caching := labels.get("enable_prefix_caching")) in ("True", "False"):
        found.settings["enable_prefix_caching"] = caching == "True"
    if dtype := labels.get("cache_dtype"):
        found.settings["kv_cache_dtype"] = dtype
    if blocks := scrape.mean(("vllm:hisparse_host_blocks_total",)):
        found.settings["host_blocks"] = int(blocks)


def _is_table(text: str) -> bool:
    header = {name.strip() for name in text.lstrip().split("\n", 1)[0].split(",")}
    return bool(header & set(_TABLE["running"])) and len(header) > 1


def _table(text: str, found: Evidence) -> None:
    """A CSV table of gauges over time."""
    samples, bad = [], []
    lines = text.splitlines()
    reader = csv.DictReader(lines)
    for row in reader:
        try:
            samples.append(_row({str(k).strip(): v for k, v in row.items()}))
        except (TypeError, ValueError):
            bad.append(reader.line_num)
    if bad:
        found.problems.append(f"{found.path}:{bad[0]}: {len(bad)} lines hold no numbers; left out")
    if not samples:
        raise InputError("is a table without rows", where=found.path)
    add_samples(found, samples)


def _row(row: dict[str, Any]) -> Sample:
    def value(*names: str) -> float | None:
        found = next((float(row[name]) for name in names if name in row), None)
        if found is not None and not 0 <= found < MAX_CLOCK:
            raise ValueError("is no gauge")
        return found

    percent = value("kv_cache_pct", "kv_cache_usage_pct")
    return Sample(
        time_s=value(*_TIMES),
        running=value(*_TABLE["running"]),
        waiting=value(*_TABLE["waiting"]),
        prompt_tokens_per_s=value("prompt_throughput", "prompt_tokens_per_s"),
        output_tokens_per_s=value("gen_throughput", "output_tokens_per_s"),
        kv_usage=percent / 100 if percent is not None else value("kv_cache_usage", "gpu_kv_usage"),
    )
