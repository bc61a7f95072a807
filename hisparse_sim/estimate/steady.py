"""A deployment serving a workload for long: closed-form means and percentiles at any load.

A mean-value model over the steps that the cost room prices. Requests of a class j need ``k_j`` chunks
of prefill, which make a step ``e_j`` longer in all, and the mean request ``o`` steps of decode; with
``b`` decoding, a step without a chunk takes ``s(b)``. A request of a closed loop of N meets the work of
the N - 1 others only, q = (N - 1) / N of all (the arrival theorem in Schweitzer's approximation: Reiser and
Lavenberg, J. ACM 27(2), 1980; Bard, 1979); in an open loop q = 1. With ``b`` decoding on average it decodes
beside ``q b`` others in steps of ``s(1 + q b) / (1 - q x e)`` seconds, so that a replica that completes ``x``
requests a second has ``1 / x = q e + o s(1 + q b) / b``, and Little's law gives the load behind ``b``.
Waiting for prefill is M/G/1 (Pollaczek-Khinchine) on the others' work, and no longer than all of it. Where
all clients begin at once, their first prompts are worked off one after the other, and the mix of what
follows lacks those. What the prefix caches hold is the share of all live sessions' tokens that fits them,
which no replacement beats. A simulation says what this leaves out: bursts, preemption, order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from hisparse_sim.cost.work import PARTS, StepWork
from hisparse_sim.estimate.concurrency import ModePools
from hisparse_sim.estimate.mix import Mix

if TYPE_CHECKING:
    from hisparse_sim.cost.step import StepCostModel

Floats = npt.NDArray[np.float64]

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_GRID = 24
_HALVINGS = 40
_PLACES = 20
_WAITS = tuple(-math.log(1 - (n + 0.5) / 5) for n in range(5))
"""Exponential waits of mean 1: five values that stand for a fifth each."""
_DECODES_BESIDE = 8
"""Decodes in the step that a chunk is priced in; its price hardly depends on them."""


@dataclass(frozen=True, slots=True)
class Load:
    """Of one replica: clients of a closed loop, or requests a second of an open one."""

    clients: float | None = None
    rate_per_s: float | None = None
    at_once: bool = False
    """All clients begin at time 0, with ``first_wave`` of all requests."""
    first_wave: float = 0.0


@dataclass(frozen=True, slots=True)
class Served:
    """Of one replica. ``figures``: seconds by ``ttft_p95`` and the like. ``limit``: what ends growth.

    ``least``: the same where nobody waits by chance: what the deployment cannot do better than.

    ``overloaded``: requests come faster than they are served (``figures`` are infinite then).
    """

    requests_per_s: float
    output_tokens_per_s: float
    decoding: float
    hit_share: float
    figures: dict[str, float]
    least: dict[str, float]
    limit: str
    overloaded: bool = False


class Chunks:
    """What prefill of each class adds to steps, in parts: (classes, parts), computed and from cache.

    ``computed``: without any hit; ``cached``: with all of them.
    """

    def __init__(self, cost: StepCostModel, mix: Mix, budget_tokens: int, host_share: float) -> None:
        self._cost, self._host_share = cost, host_share
        context = round(mix.context_tokens)
        # SGLang's steps with prefill decode nothing, unless told to: those who decode wait that long.
        self.together = cost.engine.kind == "vllm" or cost.engine.enable_mixed_chunk
        self._beside = cost.decode_work(_DECODES_BESIDE if self.together else 0, context, 1.0)
        self._alone = _parts(cost, self._beside)
        self.chunk_tokens = max(1, budget_tokens - self._beside.tokens)
        self.computed = np.array([self._class(c.prompt_tokens, 0.0) for c in mix.classes])
        self.cached = np.array(
            [self._class(c.prompt_tokens - c.hit_tokens, c.hit_tokens) for c in mix.classes]
        )
        self.counts = np.array(
            [
                [c.prompt_tokens / self.chunk_tokens, (c.prompt_tokens - c.hit_tokens) / self.chunk_tokens]
                for c in mix.classes
            ]
        )

    def _class(self, new: float, past: float) -> Floats:
        whole, rest = divmod(round(max(1.0, new)), self.chunk_tokens)
        total = np.zeros(PARTS)
        if whole:
            # Cost is smooth in the past: Simpson's rule over the chunks.
            places = [0, (whole - 1) / 2, whole - 1] if whole > 2 else range(whole)
            weights = [whole / 6, 4 * whole / 6, whole / 6] if whole > 2 else [1] * whole
            for place, weight in zip(places, weights, strict=True):
                total += weight * self._chunk(self.chunk_tokens, past + place * self.chunk_tokens, past)
        if rest:
            total += self._chunk(rest, past + whole * self.chunk_tokens, past)
        return total

    def _chunk(self, new: int, past: float, history: float) -> Floats:
        beside, hisparse = self._beside, self._cost.misses is not None
        work = replace(
            beside,
            prefills=((new, round(past)),),
            staged_tokens=round(history * self._host_share) if hisparse else 0,
            mirrored_tokens=beside.mirrored_tokens + new if hisparse else 0,
        )
        return _parts(self._cost, work) - self._alone


@dataclass(frozen=True, slots=True)
class _Work:
    """Requests that a replica serves: ``shares`` of classes, ``seconds`` that each one's chunks add and how
    many there are, (classes,); mean ``steps`` of decode. ``others``: q, the share of all work that one meets.
    """

    shares: Floats
    seconds: Floats
    counts: Floats
    steps: float
    think_s: float
    clients: float
    others: float

    @property
    def added_s(self) -> float:
        """Seconds that a mean request's chunks add to steps."""
        return float(self.shares @ self.seconds)

    @property
    def chunks(self) -> float:
        """Of a mean request."""
        return float(self.shares @ self.counts)


def _parts(cost: StepCostModel, work: StepWork) -> Floats:
    return np.array(cost.step(work).parts_s)


class Steady:
    """One replica under ``mix``. ``cost`` prices ``pools.engine``'s steps; ``chunks`` are priced with it."""

    def __init__(self, pools: ModePools, cost: StepCostModel, mix: Mix, chunks: Chunks) -> None:
        assert pools.sizes is not None
        self.pools, self.cost, self.mix, self.chunks = pools, cost, mix, chunks
        self.engine = pools.engine
        tokens = math.ceil(mix.full_tokens)
        count = pools.count(tokens)
        self.fits = pools.count(min(mix.longest_tokens, pools.sizes.max_model_len)).requests > 0
        self.most, self.limit = max(1, count.requests), count.limit
        self._batches = np.unique(np.round(np.geomspace(1, self.most, _GRID)))
        context = round(mix.context_tokens)
        works = [
            cost.decode_work(int(b), context, pools.resident_share(tokens, int(b))) for b in self._batches
        ]
        self._decode_parts = np.array([_parts(cost, work) for work in works])
        self._steps = (mix.output_tokens - 1) / self.engine.tokens_a_step
        self._shares = np.array([c.share for c in mix.classes])
        self._outputs = np.array([c.output_tokens for c in mix.classes])
        self._hits = np.array([c.hit_tokens for c in mix.classes])
        self._prompts = np.array([c.prompt_tokens for c in mix.classes])
        self.factors = np.ones(PARTS)
        self.drawn(self.factors)

    def drawn(self, factors: Floats) -> Steady:
        """Take each part of every step so many times as long (of the order of ``StepCost``)."""
        self.factors = factors
        self._decode_s = self._decode_parts @ factors
        self._computed_s, self._cached_s = self.chunks.computed @ factors, self.chunks.cached @ factors
        return self

    def step_s(self, decoding: float) -> float:
        """Seconds of a step without prefill."""
        return float(np.interp(decoding, self._batches, self._decode_s))

    def at(self, load: Load) -> Served:
        """What ``load`` gets."""
        if load.clients is not None:
            hits = self._hit_share(load.clients)
            return self._closed(load, hits)
        served, hits = None, 1.0
        for _ in range(3):  # live sessions hang on the answer
            served = self._open(load, hits)
            if served.overloaded:
                break
            figures = served.figures
            live = (load.rate_per_s or 0.0) * (figures["e2e_mean"] + self.mix.think_s)
            hits = self._hit_share(live)
        assert served is not None
        return served

    def _hit_share(self, live: float) -> float:
        """Of what could be found again, what fits the largest tier beside all ``live`` sessions."""
        sizes, engine = self.pools.sizes, self.engine
        assert sizes is not None
        if not engine.enable_prefix_caching or (engine.kind == "sglang" and engine.mode == "hisparse"):
            return 0.0
        blocks = sizes.num_gpu_blocks - 1
        if engine.mode == "hisparse":
            blocks = sizes.num_host_blocks - 1
        elif engine.mode == "offload":
            blocks = max(blocks, sizes.num_cpu_chunks)
        return min(1.0, blocks * sizes.block_size / (max(1.0, live) * self.mix.full_tokens))

    def _work(self, hits: float, clients: float, alone: float = 0.0) -> _Work:
        """What is served, without the share ``alone`` of all requests, which are first prompts."""
        shares, steps, think_s = self._shares, self._steps, self.mix.think_s
        left = np.maximum(0.0, shares - alone * self._first_prompts())
        if 0.0 < alone < 1.0 and left.sum():
            shares = left / left.sum()
            steps = (float(shares @ self._outputs) - 1) / self.engine.tokens_a_step
            think_s /= 1 - alone  # first prompts follow no pause
        seconds = hits * self._cached_s + (1 - hits) * self._computed_s
        counts = hits * self.chunks.counts[:, 1] + (1 - hits) * self.chunks.counts[:, 0]
        others = max(0.0, clients - 1) / clients if math.isfinite(clients) else 1.0
        return _Work(shares, seconds, counts, steps, think_s, clients, others)

    def _first_prompts(self) -> Floats:
        """Shares, together 1, of classes that find less than half of their prompt; of all where none do."""
        new = self._shares * (self._hits < self._prompts / 2)
        return new / new.sum() if new.sum() else self._shares

    def _loads_s(self, hits: float, live: float) -> Floats:
        """Seconds of reading each class's history from the offload tier, where it is not on the GPU."""
        sizes, engine = self.pools.sizes, self.engine
        assert sizes is not None
        if engine.mode != "offload":
            return np.zeros(len(self._hits))
        on_gpu = (sizes.num_gpu_blocks - 1) * sizes.block_size / (max(1.0, live) * self.mix.full_tokens)
        token_bytes = sizes.block_bytes / sizes.block_size
        rate = self.cost.node.host_link.copy_h2d_bytes_per_s
        return self._hits * max(0.0, hits - min(1.0, on_gpu)) * token_bytes / rate

    def _most_decoding(self, work: _Work) -> tuple[float, str]:
        """Where growth ends: memory, or every step has a chunk of prefill already."""
        by_prefill = work.steps / work.chunks if work.chunks > 0 and self.chunks.together else math.inf
        return (by_prefill, "prefill") if by_prefill < self.most else (float(self.most), self.limit)

    def _felt_s(self, decoding: float, work: _Work) -> float:
        """Seconds of a step without prefill in which a request decodes."""
        return self.step_s(1 + work.others * decoding)

    def _rate(self, decoding: float, work: _Work) -> float:
        return 1 / (work.others * work.added_s + work.steps * self._felt_s(decoding, work) / decoding)

    def _closed(self, load: Load, hits: float) -> Served:
        clients = load.clients or 0.0
        wave = load.first_wave if load.at_once else 0.0
        work = self._work(hits, clients, wave)
        loads = self._loads_s(hits, clients)
        most, limit = self._most_decoding(work)
        low, high = 0.0, min(most, clients)

        def needed(decoding: float) -> tuple[float, float, float]:
            rate = self._rate(decoding, work)
            wait = self._wait(rate, decoding, work)
            own = float(work.shares @ (self._own_s(decoding, work) + loads))
            return decoding + rate * (own + wait + work.think_s), rate, wait

        total, rate, wait = needed(high)
        excess = 0.0
        if total <= clients:
            excess = (clients - total) / rate
            decoding = high
        else:
            for _ in range(_HALVINGS):
                decoding = (low + high) / 2
                total, rate, wait = needed(decoding)
                low, high = (decoding, high) if total < clients else (low, decoding)
            limit = "clients"
        return self._served(load, rate, decoding, (wait, excess), hits, work, loads, limit)

    def _open(self, load: Load, hits: float) -> Served:
        rate = load.rate_per_s or 0.0
        work = self._work(hits, math.inf)
        most, limit = self._most_decoding(work)
        if rate >= self._rate(most, work):
            return self._overloaded(self._rate(most, work), most, hits, limit)
        low, high = 0.0, most
        for _ in range(_HALVINGS):
            decoding = (low + high) / 2
            low, high = (decoding, high) if self._rate(decoding, work) < rate else (low, decoding)
        decoding = high
        wait = self._wait(rate, decoding, work)
        loads = self._loads_s(hits, rate * (self.mix.think_s + work.added_s))
        return self._served(load, rate, decoding, (wait, 0.0), hits, work, loads, limit)

    def _own_s(self, decoding: float, work: _Work) -> Floats:
        """Seconds of each class's own chunks, with the steps that they are in."""
        step_s = self.step_s(work.others * decoding) if self.chunks.together else 0.0
        return work.seconds + work.counts * step_s

    def _wait(self, rate: float, decoding: float, work: _Work) -> float:
        own = self._own_s(decoding, work)
        mean, square = float(work.shares @ own), float(work.shares @ own**2)
        met = work.others * rate
        bound = max(0.0, work.clients - 1) * mean
        return min(bound, met * square / (2 * (1 - met * mean)) if met * mean < 1 else bound)

    def _overloaded(self, rate: float, decoding: float, hits: float, limit: str) -> Served:
        never = {f"{m}_{q}": math.inf for m in ("ttft", "tpot", "itl", "e2e") for q in ("mean", *QUANTILES)}
        return Served(rate, rate * self.mix.output_tokens, decoding, hits, never, never, limit, True)

    def _served(
        self, load: Load, rate: float, decoding: float, waits: tuple[float, float], hits: float,
        work: _Work, loads: Floats, limit: str,
    ) -> Served:  # fmt: skip
        """``waits``: mean of those by chance, and what everybody waits for a place."""
        by_chance, excess = waits
        each, shares, step = self.engine.tokens_a_step, work.shares, self._felt_s(decoding, work)
        added = work.added_s / work.chunks if work.chunks else 0.0
        each_step = work.others * work.chunks * decoding / work.steps if work.steps > 0 else 1.0
        mixed = min(1.0, each_step)
        felt = step + (mixed if self.chunks.together else each_step) * added
        noise = added * math.sqrt(mixed * (1 - mixed) / max(1.0, work.steps)) / each
        own = self._own_s(decoding, work)
        busy = min(1.0, work.others * rate * float(shares @ own))
        # Whoever comes waits for the step under way, if there is one.
        first = own + loads + min(1.0, busy + work.others * decoding) * felt / 2 + excess
        decode = np.maximum(self._outputs - 1, 0) / each * felt
        ways = [(0.0, 1 - busy), *((by_chance / busy * w, busy / len(_WAITS)) for w in _WAITS if busy > 0)]
        wave = self._wave(load, step, felt) if load.at_once and load.clients and load.first_wave else None
        rest = 1 - load.first_wave if wave else 1.0
        ttft = [(first + wait, shares * share * rest) for wait, share in ways]
        tpot = [(np.full(len(shares), felt / each), shares * rest)]
        e2e = [(first + wait + decode, shares * share * rest) for wait, share in ways]
        gaps = [(np.array([step, step + added]), rest * np.array([1 - mixed, mixed]))]
        if wave:
            to_first, a_token, weight, slow_s, slow = wave
            gaps.append((np.array([felt, slow_s]), load.first_wave * np.array([1 - slow, slow])))
            whole = to_first + a_token * each * self._steps
            ttft.append((to_first, weight))
            tpot.append((a_token, weight))
            e2e.append((whole, weight))
            # A client's first request, then its others one by one.
            rate = 1 / (load.first_wave * float(whole.mean()) / (load.clients or 1.0) + rest / rate)
        figures = _spread("ttft", ttft) | _spread("tpot", tpot) | _spread("e2e", e2e) | _spread("itl", gaps)
        least = (
            _spread("ttft", [(first, self._shares)])
            | _spread("tpot", [(np.full(1, felt / each), np.ones(1))])
            | _spread("e2e", [(first + decode, self._shares)])
            | _spread("itl", [(np.array([step, step + added]), np.array([1 - mixed, mixed]))])
        )
        for label, q in QUANTILES.items():
            figures[f"tpot_{label}"] += NormalDist().inv_cdf(q) * noise
        return Served(rate, rate * self.mix.output_tokens, decoding, hits, figures, least, limit)

    def _wave(self, load: Load, step: float, felt: float) -> tuple[Floats, Floats, Floats, float, float]:
        """First prompts that all come at once: seconds to the first token, a token, and their shares.

        They are worked off one after the other, and those that decode meanwhile meet a chunk every step:
        how long such a step is, and the share of these requests' steps.
        """
        clients, each = load.clients or 0.0, self.engine.tokens_a_step
        new = self._first_prompts()
        chunks, computed = float(new @ self.chunks.counts[:, 0]), float(new @ self._computed_s)
        alone = computed + chunks * step if self.chunks.together else computed
        waits = np.linspace(alone, max(1.0, clients) * alone, _PLACES)
        slow_s = step + computed / chunks
        slow = np.clip((clients * alone - waits) / slow_s, 0, self._steps)
        if not self.chunks.together:
            slow = (clients * alone - waits) / max(1.0, self._steps)
            a_token = (slow + felt) / each
            return waits, a_token, np.full(_PLACES, load.first_wave / _PLACES), felt, 0.0
        a_token = (slow * slow_s + (self._steps - slow) * felt) / max(1.0, self._steps) / each
        share = float(slow.mean()) / max(1.0, self._steps)
        return waits, a_token, np.full(_PLACES, load.first_wave / _PLACES), slow_s, share


def _spread(name: str, parts: list[tuple[Floats, Floats]]) -> dict[str, float]:
    """Mean and quantiles of values with weights that add up to 1."""
    values, weights = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    order = np.argsort(values, kind="stable")
    values, reached = values[order], np.cumsum(weights[order])
    places = np.minimum(len(values) - 1, np.searchsorted(reached, np.array([*QUANTILES.values()]) - 1e-9))
    quantiles = zip(QUANTILES, values[places].tolist(), strict=True)
    return {f"{name}_mean": float(values @ weights[order]), **{f"{name}_{q}": v for q, v in quantiles}}
