"""Attention that reads its whole context (GQA, dense MLA): fitted kernels, roofline for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

from hisparse_sim.cost.domain import Domain
from hisparse_sim.cost.machine import Machine, gqa_projection_weights, mla_projection_weights
from hisparse_sim.cost.profile import Profile, Term
from hisparse_sim.cost.term import GRADE_UNCERTAINTY
from hisparse_sim.scenario.model import ModelSpec

_SHORT_TOKENS = 64.0
"""Up to so many tokens in context in all a decode kernel takes no longer (form ``gqa_decode``)."""


class DenseAttention:
    """Seconds of the attention modules of all layers on one rank.

    GQA: vLLM's kernels as fitted, where the profile has them. MLA decodes in the latent space
    (``kv_lora_rank`` values plus rope for scores, ``kv_lora_rank`` for outputs; arXiv 2405.04434), its
    slope in batch x context from vLLM's module, whose fixed part holds eager launches and is left
    out. Everything else is the longer of reading and of work at shares of the datasheet rates:
    projections once on all tokens of the step, MLA's prefill in the heads' own dimensions.
    """

    def __init__(
        self, model: ModelSpec, machine: Machine, profile: Profile, *, tp: int, row_bytes: int, kv: str
    ) -> None:
        self._machine, self._layers = machine, model.num_layers
        self._lines: dict[int, tuple[float, float, float]] = {}
        self._row_bytes = row_bytes
        self.stands_in: list[str] = []
        self._terms: list[Term] = []
        heads = model.num_heads / tp
        self._base_s = self._doubling_s = self._row_s = self._prefill_base_s = 0.0
        if model.attention == "gqa":
            self._weights = gqa_projection_weights(model, tp)
            decode_flops = prefill_flops = 4.0 * heads * model.head_dim
        else:
            self._weights = mla_projection_weights(model, tp)
            decode_flops = 2.0 * heads * (2 * model.kv_lora_rank + model.qk_rope_head_dim)
            width = model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim
            prefill_flops = 2.0 * heads * width
        self._context_s = max(row_bytes * machine.byte_s, decode_flops * machine.attention_flop_s)
        self._pair_s = prefill_flops * machine.attention_flop_s
        self._new_s, self._past_s = row_bytes * machine.byte_s, row_bytes * machine.byte_s
        self._fitted_prefill = False
        self.domain = Domain()
        decode, prefill = profile.find(f"gqa.decode.{kv}"), profile.find(f"gqa.prefill.{kv}")
        if model.attention == "gqa" and decode is not None and prefill is not None:
            kv_heads = max(1.0, model.num_kv_heads / tp)
            self._terms += [decode, prefill]
            self._base_s, self._doubling_s = decode.value("base_s"), decode.value("doubling_s")
            self._row_s = decode.value("row_head_s") * kv_heads
            self._context_s = decode.value("byte_s") * row_bytes + decode.value("flop_s") * decode_flops
            self.domain = Domain(pairs=decode.domain["total_tokens"][1])
            self._prefill_base_s = prefill.value("base_s")
            self._pair_s = prefill.value("flop_s") * prefill_flops
            # Queries, outputs and the chunk's own KV in 16 bits, then what is in the cache.
            values = 4.0 * model.head_dim * (heads + kv_heads)
            self._new_s = prefill.value("byte_s") * values
            self._past_s = prefill.value("byte_s") * row_bytes
            self._fitted_prefill = True
        elif model.attention != "gqa" and (model.kv_lora_rank, model.qk_rope_head_dim) == (512, 64):
            self._mla_slope(profile, max(1, round(heads)), kv)

    def _mla_slope(self, profile: Profile, heads: int, kv: str) -> None:
        prefix = "mla.decode.vllm.h"
        if not any(term.id.startswith(prefix) for term in profile.terms):
            return
        term, same = profile.nearest(prefix, [f".{kv}", f".{kv}.w16"], heads)
        if not same:
            self.stands_in.append(f"{heads} heads a GPU, priced as {term.id}")
        self._terms.append(term)
        self._context_s = term.value("context_s") + term.value("selected_s")
        self.domain = Domain(pairs=term.domain["batch_x_context"][1])

    @property
    def source(self) -> str:
        """Where the seconds come from."""
        return self._terms[0].source if self._terms else "roofline"

    @property
    def grade(self) -> str:
        """How good that is."""
        return self._terms[0].grade if self._terms else "derived"

    def step_s(
        self, batch: int, context_tokens: int, prefills: Sequence[tuple[int, int]], drafts: int = 0
    ) -> float:
        """All layers of a step: decodes over ``context_tokens`` in all, and (new, past) chunks.

        ``drafts`` that the decodes verify, in all, go through the projections; the context is read once.
        """
        if not prefills and not drafts:
            own_s, context_s, doubling_s = self._lines.get(batch) or self._line(batch)
            doublings = log2(max(_SHORT_TOKENS, context_tokens))
            return own_s + context_s * context_tokens + doubling_s * doublings
        tokens, core = float(batch + drafts), context_tokens * self._context_s
        if batch:
            core += self._base_s + self._row_s * batch
            if context_tokens > _SHORT_TOKENS:
                core += self._doubling_s * log2(context_tokens / _SHORT_TOKENS)
        if prefills:
            core += self._prefill_base_s
        for new, past in prefills:
            tokens += new
            work = new * (past + new / 2.0) * self._pair_s
            read = new * self._new_s + past * self._past_s
            core += work + read if self._fitted_prefill else max(work, read)
        return self._layers * (self._machine.matrices_s(self._weights, tokens) + core)

    def decodes_s(self, batch: int, contexts: Sequence[int]) -> list[float]:
        """``step_s`` of each of several steps that only decode, in the order of their contexts."""
        own_s, context_s, doubling_s = self._lines.get(batch) or self._line(batch)
        longer = contexts if contexts[0] >= _SHORT_TOKENS else [max(_SHORT_TOKENS, n) for n in contexts]
        return [
            own_s + context_s * n + doubling_s * d for n, d in zip(contexts, map(log2, longer), strict=True)
        ]

    def _line(self, batch: int) -> tuple[float, float, float]:
        """Seconds of a step that only decodes one token of context, a token more, and a doubling of those;
        remembered."""
        own_s = self._machine.matrices_s(self._weights, float(batch)) + self._base_s + self._row_s * batch
        own_s -= self._doubling_s * log2(_SHORT_TOKENS)
        layers = self._layers
        line = self._lines[batch] = layers * own_s, layers * self._context_s, layers * self._doubling_s
        return line

    def uncertainty(self, decodes: bool, prefills: bool) -> float:
        """Relative, of a step's seconds: the largest of the fitted terms, else that of arithmetic."""
        return max((t.uncertainty for t in self._terms), default=GRADE_UNCERTAINTY["derived"])
