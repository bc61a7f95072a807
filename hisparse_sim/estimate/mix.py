"""What a workload asks on average: a few classes of requests, and how its sessions follow each other."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import numpy as np

from hisparse_sim.scenario.workload import WorkloadSpec
from hisparse_sim.workload.make import make_workload
from hisparse_sim.workload.request import RequestSpec
from hisparse_sim.workload.unlimited_cache import UnlimitedCache

SESSIONS, REQUESTS = 1024, 4096
"""Most sessions and requests that are looked at."""
CLASSES = 8


@dataclass(frozen=True, slots=True)
class Class:
    """Requests alike. ``hit_tokens``: of the prompt, what a cache without a limit holds."""

    share: float
    prompt_tokens: float
    output_tokens: float
    hit_tokens: float


@dataclass(frozen=True, slots=True)
class Mix:
    """``think_s``: mean pause before a request. ``session_requests``: requests a session.

    ``context_tokens``: mean length while decoding; ``full_tokens``: mean of prompt and output;
    ``longest_tokens`` of any that was looked at.
    """

    classes: tuple[Class, ...]
    think_s: float
    session_requests: float
    output_tokens: float
    context_tokens: float
    full_tokens: float
    longest_tokens: int


def mix_of(spec: WorkloadSpec, seed: int) -> Mix:
    """Of the first sessions; rates do not matter to it, nor concurrency where sessions are counted."""
    beside = {"rate_per_s", "arrivals", "ramp_up_s"}
    if any(getattr(spec, name, None) is not None for name in ("conversations", "sessions", "requests")):
        beside.add("concurrency")  # else it says how many sessions there are
    plain = spec.model_dump_json(exclude=beside)
    return _mix(_Asked(plain, seed, spec))


class _Asked:
    """A workload by what its requests are."""

    def __init__(self, text: str, seed: int, spec: WorkloadSpec) -> None:
        self.key: Hashable = (text, seed)
        self.spec, self.seed = spec, seed

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Asked) and self.key == other.key


@lru_cache(maxsize=64)
def _mix(asked: _Asked) -> Mix:
    workload = make_workload(asked.spec, asked.seed, check=False)
    cache = UnlimitedCache()
    requests: list[RequestSpec] = []
    hits: list[int] = []
    pauses: list[float] = []
    sessions = 0
    for session in islice(workload.sessions(), SESSIONS):
        sessions += 1
        requests += session.requests
        hits += cache.hit_tokens(session.requests).tolist()
        pauses += [r.delay_s for r in session.requests if r.after]
        if len(requests) >= REQUESTS:
            break
    prompts = np.array([r.prompt_tokens for r in requests], dtype=float)
    outputs = np.array([r.output_tokens for r in requests], dtype=float)
    hit = np.array(hits, dtype=float)
    # Sorted by what has to be computed, which is what tells requests apart.
    order = np.lexsort((prompts, prompts - hit))
    groups = [g for g in np.array_split(order, _cuts(prompts[order] - hit[order])) if len(g)]
    classes = tuple(
        Class(
            len(g) / len(requests),
            float(prompts[g].mean()),
            float(outputs[g].mean()),
            float(hit[g].mean()),
        )
        for g in groups
    )
    return Mix(
        classes,
        float(sum(pauses)) / len(requests),
        len(requests) / sessions,
        float(outputs.mean()),
        float(np.average(prompts + outputs / 2, weights=outputs)),
        float((prompts + outputs).mean()),
        int((prompts + outputs).max()),
    )


def _cuts(new_tokens: np.ndarray) -> list[int]:
    """Places in ascending ``new_tokens`` that make classes alike: at jumps by half, and at equal shares."""
    count = len(new_tokens)
    jumps = np.flatnonzero(new_tokens[1:] > 1.5 * new_tokens[:-1] + 64) + 1
    widest = jumps[np.argsort(new_tokens[jumps - 1] / new_tokens[jumps], kind="stable")][:CLASSES]
    even = [round(count * n / CLASSES) for n in range(1, CLASSES)]
    return sorted({*widest.tolist(), *even})
