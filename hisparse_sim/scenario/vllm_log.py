"""What a vLLM start-up log says about memory: the lines from weights to maximum concurrency.

Reads V1 logs (0.8 to 0.33, HiSparse lines included) and V0's profiling lines. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.yaml_file import check_regular

_N = r"([\d,]+)"
_F = r"([\d.]+)"

_START = re.compile(r"Initializing an? (?:V\d )?LLM engine|Initializing an LLM engine")

_PATTERNS: dict[str, str] = {
    "available_kv_gib": rf"Available KV cache memory: ?{_F} ?GiB|kv_cache_size={_F}GiB"
    rf"|reserved for KV Cache is {_F}GiB|available_kv_cache_memory +{_F}GiB"
    rf"|available KV cache memory \({_F} GiB\)",
    "kv_tokens": rf"GPU KV cache size: {_N} tokens",
    "tokens_per_request": rf"Maximum concurrency for {_N} tokens per request",
    "max_concurrency": rf"Maximum concurrency for [\d,]+ tokens per request: {_F}x",
    "num_gpu_blocks": rf"# (?:GPU|cuda) blocks: {_N}|after num_gpu_blocks is: {_N}",
    "num_gpu_blocks_override": rf"num_gpu_blocks_override={_N}",
    "weights_gib": rf"Model loading took {_F} Gi?B|Loading model weights took {_F} G"
    rf"|model weights take {_F}GiB",
    "activation_gib": rf"{_F} GiB for peak activation|PyTorch activation peak memory takes {_F}GiB",
    "cudagraph_gib": rf"Graph capturing finished in \d+ secs?, took {_F} GiB",
    "total_gpu_gib": rf"total_gpu_memory ?=? ?\(?{_F}GiB|Free memory on device [^(]*\([\d.]+/{_F} GiB\)",
    "utilization": rf"gpu_memory_utilization['\"]?[:=] ?{_F}|GPU memory utilization is \({_F},",
    "needed_kv_gib": rf"\({_F} GiB KV cache is needed",
    "estimated_max_model_len": rf"estimated maximum model length is {_N}",
    "max_model_len": r"max_seq_len=(\d+)|Using max model len (\d+)",
    "tp": r"tensor_parallel_size['\"]?[:=] ?(\d+)",
    "dp": r"data_parallel_size['\"]?[:=] ?(\d+)",
    "max_num_batched_tokens": r"max_num_batched_tokens['\"]?[:=] ?(\d+)",
    "dcp": rf"by the dcp_world_size {_N}",
    "host_pool_gib": rf"HiSparse HMA: {_F} GiB host source",
    "host_blocks": rf"host source \({_N} blocks\)",
    "hisparse_pool_gib": rf"{_F} GiB shared GPU indexer/resident/hot pool",
    "hisparse_blocks": rf"indexer/resident/hot pool \({_N} blocks\)",
    "hot_rows": rf"device_buffer_size={_N}",
    "steady_concurrency": rf"HiSparse steady-state maximum concurrency[^\n]*?{_F}x",
}
_WORDS = {"kv_cache_dtype": r"kv_cache_dtype['\"]?[:=] ?['\"]?([\w.]+)", "model": r"model='([^']+)'"}


@dataclass(frozen=True, slots=True)
class StartupLog:
    """Figures of one start, none where the log does not print them. GiB per GPU; counts as printed.

    ``dcp``: decode context parallelism multiplies the printed tokens by it. ``starts``: how many
    start-ups the file holds; the figures are the last one's.
    """

    path: str
    starts: int
    available_kv_gib: float | None = None
    kv_tokens: int | None = None
    tokens_per_request: int | None = None
    max_concurrency: float | None = None
    num_gpu_blocks: int | None = None
    num_gpu_blocks_override: int | None = None
    weights_gib: float | None = None
    activation_gib: float | None = None
    cudagraph_gib: float | None = None
    total_gpu_gib: float | None = None
    utilization: float | None = None
    needed_kv_gib: float | None = None
    estimated_max_model_len: int | None = None
    max_model_len: int | None = None
    tp: int | None = None
    dp: int | None = None
    max_num_batched_tokens: int | None = None
    dcp: int | None = None
    host_pool_gib: float | None = None
    host_blocks: int | None = None
    hisparse_pool_gib: float | None = None
    hisparse_blocks: int | None = None
    hot_rows: int | None = None
    steady_concurrency: float | None = None
    kv_cache_dtype: str | None = None
    model: str | None = None

    def overrides(self) -> dict[str, Any]:
        """Engine settings that fix the KV pool as this log found it; at most one is set.

        Bytes are preferred, since they mean the same in every mode: HiSparse's block count is exact but
        of HiSparse's blocks, tokens and blocks of the resident pool come last.
        """
        if self.num_gpu_blocks_override is not None:
            return {"num_gpu_blocks": self.num_gpu_blocks_override}
        if self.available_kv_gib is not None:
            return {"available_kv_gib": self.available_kv_gib}
        if self.hisparse_blocks is not None:
            return {"mode": "hisparse", "num_gpu_blocks": self.hisparse_blocks}
        if self.num_gpu_blocks is not None:
            return {"num_gpu_blocks": self.num_gpu_blocks}
        if self.kv_tokens is not None:
            return {"kv_tokens": self.kv_tokens // (self.dcp or 1)}
        return {}


_INTEGERS = frozenset(name for name, pattern in _PATTERNS.items() if _F not in pattern)
_LEAST = frozenset({"available_kv_gib"})
"""Ranks print their own; vLLM sizes all pools by the smallest."""


def read_log(path: str | Path) -> StartupLog:
    """Read a start-up log. Raises ``InputError`` if it cannot be read or says nothing about KV memory."""
    where = str(path)
    check_regular(Path(path))
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=where) from error
    return parse_log(text, where=where)


def parse_log(text: str, *, where: str = "log") -> StartupLog:
    """The same from the log's text."""
    starts = _starts(text)
    text = text[starts[-1] if starts else 0 :]
    # A terminal may have broken long lines; what is not found as printed is looked for across breaks.
    joined = re.sub(r"\r?\n", "", text)
    found: dict[str, Any] = {}
    for name, pattern in _PATTERNS.items():
        values = _values(pattern, text) or _values(pattern, joined)
        if not values:
            continue
        numbers = list(_numbers(values))
        if not numbers:
            continue
        number = min(numbers) if name in _LEAST else numbers[-1]
        found[name] = int(number) if name in _INTEGERS else number
    for name, pattern in _WORDS.items():
        values = _values(pattern, text) or _values(pattern, joined)
        if values:
            found[name] = values[-1]
    if "kv_cache_dtype" in found:
        found["kv_cache_dtype"] = _dtype(found["kv_cache_dtype"])
    log = StartupLog(path=where, starts=max(1, len(starts)), **found)
    if not log.overrides():
        raise InputError(
            "holds no start-up line about KV memory; expected one like 'Available KV cache memory: 25.94 "
            "GiB', 'GPU KV cache size: 516,352 tokens' or '# GPU blocks: 1952'",
            where=where,
        )
    return log


def _starts(text: str) -> list[int]:
    """Where each start-up begins: engine lines with KV figures between them belong to different starts."""
    begins: list[int] = []
    sized = True
    for match in re.finditer(rf"(?P<start>{_START.pattern})|GPU KV cache size|# GPU blocks", text):
        if match["start"] is None:
            sized = True
        elif sized:
            # The settings a start prints stand shortly before its engine line, the first time from the top.
            begins.append(match.start() if begins else 0)
            sized = False
    return begins


def _values(pattern: str, text: str) -> list[str]:
    return [next(g for g in m.groups() if g is not None) for m in re.finditer(pattern, text)]


def _numbers(values: list[str]) -> Iterator[float]:
    """Those that are numbers: a damaged line may hold ``1.2.3``."""
    for value in values:
        with suppress(ValueError):
            yield float(value.replace(",", "").rstrip("."))


def _dtype(printed: str) -> str:
    """``torch.float8_e4m3fn`` and ``fp8_e4m3`` are ``fp8``; ``fp8_ds_mla`` stays."""
    if printed == "fp8_ds_mla":
        return printed
    return "fp8" if "fp8" in printed or "float8" in printed else printed
