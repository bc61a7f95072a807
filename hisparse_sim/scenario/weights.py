"""Bytes of a checkpoint, from its shapes: every matrix once, in the format it is stored in.

The sums count what sits in GPU memory: attention, MLPs, experts, routers, embeddings, LM head (once
when tied), norms and the indexers of leading layers; MTP layers are counted as layers with a
projection of their own (``eh_proj``) that share the embedding and the head. Checked against the
755,632,050,320 bytes of the GLM-5.2-FP8 checkpoint (within its safetensors headers) and published
parameter counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from hisparse_sim.scenario.model import ModelSpec, WeightsSpec
from hisparse_sim.scenario.quantization import Quantization

_BYTES_16BIT = 2


@dataclass(frozen=True, slots=True)
class Extras:
    """What decides weights and nothing else, so that a ``ModelSpec`` does not carry it."""

    dense_layer_ids: frozenset[int]
    tied_embeddings: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    other_bytes: int = 0
    """Of towers beside the language model (vision), in 16 bits."""


def checkpoint_weights(model: ModelSpec, extras: Extras, quantization: Quantization) -> WeightsSpec:
    """Byte sums of ``model`` (whose own ``weights`` are not read) under ``quantization``."""
    count = _Counter(model, extras, quantization)
    main = [count.layer(i) for i in range(model.num_layers)]
    mtp = [count.layer(model.num_layers + i, mtp=True) for i in range(model.mtp_layers)]
    embedding = _BYTES_16BIT * model.vocab_size * model.hidden_size
    top = embedding * (1 if extras.tied_embeddings else 2) + _BYTES_16BIT * model.hidden_size
    mtp_shared, mtp_routed = sum(s for s, _ in mtp), sum(r for _, r in mtp)
    bulk = "mlp.experts.0.up_proj" if model.num_experts else "mlp.up_proj"
    return WeightsSpec(
        shared_bytes=top + extras.other_bytes + sum(s for s, _ in main) + mtp_shared,
        routed_bytes=sum(r for _, r in main) + mtp_routed,
        mtp_shared_bytes=mtp_shared,
        mtp_routed_bytes=mtp_routed,
        dtype=quantization.format_of(f"layers.{model.num_layers - 1}.{bulk}").name,
    )


class _Counter:
    """Adds up one layer; ``shared`` and ``routed`` bytes are returned in this order."""

    def __init__(self, model: ModelSpec, extras: Extras, quantization: Quantization) -> None:
        self.model, self.extras, self.quantization = model, extras, quantization

    def matrix(self, module: str, rows: int, columns: int) -> int:
        return self.quantization.format_of(module).matrix_bytes(rows, columns)

    def layer(self, index: int, *, mtp: bool = False) -> tuple[int, int]:
        m, at = self.model, f"layers.{index}."
        shared = self.attention(at + "self_attn.") + 2 * _BYTES_16BIT * m.hidden_size
        if m.attention == "dsa" and (mtp or index in m.indexer_layers):
            shared += self.indexer(at + "self_attn.indexer.")
        if mtp:  # eh_proj joins embedding and hidden state; three norms
            shared += _BYTES_16BIT * (2 * m.hidden_size**2 + 3 * m.hidden_size)
        if not m.num_experts or (not mtp and index in self.extras.dense_layer_ids):
            return shared + self.mlp(at + "mlp.", m.intermediate_size), 0
        shared += m.num_experts * (_BYTES_16BIT * m.hidden_size + 4)  # router, and its fp32 bias
        if m.shared_experts:
            shared += self.mlp(at + "mlp.shared_experts.", m.shared_experts * m.moe_intermediate_size)
        return shared, m.num_experts * self.mlp(at + "mlp.experts.0.", m.moe_intermediate_size)

    def mlp(self, at: str, width: int) -> int:
        hidden = self.model.hidden_size
        return (
            self.matrix(at + "gate_proj", width, hidden)
            + self.matrix(at + "up_proj", width, hidden)
            + self.matrix(at + "down_proj", hidden, width)
        )

    def attention(self, at: str) -> int:
        m = self.model
        if m.attention == "gqa":
            queries, keys = m.num_heads * m.head_dim, m.num_kv_heads * m.head_dim
            size = self.matrix(at + "q_proj", queries, m.hidden_size)
            size += self.matrix(at + "k_proj", keys, m.hidden_size)
            size += self.matrix(at + "v_proj", keys, m.hidden_size)
            size += self.matrix(at + "o_proj", m.hidden_size, queries)
            vectors = (queries + 2 * keys) * self.extras.attention_bias
            vectors += m.hidden_size * self.extras.output_bias + 2 * m.head_dim * self.extras.qk_norm
            return size + _BYTES_16BIT * vectors
        queries = m.num_heads * (m.qk_nope_head_dim + m.qk_rope_head_dim)
        size = self.matrix(at + "kv_a_proj_with_mqa", m.kv_lora_rank + m.qk_rope_head_dim, m.hidden_size)
        size += self.matrix(
            at + "kv_b_proj", m.num_heads * (m.qk_nope_head_dim + m.v_head_dim), m.kv_lora_rank
        )
        size += self.matrix(at + "o_proj", m.hidden_size, m.num_heads * m.v_head_dim)
        if m.q_lora_rank:
            size += self.matrix(at + "q_a_proj", m.q_lora_rank, m.hidden_size)
            size += self.matrix(at + "q_b_proj", queries, m.q_lora_rank)
        else:
            size += self.matrix(at + "q_proj", queries, m.hidden_size)
        return size + _BYTES_16BIT * (m.q_lora_rank + m.kv_lora_rank)

    def indexer(self, at: str) -> int:
        m = self.model
        size = self.matrix(at + "wq_b", m.index_heads * m.index_head_dim, m.q_lora_rank)
        size += self.matrix(at + "wk", m.index_head_dim, m.hidden_size)
        # weights_proj stays in 16 bits; k_norm has a weight and a bias
        return size + _BYTES_16BIT * (m.index_heads * m.hidden_size + 2 * m.index_head_dim)
