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

from hisparse_sim.cost.profile import Profile, Term
from hisparse_sim.scenario.model import ModelSpec

FAMILIES = {(6144, 32): "glm", (7168, 64): "deepseek"}
"""(hidden size, indexer heads) -> the measured model: GLM-5.x, DeepSeek-V3.2."""


class SparseAttention:
    """Seconds of the attention modules of all layers on one rank of ``tp``.

    ``kv``: ``fp8`` (either row format) or ``bf16``. ``exact``: whether model and heads on a GPU are
    those of a table; the nearest stands in otherwise.
    """

    source = "aic"

    def __init__(self, model: ModelSpec, profile: Profile, *, tp: int, kv: str) -> None:
        family = FAMILIES.get((model.hidden_size, model.index_heads))
        self.exact = family is not None and model.index_topk == 2048
        family, heads = family or "glm", max(1, model.num_heads // tp)
        leaders = model.num_indexers
        followers = model.num_layers - leaders
        self._terms: list[Term] = []

        def pick(kind: str, which: str) -> Term:
            found, same = profile.nearest(f"dsa.{kind}.{which}.{which_family[which]}.h", f".{kv}", heads)
            self.exact &= same
            self._terms.append(found)
            return found

        # Only GLM-5.2 has followers, so only it has rows of them.
        which_family = {"indexer": family, "vllm": family, "skip": "glm"}
        lead, slope, lead_prefill = (
            pick("decode", "indexer"),
            pick("decode", "vllm"),
            pick("prefill", "indexer"),
        )
        skip = pick("decode", "skip") if followers else lead
        skip_prefill = pick("prefill", "skip") if followers else lead_prefill
        self._leaders, self._followers = leaders, followers

        def both(name: str) -> float:
            return leaders * lead.value(name) + followers * skip.value(name)

        self._topk = model.index_topk
        self._base_s = both("base_s")
        self._to_8_s, self._to_64_s = both("row_to_8_s"), both("row_to_64_s")
        self._past_64_s, self._selected_s = both("row_past_64_s"), both("selected_s")
        self._topk_s = leaders * lead.value("topk_s")
        self._context_s = leaders * slope.value("context_s")
        self._decode_domain = (
            slope.domain["batch_x_context"][1],
            slope.domain["context_tokens"][1],
            lead.domain["batch"][1],
        )

        self._lead_prefill, self._skip_prefill = _Chunks(lead_prefill), _Chunks(skip_prefill)
        self._lead_launch_s = profile.term(f"dsa.prefill_launch.indexer.{kv}").value()
        self._skip_launch_s = profile.term(f"dsa.prefill_launch.skip.{kv}").value()
        self._chunk = int(lead_prefill.value("chunk_tokens"))
        self._far = lead_prefill.value("far_tokens")
        self._past_limit = lead_prefill.domain["past_tokens"][1]
        self.follower_decode_s = skip.value("base_s")
        """One follower's module at a batch of one: what a prefetched gather can hide behind."""

    def decode_s(self, batch: int, context_tokens: int) -> float:
        """All layers for ``batch`` decodes with ``context_tokens`` in context, in all."""
        if not batch:
            return 0.0
        cost = self._base_s + self._context_s * context_tokens
        cost += self._selected_s * min(context_tokens, batch * self._topk)
        if context_tokens > self._topk:
            cost += self._topk_s
        if batch <= 8:
            return cost + (self._to_8_s + self._to_64_s) * batch
        if batch <= 64:
            return cost + self._to_8_s * 8 + self._to_64_s * batch
        return cost + self._to_8_s * 8 + self._to_64_s * 64 + self._past_64_s * (batch - 64)

    def prefill_s(self, prefills: Sequence[tuple[int, int]]) -> float:
        """All layers for the step's (new, past) chunks, which share one call a layer."""
        tokens, selected, pairs, far = 0, 0.0, 0.0, 0.0
        chunk, topk, limit = self._chunk, self._topk, self._far
        for new, past in prefills:
            tokens += new
            pairs += new * (past + new / 2.0)
            while new > 0:
                part = new if new < chunk else chunk
                selected += part * (past if past < topk else topk)
                middle = past + part / 2.0 - limit
                if middle > 0.0:
                    far += part * middle
                past += part
                new -= part
        if not tokens:
            return 0.0
        calls = -(-tokens // chunk)
        features = (calls, tokens, selected / topk, pairs, far)
        cost = self._leaders * max(self._lead_launch_s, self._lead_prefill(*features))
        if self._followers:
            cost += self._followers * max(self._skip_launch_s, self._skip_prefill(*features))
        return cost

    def step_s(self, batch: int, context_tokens: int, prefills: Sequence[tuple[int, int]]) -> float:
        """All layers of a step."""
        cost = self.decode_s(batch, context_tokens)
        return cost + self.prefill_s(prefills) if prefills else cost

    def in_domain(self, batch: int, context_tokens: int, prefills: Sequence[tuple[int, int]]) -> bool:
        """Whether the step lies inside what the tables cover."""
        pairs, context, rows = self._decode_domain
        inside = (
            self.exact and batch <= rows and context_tokens <= pairs and context_tokens <= batch * context
        )
        return inside and all(past + new <= self._past_limit + self._chunk for new, past in prefills)


class _Chunks:
    """The prefill law of one kind of layer, on features summed over chunks."""

    __slots__ = ("_base", "_far", "_pair", "_selected", "_token")

    def __init__(self, term: Term) -> None:
        self._base, self._token = term.value("base_s"), term.value("token_s")
        self._selected = term.value("token_selected_s")
        self._pair, self._far = term.value("pair_s"), term.value("far_pair_s")

    def __call__(self, calls: float, tokens: float, selected: float, pairs: float, far: float) -> float:
        return (
            self._base * calls
            + self._token * tokens
            + self._selected * selected
            + self._pair * pairs
            + self._far * far
        )
