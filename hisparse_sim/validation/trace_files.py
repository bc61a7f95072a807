"""The files of a folder of recorded traces, read and checked before anything is replayed.

A scenario is a JSON object (mode, model, engine, requests). A trace is lines of JSON, compressed or not:
first the engine's facts (``kind: config``), then the steps, last their totals (``kind: totals``).
Whatever is wrong is an InputError that names the file and, where it can be told, the line.
"""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.validate import explain
from hisparse_sim.scenario.yaml_file import check_regular, read_text

ENGINES = {"vllm-0.33": "v033", "vllm-0.30": "v030"}
"""The engines that traces were recorded from, and where a folder keeps them."""

Whole = Annotated[int, Field(ge=0, le=10**9)]
Positive = Annotated[int, Field(ge=1, le=10**9)]
Counts = dict[str, Whole] | None
Names = list[str] | None


class _Strict(BaseModel):
    """JSON as it is: no unknown field, and no text or truth value for a number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class TracedModel(_Strict):
    """The attention layers of the recorded engine; bytes are of a token and layer."""

    num_layers: Annotated[int, Field(ge=1, le=10_000)] = 78
    index_topk: Positive = 2048
    index_topk_freq: Positive = 4
    index_skip_topk_offset: Whole = 2
    mla_bytes: Positive = 656
    indexer_bytes: Positive = 132


class TracedEngine(_Strict):
    """How the recorded engine was started; defaults are the recorder's."""

    block_size: Positive = 64
    num_gpu_blocks: Positive | None = None
    gpu_kv_bytes: Annotated[int, Field(ge=1, le=10**15)] | None = None
    host_pool_gib: Annotated[float, Field(gt=0, le=10**6)] | None = None
    num_host_blocks: Positive | None = None
    cpu_offload_gib: Annotated[float, Field(gt=0, le=10**6)] | None = None
    num_cpu_chunks: Whole | None = None
    max_model_len: Positive = 8192
    max_num_seqs: Positive = 128
    max_num_batched_tokens: Positive = 2048
    long_prefill_token_threshold: Whole = 0
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    policy: Literal["fcfs", "priority"] = "fcfs"
    async_scheduling: bool = False
    device_buffer_size: Positive | None = None
    watermark: Annotated[float, Field(ge=0, lt=1)] = 0.0
    shared_host_pool: bool = False
    delay: Whole = 0
    """Steps from a page's write-back to its report."""
    store_delay: Whole | None = None
    load_delay: Whole | None = None
    skip_startup_check: bool = False


class TracedRequest(_Strict):
    """A request: when it comes (a step), how long it is, and whose prefix it shares."""

    id: str
    arrival_step: Whole
    prompt_len: Positive
    output_len: Positive
    priority: int | None = None
    prefix_group: str | int | None = None
    prefix_len: Whole | None = None


Mode = Literal["hisparse", "vanilla", "cpu_offload"]


class TracedScenario(_Strict):
    """What was recorded."""

    name: str = ""
    seed: int = 0
    mode: Mode
    model: TracedModel = TracedModel()
    engine: TracedEngine = TracedEngine()
    requests: list[TracedRequest]

    @model_validator(mode="after")
    def _names_differ(self) -> TracedScenario:
        seen: set[str] = set()
        for place, request in enumerate(self.requests):
            if request.id in seen:
                raise ValueError(f"requests.{place}.id: {request.id!r} is the name of two requests")
            seen.add(request.id)
        return self


class Facts(_Strict):
    """First line of a trace."""

    kind: Literal["config"]
    vllm: str | None = None
    scenario: str | None = None
    mode: Mode | None = None
    engine: TracedEngine = TracedEngine()
    model: TracedModel = TracedModel()
    num_gpu_blocks: int | None = None
    gpu_bytes_per_block: int | None = None
    num_host_blocks: int | None = None
    host_block_stride: int | None = None
    num_cpu_chunks: int | None = None
    max_in_flight_tokens: int | None = None
    num_resident_groups: int | None = None
    hot_blocks_per_request_total: int | None = None
    transition_watermark: int | None = None
    max_spill_pages: int | None = None
    store_delay: int | None = None
    load_delay: int | None = None
    scheduler_block_size: int | None = None
    hash_block_size: int | None = None
    max_concurrency_logged: float | None = None
    kv_cache_size_tokens_logged: int | None = None
    steady_state_concurrency: float | None = None
    cpu_bytes_to_use: int | None = None
    eviction_policy: str | None = None
    groups: list[dict[str, Any]] | None = None


class Step(_Strict):
    """A step, or a run of steps that differ in nothing but their number."""

    step: Whole | None = None
    steps: Annotated[list[Whole], Field(min_length=2, max_length=2)] | None = None
    scheduled: dict[str, Positive] | None = None
    new: Names = None
    resumed: Names = None
    preempted: Names = None
    finished: Names = None
    running: Whole | None = None
    waiting: Whole | None = None
    gpu_free: Whole | None = None
    gpu_free_end: Whole | None = None
    host_free: Whole | None = None
    host_free_end: Whole | None = None
    hits: Counts = None
    planned: Whole | None = None
    completed: Whole | None = None
    lost: Counts | Whole = None
    adopted: Counts | Whole = None
    reqs: dict[str, list[Whole]] | None = None
    cpu_free: Whole | None = None
    loads: Counts = None
    stores: Counts = None
    flushed: Whole | None = None
    ext: dict[str, list[int | None]] | None = None
    drain: bool | None = None

    @model_validator(mode="after")
    def _has_a_number(self) -> Step:
        if (self.step is None) == (self.steps is None):
            raise ValueError("a step has either `step`, a number, or `steps`, [first, last]")
        if self.steps and self.steps[0] > self.steps[1]:
            raise ValueError(f"steps: {self.steps} must be [first, last]")
        return self


class RequestTotals(_Strict):
    """What became of a request, in steps."""

    arrival: Whole | None = None
    first_sched_step: Whole | None = None
    first_token_step: Whole | None = None
    finish_step: Whole | None = None
    preemptions: Whole | None = None


class TotalsLine(_Strict):
    """Last line of a trace."""

    kind: Literal["totals"]
    error: str | None = None
    steps: Whole | None = None
    empty_steps: Whole | None = None
    scheduled_tokens: Whole | None = None
    preemptions: Whole | None = None
    recomputed_from_preemption: Whole | None = None
    hit_tokens: Whole | None = None
    resumed_hit_tokens: Whole | None = None
    max_running: Whole | None = None
    last_finish_step: int | None = None
    adopted_pages: Whole | None = None
    lost_pages: Whole | None = None
    transfers_planned: Whole | None = None
    transfers_completed: Whole | None = None
    load_jobs: Whole | None = None
    loaded_blocks: Whole | None = None
    store_jobs: Whole | None = None
    stored_blocks: Whole | None = None
    gpu_free_final: Whole | None = None
    host_free_final: Whole | None = None
    unfinished: Names = None
    requests: dict[str, RequestTotals] | None = None


R = TypeVar("R", bound=BaseModel)


def read_scenario(path: Path) -> dict[str, Any]:
    """The scenario of a file, as the fields that it gives."""
    data = _parsed(read_text(path), str(path), first_line=1)
    return _checked(TracedScenario, data, str(path)).model_dump(exclude_unset=True)


def read_trace(path: Path, engine: str) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """Facts, steps and totals of a trace of ``engine`` (a key of ``ENGINES``), as they are written."""
    facts: dict[str, Any] | None = None
    totals: dict[str, Any] | None = None
    steps: list[dict[str, Any]] = []
    for number, text in enumerate(_lines(path), 1):
        where = f"{path}:{number}"
        record = _parsed(text.rstrip("\r\n"), str(path), first_line=number)
        if totals is not None:
            raise InputError("comes after the totals, which end a trace", where=where)
        kind = record.get("kind", "step")
        if facts is None:
            if kind != "config":
                raise InputError("does not begin with the engine's facts, kind: config", where=where)
            _checked(Facts, record, where)
            _check_engine(record.get("vllm"), engine, where)
            facts = record
        elif kind == "totals":
            _checked(TotalsLine, record, where)
            totals = record
        elif kind == "step":
            _checked(Step, record, where)
            steps.append(record)
        else:
            raise InputError(f"kind: {kind!r} is neither a step nor totals", where=where)
    if facts is None:
        raise InputError("is empty; a trace begins with the engine's facts, kind: config", where=str(path))
    if totals is None:
        raise InputError("ends before its totals: cut off", where=str(path))
    return facts, steps, totals


def _check_engine(recorded: str | None, engine: str, where: str) -> None:
    if recorded is None or f"vllm-{recorded}.".startswith(f"{engine}."):
        return
    known = next((name for name in ENGINES if f"vllm-{recorded}.".startswith(f"{name}.")), None)
    if known:
        raise InputError(f"vllm: recorded from {recorded}, which --engine {known} replays", where=where)
    versions = " and ".join(sorted(name.removeprefix("vllm-") for name in ENGINES))
    raise InputError(f"vllm: {recorded} is not modelled; known are {versions}", where=where)


def _lines(path: Path) -> list[str]:
    check_regular(path)
    open_ = gzip.open if path.suffix == ".gz" else open
    try:
        with open_(path, "rt", encoding="utf-8-sig", newline="\n") as file:
            return list(file)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)) from None


def _parsed(text: str, file: str, *, first_line: int) -> dict[str, Any]:
    """A JSON object that stands in ``file`` from a line on."""
    try:
        record = json.loads(text, parse_constant=_no_number, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise InputError(f"not JSON: {error.msg}", where=f"{file}:{line}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}", where=f"{file}:{first_line}") from None
    if not isinstance(record, dict):
        raise InputError("not a JSON object", where=f"{file}:{first_line}")
    return record


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} is given twice")
    return record


def _checked(record: type[R], data: dict[str, Any], file: str) -> R:
    try:
        return record.model_validate(data)
    except ValidationError as error:
        raise explain(error, record, file=file) from None
