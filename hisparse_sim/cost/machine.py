"""Roofline of one GPU: what its datasheet rates give at the shares that kernels reach."""

from __future__ import annotations

from hisparse_sim.cost.profile import Profile
from hisparse_sim.errors import UnsupportedModel
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec

WEIGHT_BYTES = {
    "fp8": 1.0,
    "int8": 1.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "int4": 0.5625,
    "mxfp4": 0.53125,
    "nvfp4": 0.5625,
}
"""Bytes a weight, scales included (int4: a 16-bit scale and zero per 32 to 128; OCP MX v1.0; NVFP4:
an fp8 scale per 16). Only rates of reading depend on it; sizes in memory are counted elsewhere."""


class Machine:
    """Seconds of reading bytes and of matrix products on one GPU of ``node``.

    Shares of the datasheet rates are the profile's ``roofline.*`` terms, each with its source.
    """

    def __init__(self, node: NodeSpec, profile: Profile, weight_format: str) -> None:
        if weight_format not in WEIGHT_BYTES:
            raise UnsupportedModel(
                f"weights in {weight_format!r} have no rate here (known: {', '.join(WEIGHT_BYTES)})",
                where="model.weights.dtype",
            )
        self.weight_bytes = WEIGHT_BYTES[weight_format]
        hbm = node.gpu.hbm_bytes_per_s * profile.term("roofline.hbm_share").value()
        bf16 = node.gpu.bf16_flops * profile.term("roofline.bf16_share").value()
        fp8 = node.gpu.fp8_flops * profile.term("roofline.fp8_share").value()
        self.byte_s = 1.0 / hbm
        self.bf16_flop_s = 1.0 / bf16
        self.flop_s = 1.0 / fp8 if weight_format == "fp8" else self.bf16_flop_s
        """Of matrix products with the model's weights: fp8 has its own rate, the rest run in bf16."""
        self.attention_flop_s = 1.0 / (node.gpu.bf16_flops * profile.term("roofline.attention_share").value())

    def matrices_s(self, weights: float, tokens: float) -> float:
        """``tokens`` rows through matrices of ``weights`` elements: the longer of reading and work."""
        return max(weights * self.weight_bytes * self.byte_s, 2.0 * weights * tokens * self.flop_s)


def mla_projection_weights(model: ModelSpec, tp: int) -> float:
    """Elements of one layer's MLA projections on one of ``tp`` ranks.

    The down projections are on every rank, the per-head ones are shared out (DeepSeek-V2, arXiv
    2405.04434, section 2.1; vLLM's MLA layer).
    """
    m = model
    per_head = (m.qk_nope_head_dim + m.qk_rope_head_dim) * (m.q_lora_rank or m.hidden_size)
    per_head += (m.qk_nope_head_dim + m.v_head_dim) * m.kv_lora_rank + m.v_head_dim * m.hidden_size
    shared = m.hidden_size * (m.kv_lora_rank + m.qk_rope_head_dim + m.q_lora_rank)
    return shared + per_head * m.num_heads / tp


def gqa_projection_weights(model: ModelSpec, tp: int) -> float:
    """Elements of one layer's query, key, value and output projections on one of ``tp`` ranks."""
    heads = 2 * model.num_heads / tp + 2 * max(1.0, model.num_kv_heads / tp)
    return heads * model.head_dim * model.hidden_size
