"""Where a step's time goes at one operating point of a scenario: given, or its workload's own."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from statistics import median

from hisparse_sim.errors import InputError
from hisparse_sim.estimate.anatomy import Anatomy, decode_anatomy, prefill_anatomy
from hisparse_sim.estimate.concurrency import mode_pools
from hisparse_sim.memory.sglang_pools import chunk_tokens as chunk_size
from hisparse_sim.scenario.scenario import Scenario
from hisparse_sim.simulation.replica import build_replica
from hisparse_sim.workload.make import make_workload

_PEEKED = 200
"""Sessions of the workload that the usual context is taken from."""


@dataclass(frozen=True, slots=True)
class Explained:
    """A decode step and a prefill chunk. ``notes`` and ``warnings``: what to know of them."""

    steps: tuple[Anatomy, Anatomy]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def explained(
    asked: Scenario,
    *,
    batch: int | None = None,
    context_tokens: int | None = None,
    chunk_tokens: int | None = None,
    past_tokens: int | None = None,
    resident_share: float | None = None,
) -> Explained:
    """What is left out is the workload's: its requests as far as they fit, its median context, a step's
    token budget, and the pages that the pool leaves on the GPU.

    Raises ``InputError`` naming the flag, ``Infeasible`` for what vLLM would not start with.
    """
    replica = build_replica(asked)
    longest = replica.pools.max_model_len
    clients, tokens = _asked_for(asked, longest, replica.scheduler.config.max_num_seqs)
    if context_tokens is not None:
        tokens = context_tokens
    if tokens > longest:
        raise InputError(f"{tokens:,} tokens exceed max_model_len {longest:,}", where="--context")
    pools = mode_pools(asked.model, asked.node, asked.engine, asked.engine.mode)
    fits = max(1, pools.count(tokens).requests)
    requests = min(clients, fits) if batch is None else batch
    if requests < 1:
        raise InputError(f"{requests} requests; at least 1", where="--batch")
    notes = (f"{requests:,} such requests do not fit, {fits:,} do",) if requests > fits else ()
    share = pools.resident_share(tokens, requests) if resident_share is None else resident_share
    if not 0.0 <= share <= 1.0:
        raise InputError(f"{share:g} is no share from 0 to 1", where="--resident-share")
    budget = replica.scheduler.config.max_num_batched_tokens
    if asked.engine.disaggregation_mode == "decode":
        budget = chunk_size(asked.node, asked.engine)
    new = min(tokens, budget) if chunk_tokens is None else chunk_tokens
    before = max(0, tokens - new) if past_tokens is None else past_tokens
    steps = (
        decode_anatomy(replica.cost, requests, tokens, share),
        prefill_anatomy(replica.cost, new, before, share),
    )
    return Explained(steps, notes, tuple(replica.warnings))


def _asked_for(asked: Scenario, longest: int, places: int) -> tuple[int, int]:
    """Requests at a time, and tokens of one in the middle of its output, of the workload."""
    workload = make_workload(asked.workload, asked.seed)
    turns = (r for session in islice(workload.sessions(), _PEEKED) for r in session.requests)
    tokens = [r.prompt_tokens + r.output_tokens // 2 for r in turns]
    usual = min(longest, max(1, round(median(tokens)))) if tokens else longest
    return workload.concurrency or places, usual
