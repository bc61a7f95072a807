"""vLLM's log: what its start-up lines say of memory and settings, and its lines of every ten seconds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.vllm_log import StartupLog, parse_log
from hisparse_sim.validation.measured.evidence import Evidence, read_measured
from hisparse_sim.validation.measured.samples import Sample, add_samples

_N, _F = r"(\d+)", r"(\d+(?:\.\d+)?)"
_GAUGES = {
    "running": rf"Running: {_N} reqs?",
    "waiting": rf"(?:Waiting|Pending): {_N} reqs?",
    "prompt_tokens_per_s": rf"Avg prompt throughput: {_F} tokens/s",
    "output_tokens_per_s": rf"Avg generation throughput: {_F} tokens/s",
    "kv_usage": rf"GPU KV cache usage: {_F}%",
    "prefix_hit_rate": rf"(?<!External )[Pp]refix cache hit rate: (?:GPU: )?{_F}%",
    "external_hit_rate": rf"External prefix cache hit rate: {_F}%",
}
_SEARCHES = {name: re.compile(pattern) for name, pattern in _GAUGES.items()}
_SHARES = ("kv_usage", "prefix_hit_rate", "external_hit_rate")
_PERIODIC = re.compile(r"Avg prompt throughput|Avg generation throughput|Running: \d+ req")
_WHOLE = re.compile(r"Running: \d+ reqs?,.*(?:Waiting|Pending): \d+ reqs?,.*GPU KV cache usage: [\d.]+%")
_NEW_LINE = re.compile(r"^(?:\(|\[|INFO|WARNING|ERROR|DEBUG|\d\d-\d\d)")
_STAMP = re.compile(r"(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)")
_ENDS = re.compile(r"(?:[.%x)\]\"'>}=!]|GiB|GB|tokens|secs?|seconds?|blocks|complete|GET|POST|HEAD)\s*$")
"""How lines of vLLM's log end, mostly."""
_PREFIX = re.compile(r"\[[\w.]+:\d+\]\s*$")
_VERSION = re.compile(
    r"vLLM API server version (\d[\w.+]*)|LLM engine \(v(\d[\w.+]*)\)|  version (\d[\w.+]*)"
)
_HISPARSE = re.compile(r"HiSparse (hot-buffer hits|hot-buffer misses|host-to-device bytes|host pool usage %)"
                       r"\s*[=:]\s*(\d+(?:\.\d+)?)")  # fmt: skip
_OFFLOAD = re.compile(r"(CPU_to_GPU|GPU_to_CPU)_total_bytes=(\d+)")
_FIELDS = {
    "max_model_len": "max_model_len",
    "tensor_parallel_size": "tp",
    "data_parallel_size": "dp",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "long_prefill_token_threshold": "long_prefill_token_threshold",
    "enable_prefix_caching": "enable_prefix_caching",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "enable_expert_parallel": "ep",
    "async_scheduling": "async_scheduling",
    "scheduling_policy": "policy",
    "block_size": "block_size",
    "kv_cache_dtype": "kv_cache_dtype",
    "kv_offloading_size": "kv_offload_gib",
}
"""Arguments of vLLM and the fields of ``EngineSpec`` that they are."""


@dataclass(slots=True)
class EngineLog(Evidence):
    """A log. ``startup``: none if it holds no line about KV memory. ``version``: vLLM's."""

    startup: StartupLog | None = None
    version: str = ""
    samples: list[Sample] = field(default_factory=list)


def read_engine_log(path: Path, *, ended: datetime | None = None, duration_s: float = 0.0) -> EngineLog:
    """Of the last start in it. ``ended``, ``duration_s``: the benchmark's, whose lines alone are then used.

    Raises InputError if it holds no line that is known.
    """
    text, problems = read_measured(path)
    where = str(path)
    log = EngineLog("log", where, problems=problems)
    text = text.replace("\r\n", "\n")
    last = text.rsplit("\n", 1)[-1]
    if last.strip() and not _is_whole(last):
        line = text.count("\n") + 1
        log.problems.append(
            f"{where}:{line}: ends in the middle of a line ({last[-60:]!r}), which is left out"
        )
        text = text[: len(text) - len(last)]
    # Lines of every ten seconds are most of a long log, and say nothing of its start.
    rare = re.sub(r"[^\n]*Avg generation throughput[^\n]*\n", "", text)
    try:
        log.startup = parse_log(rare, where=where)
    except InputError as error:
        missing = error.message
    log.settings = dict(_arguments(rare))
    if found := _VERSION.findall(rare):
        log.version = next(v for v in found[-1] if v)
    begins = _last_start(text)
    log.samples = list(_samples(text[begins:]))
    _transfers(text[begins:], log)
    if log.startup is None and not log.samples and not log.settings and not log.figures:
        raise InputError(missing, where=where)
    if log.startup is None:
        log.notes.append("no start-up line about KV memory: the pool's size cannot be checked")
    elif log.startup.starts > 1:
        log.notes.append(f"the engine was started {log.startup.starts} times; the last start is used")
    if log.samples:
        add_samples(log, _during(log, ended, duration_s))
    else:
        log.notes.append("no lines of running requests and throughput")
    return log


def _is_whole(line: str) -> bool:
    """Whether a line that has no end can be taken as if it had one."""
    if "throughput:" in line or _PERIODIC.search(line):
        return bool(_WHOLE.search(line)) and line.rstrip().endswith("%")
    if "Maximum concurrency" in line:
        return line.rstrip().endswith("x")
    return bool(_ENDS.search(line)) and not _PREFIX.search(line)


def _last_start(text: str) -> int:
    starts = [m.start() for m in re.finditer(r"vLLM API server version|LLM engine \(v", text)]
    firsts = [m.start() for m in re.finditer(r"vLLM API server version", text)]
    return (firsts or starts or [0])[-1]


def _samples(text: str) -> Iterator[Sample]:
    lines = text.split("\n")
    for i, line in enumerate(lines):
        if not _PERIODIC.search(line):
            continue
        # A terminal may have broken the line.
        after = lines[i + 1] if i + 1 < len(lines) else ""
        if not _WHOLE.search(line) and after and not _NEW_LINE.match(after):
            line += after
        found: dict[str, Any] = {}
        for name, pattern in _SEARCHES.items():
            if match := pattern.search(line):
                found[name] = float(match[1]) / (100 if name in _SHARES else 1)
        engine = re.search(r"Engine (\d+)", line)
        if found:
            yield Sample(time_s=_seconds(line), engine=engine[1] if engine else "000", **found)


def _seconds(line: str) -> float | None:
    """Seconds since 2000 of a stamp, which names no year: 2000 is a leap year."""
    if not (stamp := _STAMP.search(line)):
        return None
    try:
        return (datetime(2000, *map(int, stamp.groups())) - datetime(2000, 1, 1)).total_seconds()  # type: ignore[arg-type]
    except ValueError:
        return None


def _during(log: EngineLog, ended: datetime | None, duration_s: float) -> list[Sample]:
    """The samples while the benchmark ran, if clocks allow to tell."""
    if ended is None or not duration_s:
        return log.samples
    end_s = (ended.replace(year=2000) - datetime(2000, 1, 1)).total_seconds()
    slack_s = timedelta(seconds=10).total_seconds()  # between two lines
    inside = [
        s for s in log.samples if s.time_s is not None and end_s - duration_s <= s.time_s <= end_s + slack_s
    ]
    if any(s.busy for s in inside):
        log.notes.append(f"{len(inside)} of {len(log.samples)} lines lie within the benchmark and are used")
        return inside
    log.notes.append("no busy line lies within the benchmark's time: all are used; do the clocks differ?")
    return log.samples


def _transfers(text: str, log: EngineLog) -> None:
    """Lines of KV transfers, each of what happened since the one before."""
    hisparse: dict[str, list[float]] = {}
    for key, value in _HISPARSE.findall(text):
        hisparse.setdefault(key, []).append(float(value))
    hits, misses = (sum(hisparse.get(f"hot-buffer {what}", [])) for what in ("hits", "misses"))
    if hits + misses:
        log.figures["hot_hit_rate"] = hits / (hits + misses)
    if usage := hisparse.get("host pool usage %"):
        log.figures["host_usage_max"] = max(usage) / 100
    if moved := hisparse.get("host-to-device bytes"):
        log.figures["host_to_device_bytes"] = sum(moved)
    for way, value in _OFFLOAD.findall(text):
        name = "host_to_device_bytes" if way == "CPU_to_GPU" else "device_to_host_bytes"
        log.figures[name] = log.figures.get(name, 0.0) + float(value)


def _arguments(text: str) -> Iterator[tuple[str, Any]]:
    """Engine fields of the last ``non-default args: {…}``, and of the engine's own line."""
    given: Mapping[str, Any] = {}
    for match in re.finditer(r"non-default args: (?=\{)", text):
        given = _mapping(text[match.end() :]) or given
    for name, field_ in _FIELDS.items():
        if isinstance(value := given.get(name), (int, float, str)):
            yield field_, value
    speculative = given.get("speculative_config")
    if isinstance(speculative, Mapping) and "mtp" in str(speculative.get("method", "")):
        yield "mtp", speculative.get("num_speculative_tokens", 0)
    if caching := re.findall(r"enable_prefix_caching=(True|False)", text):
        yield "enable_prefix_caching", caching[-1] == "True"


def _mapping(text: str) -> Mapping[str, Any] | None:
    """The Python mapping that ``text`` begins with, which may be broken over lines."""
    depth, quote, at = 0, "", 0
    for at, letter in enumerate(text[:20_000]):
        if quote:
            quote = "" if letter == quote and text[at - 1] != "\\" else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "{[":
            depth += 1
        elif letter in "]}":
            depth -= 1
            if not depth:
                break
    try:
        found = ast.literal_eval(text[: at + 1].replace("\n", ""))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
