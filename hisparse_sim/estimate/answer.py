"""The whole answer: a row a context, each mode's count, speed and limit, and what would move them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hisparse_sim.errors import InputError
from hisparse_sim.estimate.concurrency import (
    Count,
    ModePools,
    min_host_bytes,
    mode_pools,
    overhead_variants,
)
from hisparse_sim.estimate.differences import Differences, differences
from hisparse_sim.estimate.explain import Gain, gains, limit_words, recommended_batched_tokens
from hisparse_sim.estimate.latency import Decode, DecodeModel, decode_model
from hisparse_sim.memory.host import GIB, place
from hisparse_sim.memory.layout import ceil_div
from hisparse_sim.scenario.engine import EngineSpec, Mode
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec

MODES: tuple[Mode, ...] = ("resident", "offload", "hisparse")


@dataclass(frozen=True, slots=True)
class ModeAnswer:
    """One mode at one length. ``requests`` and ``range`` are totals over DP, ``per_dp`` of one replica.

    ``range``: with a reserve 10 % larger and smaller. ``decode``: none without requests or profile.
    """

    requests: int
    per_dp: int
    range: tuple[int, int]
    count: Count
    limit_words: str
    decode: Decode | None
    blocks_per_request: int | None


@dataclass(frozen=True, slots=True)
class Row:
    """One context length, prompt and output together."""

    context_tokens: int
    modes: dict[Mode, ModeAnswer]
    min_host_gib_per_dp: int | None
    """Host pool a replica for the requests that its GPU pool runs; none without HiSparse."""
    gains: tuple[Gain, ...]
    batched_tokens: tuple[int, int] | None
    """(recommended ``max_num_batched_tokens``, HiSparse requests with it)."""
    differences: Differences | None
    users_host_gib_per_dp: int | None = None
    """Host pool a replica that the asked users need at this length, whether or not the GPU runs them."""

    @property
    def main(self) -> Mode:
        """The mode that the row's limit is about: HiSparse where it runs."""
        unsupported = self.modes["hisparse"].count.limit == "unsupported"
        return "resident" if unsupported else "hisparse"


@dataclass(frozen=True, slots=True)
class Answer:
    """What was asked, the pools behind it, and a row a length.

    ``longest_tokens``: for ``users``, the longest context in each mode (0: not even one token each).
    ``untimed``: why there are no seconds; empty when there are. ``warnings``: assumptions that the
    seconds stretch, the largest extrapolation named.
    """

    model: ModelSpec
    node: NodeSpec
    engine: EngineSpec
    output_tokens: int
    nodes: int
    pools: dict[Mode, ModePools]
    rows: tuple[Row, ...]
    users: int | None
    longest_tokens: dict[Mode, int]
    untimed: str
    warnings: tuple[str, ...] = ()


def answer(
    model: ModelSpec,
    node: NodeSpec,
    engine: EngineSpec,
    contexts: Sequence[int],
    *,
    output_tokens: int = 1024,
    users: int | None = None,
    calibration: str | None = None,
) -> Answer:
    """Answer for each context length in ``contexts`` (tokens in all).

    Raises ``InputError`` for a context longer than the model or the engine allows and for settings that
    contradict each other, ``Infeasible`` for host memory that the node does not have. A model that does
    not fit is an answer: 0, limit ``weights``.
    """
    check_contexts(model, engine, contexts)
    pools: dict[Mode, ModePools] = {m: mode_pools(model, node, engine, m) for m in MODES}
    variants = {m: overhead_variants(model, node, engine, m) for m in MODES}
    pricers: dict[Mode, DecodeModel | None] = {}
    untimed = ""
    for mode, pool in pools.items():
        pricers[mode], why = (
            (None, "") if pool.sizes is None else decode_model(model, node, pool, calibration=calibration)
        )
        untimed = untimed or why
    rows = tuple(
        _row(model, node, engine, context, output_tokens, users, pools, variants, pricers)
        for context in contexts
    )
    longest: dict[Mode, int] = {}
    if users is not None:
        longest = {m: longest_context(model, engine, p, users) for m, p in pools.items()}
    nodes = place(node, engine).nodes
    warnings = _warnings(rows, [p for p in pricers.values() if p is not None])
    return Answer(model, node, engine, output_tokens, nodes, pools, rows, users, longest, untimed, warnings)


def _warnings(rows: Sequence[Row], pricers: Sequence[DecodeModel]) -> tuple[str, ...]:
    found = [text for pricer in pricers for text in pricer.warnings]
    speeds = [m.decode for row in rows for m in row.modes.values() if m.decode is not None]
    outside = [speed for speed in speeds if speed.beyond]
    if outside:
        furthest = max((speed.beyond[0] for speed in outside), key=lambda limit: limit.beyond)
        found.append(
            f"{len(outside)} of {len(speeds)} speeds are extrapolated from what was measured; furthest: "
            f"{furthest.words()}"
        )
    return tuple(dict.fromkeys(found))


def longest_context(model: ModelSpec, engine: EngineSpec, pools: ModePools, users: int) -> int:
    """Tokens in all of the longest context at which ``users`` run at once over all replicas; 0: none."""
    each = ceil_div(users, engine.dp)
    fixed = engine.max_model_len
    longest = model.max_context_tokens if fixed == "auto" else fixed

    def run(tokens: int) -> bool:
        return pools.count(tokens).requests >= each

    if run(longest):
        return longest
    low, high = 0, longest
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if run(middle) else (low, middle)
    return low


def _row(
    model: ModelSpec,
    node: NodeSpec,
    engine: EngineSpec,
    tokens: int,
    output_tokens: int,
    users: int | None,
    pools: dict[Mode, ModePools],
    variants: dict[Mode, tuple[ModePools, ModePools]],
    pricers: dict[Mode, DecodeModel | None],
) -> Row:
    dp = engine.dp
    modes: dict[Mode, ModeAnswer] = {}
    for mode, pool in pools.items():
        count = pool.count(tokens)
        pricer = pricers[mode]
        low, high = (v.count(tokens).requests for v in variants[mode])
        modes[mode] = ModeAnswer(
            requests=count.requests * dp,
            per_dp=count.requests,
            range=(low * dp, high * dp),
            count=count,
            limit_words=limit_words(pool, count, tokens),
            decode=pricer.at(count.requests, tokens, output_tokens) if pricer else None,
            blocks_per_request=None if pool.sizes is None else pool.blocks_per_request(tokens),
        )
    sparse = pools["hisparse"]
    runs = sparse.sizes is not None
    main: Mode = "resident" if modes["hisparse"].count.limit == "unsupported" else "hisparse"
    on_gpu = min(modes["hisparse"].count.gpu, engine.max_num_seqs)
    return Row(
        context_tokens=tokens,
        modes=modes,
        min_host_gib_per_dp=_gib(min_host_bytes(sparse, tokens, on_gpu)) if runs and on_gpu else None,
        gains=tuple(gains(model, node, engine, main, tokens, pools[main])),
        batched_tokens=recommended_batched_tokens(model, node, engine, tokens) if runs else None,
        differences=differences(
            model, node, engine, pools["resident"], sparse, tokens, min(output_tokens, tokens - 1)
        ),
        users_host_gib_per_dp=(
            _gib(min_host_bytes(sparse, tokens, ceil_div(users, dp))) if users and runs else None
        ),
    )


def check_contexts(model: ModelSpec, engine: EngineSpec, contexts: Sequence[int]) -> None:
    """Raise ``InputError`` for a length beyond what the model or the engine allows."""
    fixed = engine.max_model_len
    if fixed != "auto" and fixed > model.max_context_tokens:
        raise InputError(
            f"{fixed:,} tokens, but {model.name} is made for at most {model.max_context_tokens:,}",
            where="engine.max_model_len",
        )
    for tokens in contexts:
        if tokens > model.max_context_tokens:
            raise InputError(
                f"{tokens:,} tokens, but {model.name} is made for at most {model.max_context_tokens:,}",
                where="--context",
            )
        if fixed != "auto" and tokens > fixed:
            raise InputError(
                f"{tokens:,} tokens are more than engine.max_model_len, {fixed:,}", where="--context"
            )


def _gib(size: int) -> int:
    return ceil_div(size, GIB)
