"""Attention that reads its whole context (GQA, dense MLA), by roofline."""

from __future__ import annotations

from collections.abc import Sequence

from hisparse_sim.cost.machine import Machine, gqa_projection_weights, mla_projection_weights
from hisparse_sim.scenario.model import ModelSpec


class DenseAttention:
    """Seconds of the attention modules of all layers on one rank.

    Decode: the longer of reading the context's KV and of scoring it; MLA decodes in the latent space
    (``kv_lora_rank`` values plus rope for scores, ``kv_lora_rank`` for outputs; arXiv 2405.04434),
    prefill in the heads' own dimensions. Projections are priced once on all tokens of the step.
    """

    source = "roofline"

    def __init__(self, model: ModelSpec, machine: Machine, *, tp: int, row_bytes: int) -> None:
        self._machine, self._layers = machine, model.num_layers
        heads = model.num_heads / tp
        if model.attention == "gqa":
            self._weights = gqa_projection_weights(model, tp)
            decode_flops = prefill_flops = 4.0 * heads * model.head_dim
        else:
            self._weights = mla_projection_weights(model, tp)
            decode_flops = 2.0 * heads * (2 * model.kv_lora_rank + model.qk_rope_head_dim)
            width = model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim
            prefill_flops = 2.0 * heads * width
        self._decode_token_s = max(row_bytes * machine.byte_s, decode_flops * machine.attention_flop_s)
        self._pair_s = prefill_flops * machine.attention_flop_s
        self._past_s = row_bytes * machine.byte_s

    def step_s(self, batch: int, context_tokens: int, prefills: Sequence[tuple[int, int]]) -> float:
        """All layers of a step: decodes over ``context_tokens`` in all, and (new, past) chunks."""
        tokens, core = float(batch), context_tokens * self._decode_token_s
        for new, past in prefills:
            tokens += new
            core += max(new * (past + new / 2.0) * self._pair_s, (past + new) * self._past_s)
        return self._layers * (self._machine.matrices_s(self._weights, tokens) + core)

    def in_domain(self, batch: int, context_tokens: int, prefills: Sequence[tuple[int, int]]) -> bool:
        """A roofline has no fitted domain."""
        return True
