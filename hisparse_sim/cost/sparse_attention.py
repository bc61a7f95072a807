"""Sparse MLA with an indexer (DeepSeek sparse attention), from fitted module times.

Two kinds of layer: *leaders* have an indexer, *followers* reuse their leader's selection. For vLLM
the fixed part of a decode module comes from SGLang's rows (graph replay, both kinds of layer) and
the slope in batch x context from vLLM's own, leaders only: vLLM's fixed part was timed with eager
launches, and 78 x its 161 us would exceed a whole measured GLM-5.2 step; SGLang's slope at one
request is that of its single-row selection kernel. A prefill chunk above the table's size is priced
as consecutive chunks of that size with growing past.
"""

from __future__ import annotations

from collections.abc import Sequence

from hisparse_sim.cost.domain import Domain
from hisparse_sim.cost.forms import PiecewiseLinear
from hisparse_sim.cost.prefill_form import PREFILL_WORK, Thresholds, thresholds
from hisparse_sim.cost.profile import Profile, Term
from hisparse_sim.scenario.model import ModelSpec

FAMILIES = {(6144, 32): "glm", (7168, 64): "deepseek"}
"""(hidden size, indexer heads) -> the measured model: GLM-5.x, DeepSeek-V3.2."""

GRAPH_ROWS = 256.0
"""Above so many requests SGLang's rows jump fourfold (another kernel, not vLLM's): the line goes on."""


class SparseAttention:
    """Seconds of the attention modules of all layers on one rank of ``tp``.

    ``kv``: ``fp8`` (either row format) or ``bf16``. ``stands_in``: what is not measured itself, in
    words, and what is taken instead; empty when model and heads on a GPU are those of a table.
    """

    def __init__(self, model: ModelSpec, profile: Profile, *, tp: int, kv: str) -> None:
        family = FAMILIES.get((model.hidden_size, model.index_heads))
        self.stands_in: list[str] = []
        if family is None or model.index_topk != 2048:
            self.stands_in.append(f"{model.name}'s attention, priced as GLM-5's")
        family, heads = family or "glm", max(1, model.num_heads // tp)
        weights = ".w16" if model.weights.dtype in ("bf16", "fp16") else ""
        leaders = model.num_indexers
        followers = model.num_layers - leaders
        self._leaders, self._followers = leaders, followers
        self._terms: list[Term] = []

        def pick(kind: str, of: str) -> Term:
            # Some GPUs were measured with attention weights of one format only.
            suffixes = [f".{kv}{end}" for end in (weights, "", ".w16")]
            found, same = profile.nearest(f"dsa.{kind}.{of}.h", suffixes, heads)
            if not same:
                self.stands_in.append(f"{heads} heads a GPU, priced as {found.id}")
            elif not found.id.endswith(suffixes[0]):
                self.stands_in.append(f"{model.weights.dtype} attention weights, priced as {found.id}")
            self._terms.append(found)
            return found

        # Only GLM-5.2 has followers, so only it has rows of them.
        lead, slope = pick("decode.indexer", family), pick("decode.vllm", family)
        lead_prefill = pick("prefill.indexer", family)
        skip = pick("decode.skip", "glm") if followers else lead
        skip_prefill = pick("prefill.skip", "glm") if followers else lead_prefill

        for source in dict.fromkeys(t.source for t in self._terms if t.grade == "derived"):
            self.stands_in.append(profile.sources[source].text)

        def both(name: str) -> float:
            return leaders * lead.value(name) + followers * skip.value(name)

        self._topk = model.index_topk
        self._rows = _together((lead, leaders), (skip, followers))
        self._lead_line, self._skip_line = _together((lead, 1)), _together((skip, 1))
        self._rows_s: dict[int, float] = {}
        self._selected_s, self._reach_s = both("selected_s"), both("reach_s")
        self._topk_s = leaders * lead.value("topk_s")
        self._context_s = leaders * slope.value("context_s")
        self.domain = Domain(
            batch=min(lead.domain["batch"][1], GRAPH_ROWS),
            context=slope.domain["context_tokens"][1],
            pairs=slope.domain["batch_x_context"][1],
            past=lead_prefill.domain["past_tokens"][1],
        )
        self._lead_prefill = Calls(lead_prefill, leaders)
        self._skip_prefill = Calls(skip_prefill, followers) if followers else None
        self.chunk_tokens = chunk = int(lead_prefill.value("chunk_tokens"))
        """What exceeds so many tokens of a prefill is priced as consecutive chunks."""
        self._chunks = Chunks(self._lead_prefill.limits, chunk)
        self._skip_chunks: Chunks | None = None
        if self._skip_prefill is not None and self._skip_prefill.limits != self._lead_prefill.limits:
            self._skip_chunks = Chunks(self._skip_prefill.limits, chunk)
        self.follower_decode_s = float(skip.series("rows_s")[0])
        """One follower's module at a batch of one: what a prefetched gather can hide behind."""

    def decode_s(self, batch: int, context_tokens: int, drafts: int = 0) -> float:
        """All layers for ``batch`` decodes with ``context_tokens`` in context, in all.

        With ``drafts`` tokens to verify, in all, a request has a row for each of its tokens and a
        selection for each row, but its indexer keys are read once: the scores of a few rows are still
        bound by memory (132 bytes and 8,192 operations a key and row, of 32 indexer heads).
        """
        if not batch:
            return 0.0
        topk = self._topk
        if drafts:
            rows = batch + drafts
            selected = min(context_tokens * rows / batch, rows * topk)
            cost = self._rows(rows) + self._context_s * context_tokens + self._selected_s * selected
            return cost + self._reach_s * min(topk, context_tokens) + self._topk_s * (context_tokens > topk)
        rows_s = self._rows_s.get(batch)
        if rows_s is None:
            rows_s = self._rows_s[batch] = self._rows(batch)
        cost = rows_s + self._context_s * context_tokens
        cost += self._selected_s * min(context_tokens, batch * topk)
        # As if one request held as much as it can: adding a short request must not cost less.
        if context_tokens > topk:
            return cost + self._reach_s * topk + self._topk_s
        return cost + self._reach_s * context_tokens

    def decodes_s(self, batch: int, contexts: range) -> list[float]:
        """``decode_s`` of each of several steps, to the last bit."""
        topk, most = self._topk, batch * self._topk
        if contexts[0] < most or contexts[0] <= topk:
            return [self.decode_s(batch, context) for context in contexts]
        rows_s, context_s = self._rows(batch), self._context_s
        selected_s, reach_s, topk_s = self._selected_s * most, self._reach_s * topk, self._topk_s
        return [rows_s + context_s * context + selected_s + reach_s + topk_s for context in contexts]

    def indexer_decode_s(self, batch: int, context_tokens: int) -> float:
        """Of ``decode_s`` without drafts: scoring, selection, and what a layer with an indexer takes longer.

        0 where no layer without one was measured.
        """
        if not self._followers or not batch:
            return 0.0
        fixed = self._leaders * (self._lead_line(batch) - self._skip_line(batch))
        selecting = self._topk_s if context_tokens > self._topk else 0.0
        return max(0.0, fixed) + self._context_s * context_tokens + selecting

    def prefill_s(self, prefills: Sequence[tuple[int, int]]) -> float:
        """All layers for the step's (new, past) chunks, which share one call a layer."""
        features, longest = self._chunks(prefills)
        cost = self._lead_prefill(features, longest)
        if self._skip_prefill is not None:
            if self._skip_chunks is not None:
                features, longest = self._skip_chunks(prefills)
            cost += self._skip_prefill(features, longest)
        return cost

    def step_s(
        self, batch: int, context_tokens: int, prefills: Sequence[tuple[int, int]], drafts: int = 0
    ) -> float:
        """All layers of a step."""
        cost = self.decode_s(batch, context_tokens, drafts)
        return cost + self.prefill_s(prefills) if prefills else cost

    @property
    def source(self) -> str:
        """Where the seconds come from."""
        return self._terms[0].source

    @property
    def grade(self) -> str:
        """How good that is."""
        return "derived" if self.stands_in else self._terms[0].grade

    def uncertainty(self, decodes: bool, prefills: bool) -> float:
        """Relative, of a step's seconds inside the tables: the largest of the terms that price it."""
        kinds = (*((".decode.",) if decodes else ()), *((".prefill.",) if prefills else ()))
        return max((t.uncertainty for t in self._terms if any(kind in t.id for kind in kinds)), default=0.0)


def _together(*lines: tuple[Term, int]) -> PiecewiseLinear:
    """One line in the batch for all layers, from those of each kind; it goes on above ``GRAPH_ROWS``."""
    at = sorted({x for term, _ in lines for x in term.series("rows") if x <= GRAPH_ROWS})
    own = [PiecewiseLinear(term.series("rows"), term.series("rows_s"), 0.0) for term, _ in lines]
    y = [sum(n * line(x) for line, (_, n) in zip(own, lines, strict=True)) for x in at]
    return PiecewiseLinear(at, y, (y[-1] - y[-2]) / (at[-1] - at[-2]))


Features = tuple[float, ...]


class Calls:
    """The prefill law of ``layers`` of one kind, on features summed over the calls of a step.

    A step's chunks share a call. What exceeds ``chunk`` tokens of one sequence is consecutive calls
    with growing past, and so is what exceeds it in all.
    """

    __slots__ = ("_floors", "_work", "limits")

    def __init__(self, term: Term, layers: int) -> None:
        self._work = tuple(layers * term.value(name) for name in PREFILL_WORK)
        seconds = (layers * v for v in term.series("floor_s"))
        self._floors = tuple(zip(term.series("floor_past_tokens"), seconds, strict=True))
        self.limits: Thresholds = thresholds(term.params)

    def __call__(self, features: Features, longest_past: int) -> float:
        c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14 = self._work
        (calls, tokens, past_2k, past_4k, keys, selected, pairs, cross, far, o1, o2, f1, f2,
         scattered, together) = features  # fmt: skip
        work = c0 * calls + c1 * tokens + c4 * keys + c5 * selected + c6 * pairs + c7 * cross
        work += c13 * scattered
        if together:
            work += c14 * together
        if past_2k:
            work += c2 * past_2k + c3 * past_4k
        if f1:
            work += c8 * far + c9 * o1 + c10 * o2 + c11 * f1 + c12 * f2
        floor = 0.0
        for past, seconds in self._floors:
            if longest_past < past:
                break
            floor = seconds
        floor *= calls
        return work if work > floor else floor


class Chunks:
    """Features of a step's prefill chunks, in the order of ``PREFILL_WORK``."""

    __slots__ = ("_chunk", "_far", "_many", "_over_2k", "_over_4k", "_step", "_topk")

    def __init__(self, limits: Thresholds, chunk: int) -> None:
        self._topk, self._far = limits["topk_rows"], limits["far_tokens"]
        self._many, self._step = limits["many_keys"], limits["step_keys"]
        self._chunk = chunk
        self._over_2k, self._over_4k = max(0.0, chunk - 2048.0), max(0.0, chunk - 4096.0)

    def __call__(self, prefills: Sequence[tuple[int, int]]) -> tuple[Features, int]:
        """The features, and the longest past."""
        topk, chunk, first_step = self._topk, self._chunk, self._step[0]
        tokens = keys = longest = 0
        for new, past in prefills:
            tokens += new
            keys += past + new
            if past > longest:
                longest = past
        read = keys
        selected = pairs = cross = far = over_1 = over_2 = from_1 = from_2 = scattered = 0.0
        for new, past in prefills:
            others = keys - past - new
            while new > 0:
                part = new if new < chunk else chunk
                seen = others + past + part
                pairs += part * (past + part / 2.0)
                cross += part * seen
                if past >= topk:
                    selected += part
                    scattered += part
                else:
                    ramp = part if part < topk - past else topk - past
                    selected += (ramp * (past + ramp / 2.0) + (part - ramp) * topk) / topk
                    scattered += part * past / topk
                if seen > first_step:
                    from_1 += part
                    if seen > self._step[1]:
                        from_2 += part
                        far += part * max(0.0, past + part / 2.0 - self._far)
                        over_1 += part * max(0.0, seen - self._many[0])
                        over_2 += part * max(0.0, seen - self._many[1])
                past += part
                new -= part
                if new:  # the next call reads this one's keys again
                    read += past
        together = tokens * (1.0 - 1.0 / len(prefills))
        if tokens <= chunk:
            calls, past_2k, past_4k = 1, max(0.0, tokens - 2048.0), max(0.0, tokens - 4096.0)
        else:
            calls, rest = divmod(tokens, chunk)
            past_2k = calls * self._over_2k + max(0.0, rest - 2048.0)
            past_4k = calls * self._over_4k + max(0.0, rest - 4096.0)
            calls += rest > 0
        return (calls, tokens, past_2k, past_4k, read, selected, pairs, cross, far,
                over_1, over_2, from_1, from_2, scattered, together), longest  # fmt: skip
