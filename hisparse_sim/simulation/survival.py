"""How a run may end before its requests do: outcomes with a name, a step, a time and a remedy.

The real engine raises and dies, or goes on for ever without getting anywhere; a run says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace


class Ending(Struct):
    """``requests``: that failed by it; ``error``: what happened, or the engine's own words."""

    name: str
    step: int
    time_s: float
    requests: int
    error: str
    remedy: str
    replica: int | None = None
    """The engine, where there are several."""

    def as_json(self) -> dict[str, Any]:
        """Of ``summary.json``."""
        return asdict(self)

    def __str__(self) -> str:
        where = "" if self.replica is None else f" of replica {self.replica}"
        return f"{self.name} in step {self.step:,}{where} ({self.time_s:,.1f} s): {self.error}; {self.remedy}"


_ROOM = (
    "give it a smaller engine.max_num_batched_tokens, more KV memory (engine.gpu_memory_utilization) or "
    "fewer engine.max_num_seqs"
)
_ROOM_OLD = (
    "give it more KV memory (engine.gpu_memory_utilization), or use engine.version 0.33 with a smaller "
    "engine.max_num_batched_tokens"
)
"""0.30 makes a request read from the host only when the pool is nearly full, which may be too late for
what a step takes and the hot buffer together; a smaller step alone does not help there."""


def admission_crash(error: str, *, step: int, time_s: float, requests: int) -> Ending:
    """vLLM 0.30's scheduler raised; ``error`` in its own words.

    Its admission counts no GPU copies of a prefix hit, takes them out of the free blocks and then asks for
    more than are left: vllm-project/vllm PR 57457 (mended in 0.33).
    """
    remedy = (
        "vLLM 0.30 admits a request without counting the GPU copies that its prefix hit takes back "
        "(vllm PR 57457); use engine.version 0.33, or keep the pool from filling (fewer engine.max_num_seqs)"
    )
    return Ending("admission crash", step, time_s, requests, error, remedy)


def live_lock(*, step: int, time_s: float, old: bool) -> Ending:
    """Preemptions without end, of which the run has given the first request up. ``old``: of 0.30."""
    error = "preempted again and again without getting any further, as the engine would for ever"
    return Ending("live-lock", step, time_s, 1, error, _ROOM_OLD if old else _ROOM)


def standstill(lack: str, *, step: int, time_s: float, requests: int, old: bool) -> Ending:
    """Requests wait, nothing runs, and nothing is left that could give blocks back."""
    error = f"nothing runs and requests wait for {lack or 'ever'}, as they would in the real engine"
    return Ending("standstill", step, time_s, requests, error, _ROOM_OLD if old else _ROOM)


def first_of(endings: Iterable[Ending]) -> Ending | None:
    """The first of several engines' endings in time, with the requests of all."""
    found = list(endings)
    if not found:
        return None
    return replace(min(found, key=lambda e: e.time_s), requests=sum(e.requests for e in found))


NONE: Mapping[str, Ending | None] = dict.fromkeys(("engine_death", "live_lock", "standstill"))
"""What a summary tells of, under which names."""


def endings_of(summary: Mapping[str, Any]) -> list[Ending]:
    """Those that a summary tells of."""
    return [Ending(**summary[key]) for key in NONE if summary[key]]
