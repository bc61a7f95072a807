"""What a scenario assumes of the engine and an input says otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hisparse_sim.errors import HiSparseError
from hisparse_sim.memory.budget import PoolSizes, size_pools
from hisparse_sim.memory.host import GIB
from hisparse_sim.scenario.scenario import Scenario
from hisparse_sim.scenario.vllm_log import StartupLog
from hisparse_sim.validation.measured.engine_log import EngineLog
from hisparse_sim.validation.measured.evidence import Evidence

TOLERANCE = 0.005
"""Printed figures have two decimals; agreement within half a percent is agreement."""
_ACCEPTED_ALIKE = 0.01
POOL_FIELDS = ("available_kv_gib", "num_gpu_blocks", "kv_tokens")


@dataclass(frozen=True, slots=True)
class Contradiction:
    """``settings``: scenario fields by path that would set it right; empty: none would."""

    what: str
    assumed: float | str | list[float]
    found: float | str | list[float]
    source: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """As a line."""
        difference = ""
        if isinstance(self.assumed, (int, float)) and isinstance(self.found, (int, float)) and self.assumed:
            difference = f" ({self.found / self.assumed - 1:+.1%})"
        cure = ", ".join(f"{path}={value}" for path, value in self.settings.items() if value is not None)
        return (
            f"{self.what}: the scenario has {show(self.assumed)}, the {self.source} {show(self.found)}"
            f"{difference}; {cure or 'no field of a scenario sets it'}"
        )

    def as_json(self) -> dict[str, Any]:
        """Of ``--json``."""
        return {
            "what": self.what,
            "assumed": self.assumed,
            "found": self.found,
            "source": self.source,
            "settings": dict(self.settings),
        }


def show(value: float | str | list[float]) -> str:
    """With thousands apart."""
    if isinstance(value, (str, bool)):
        return str(value)
    if isinstance(value, list):
        return ", ".join(f"{part:.2f}" for part in value)
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def contradictions(scenario: Scenario, evidence: Sequence[Evidence]) -> list[Contradiction]:
    """All of them, settings first."""
    try:
        pools: PoolSizes | None = size_pools(scenario.model, scenario.node, scenario.engine)
    except HiSparseError:
        pools = None
    found: list[Contradiction] = []
    for said in evidence:
        found += _settings(scenario, pools, said)
        if isinstance(said, EngineLog) and said.startup is not None:
            found += _startup(scenario, pools, said.startup)
        elif pools is not None and said.kind == "metrics":
            found += _counted(pools, said)
    first: dict[str, Contradiction] = {}
    for one in found:  # a scrape repeats what the log says
        first.setdefault(one.what, one)
    return list(first.values())


def _settings(scenario: Scenario, pools: PoolSizes | None, said: Evidence) -> Iterator[Contradiction]:
    given = dict(said.settings)
    startup = said.startup if isinstance(said, EngineLog) else None
    if startup is not None:
        also = {
            "tp": startup.tp,
            "dp": startup.dp,
            "gpu_memory_utilization": startup.utilization,
            "max_num_batched_tokens": startup.max_num_batched_tokens,
            "max_model_len": startup.max_model_len or startup.tokens_per_request,
            "hot_rows": startup.hot_rows,
            "kv_cache_dtype": startup.kv_cache_dtype,
        }
        given |= {name: value for name, value in also.items() if value is not None}
        if startup.hisparse_blocks is not None and scenario.engine.mode != "hisparse":
            yield Contradiction("mode", scenario.engine.mode, "hisparse", "log", {"engine.mode": "hisparse"})
    if isinstance(said, EngineLog):
        yield from _version(scenario, said.version)
    for name, value in given.items():
        ours = _assumed(scenario, pools, name)
        if ours is None or name in POOL_FIELDS or _same(name, ours, value):
            continue
        if name == "ep" and not scenario.model.num_experts:
            continue
        right = _dtype(value) if name == "kv_cache_dtype" else value
        cure = {f"engine.{name}": right} if _allowed(scenario, name, right) else {}
        yield Contradiction(name, ours, value, said.kind, cure)


def _allowed(scenario: Scenario, name: str, value: Any) -> bool:
    """Whether the engine's field may hold it: logs print -1 for auto, or a dtype that is not modelled."""
    try:
        type(scenario.engine).model_validate({**scenario.engine.model_dump(), name: value})
    except ValueError:
        return False
    return True


def _version(scenario: Scenario, version: str) -> Iterator[Contradiction]:
    minor = ".".join(version.split(".")[:2])
    if version and not scenario.engine.version.startswith(minor):
        cure = {"engine.version": minor} if minor in ("0.30", "0.33") else {}
        yield Contradiction("vLLM version", scenario.engine.version, version, "log", cure)


def _assumed(scenario: Scenario, pools: PoolSizes | None, name: str) -> Any:
    """The scenario's value of an engine field, resolved; none: it says nothing that could be wrong."""
    engine = scenario.engine
    if name == "tp":
        return scenario.tp
    if name == "mtp_acceptance":  # of drafts that are not drafted nothing is said
        return list(engine.acceptance) or None
    if name == "max_model_len":
        return pools.max_model_len if pools is not None else engine.max_model_len
    if name == "block_size":
        return pools.block_size if pools is not None else engine.block_size
    if name == "hot_rows" and engine.hot_rows is None:
        topk = scenario.model.index_topk
        return (engine.mtp + 2) * topk if topk else None
    return getattr(engine, name, None)


def _same(name: str, ours: Any, theirs: Any) -> bool:
    if theirs in ("auto", None):
        return True
    if name == "mtp_acceptance":
        pairs = zip(ours, theirs, strict=False)
        return len(theirs) < len(ours) or all(abs(a - b) <= _ACCEPTED_ALIKE for a, b in pairs)
    if name == "kv_cache_dtype":
        return _dtype(theirs) == _dtype(ours) or _dtype(theirs) == "auto"
    if isinstance(ours, str) and ours != "auto":
        return ours == str(theirs)
    try:
        return abs(float(ours) - float(theirs)) <= 1e-9 * abs(float(ours))
    except (TypeError, ValueError):
        return False


def _dtype(printed: Any) -> str:
    text = str(printed)
    if text == "auto":
        return text
    return "fp8" if "fp8" in text or "float8" in text else "bf16" if "bf" in text else text


def _startup(scenario: Scenario, pools: PoolSizes | None, log: StartupLog) -> Iterator[Contradiction]:
    """The memory that a start-up log prints, against what this package derives."""
    node = scenario.node
    if log.dcp and log.dcp > 1:
        yield Contradiction("decode context parallelism", "none", f"{log.dcp}", "log")
    if log.total_gpu_gib is not None:
        yield from _compare("GPU memory, GiB", node.gpu.memory_bytes / GIB, log.total_gpu_gib, {})
    if pools is None:
        return
    cure = _with_null_fields(log)
    if log.weights_gib is not None:
        yield from _compare("weights a GPU, GiB", pools.weights_bytes / GIB, log.weights_gib, {})
    if log.available_kv_gib is not None:
        yield from _compare(
            "available KV memory a GPU, GiB", pools.kv_bytes / GIB, log.available_kv_gib, cure
        )
    if pools.mode == "hisparse":
        if log.hisparse_blocks is not None:
            yield from _compare("GPU blocks", pools.num_gpu_blocks, log.hisparse_blocks, cure)
        if log.host_pool_gib is not None:
            host = {"engine.host_pool_gib": log.host_pool_gib}
            yield from _compare("host pool, GiB", pools.host_pool_bytes / GIB, log.host_pool_gib, host)
        if log.host_blocks is not None:
            host = {} if log.host_pool_gib is not None else _host_cure(pools, log.host_blocks)
            yield from _compare("host blocks", pools.num_host_blocks, log.host_blocks, host)
    elif log.hisparse_blocks is None:
        if log.kv_tokens is not None:
            tokens = pools.num_gpu_blocks * pools.block_size * (log.dcp or 1)
            yield from _compare("KV cache size, tokens", tokens, log.kv_tokens, cure)
        if log.num_gpu_blocks is not None:
            yield from _compare("GPU blocks", pools.num_gpu_blocks, log.num_gpu_blocks, cure)
    if log.max_concurrency is not None and log.tokens_per_request == pools.max_model_len:
        what = f"maximum concurrency at {pools.max_model_len:,} tokens"
        yield from _compare(what, pools.max_concurrency * (log.dcp or 1), log.max_concurrency, cure)
    ours, theirs = pools.steady_concurrency, log.steady_concurrency
    if ours is not None and theirs is not None and log.tokens_per_request in (None, pools.max_model_len):
        yield from _compare("steady-state maximum concurrency", ours, theirs, cure)
    if log.needed_kv_gib is not None and log.estimated_max_model_len is not None:
        found = f"did not start; at most {log.estimated_max_model_len:,} tokens"
        yield Contradiction(
            "start", "starts", found, "log", {"engine.max_model_len": log.estimated_max_model_len}
        )


def _with_null_fields(log: StartupLog) -> dict[str, Any]:
    """The log's pool as scenario fields; the other fields of the pool are taken out."""
    given = log.overrides()
    pool = {f"engine.{name}": given.get(name) for name in POOL_FIELDS}
    return pool | {f"engine.{name}": value for name, value in given.items()}


def _counted(pools: PoolSizes, said: Evidence) -> Iterator[Contradiction]:
    """The blocks that a scrape tells."""
    if blocks := said.settings.get("num_gpu_blocks"):
        cure = {f"engine.{name}": blocks if name == "num_gpu_blocks" else None for name in POOL_FIELDS}
        yield from _compare("GPU blocks", pools.num_gpu_blocks, blocks, cure, "metrics")
    if (blocks := said.settings.get("host_blocks")) and pools.mode == "hisparse":
        cure = _host_cure(pools, blocks)
        yield from _compare("host blocks", pools.num_host_blocks, blocks, cure, "metrics")


def _host_cure(pools: PoolSizes, blocks: int) -> dict[str, Any]:
    return {"engine.host_pool_gib": round(blocks * pools.host_block_bytes / GIB, 3)}


def _compare(
    what: str, assumed: float, found: float, cure: Mapping[str, Any], source: str = "log"
) -> Iterator[Contradiction]:
    # Half a unit of the last printed decimal is rounding, whatever its share.
    rounding = 0.05 if what.startswith("host pool") else 0.005 if isinstance(found, float) else 0.5
    if abs(found - assumed) > max(TOLERANCE * abs(assumed), rounding):
        yield Contradiction(what, assumed, found, source, cure)
