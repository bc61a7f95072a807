"""What a model is, as far as its memory and its step time go."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from hisparse_sim.scenario.base import Record, Sourced

Attention = Literal["dsa", "mla", "gqa"]


class WeightsSpec(Record):
    """Bytes of a whole checkpoint as it sits in GPU memory, before any sharding.

    ``shared_bytes`` (attention, dense layers, shared experts, embeddings) divide by TP;
    ``routed_bytes`` (routed experts) divide by DP x TP under expert parallelism, by TP without.
    """

    shared_bytes: NonNegativeInt
    routed_bytes: NonNegativeInt = 0
    mtp_shared_bytes: NonNegativeInt = 0
    """The part of ``shared_bytes`` in MTP layers, which vLLM loads only when it drafts with them."""
    mtp_routed_bytes: NonNegativeInt = 0
    """The same part of ``routed_bytes``."""
    dtype: str
    """Of the bulk of the weights: ``fp8``, ``bf16``, ``int4``, ``nvfp4`` …"""


class ModelSpec(Record):
    """A decoder-only transformer.

    ``attention``: ``dsa`` is sparse MLA with an indexer (DeepSeek sparse attention), ``mla`` dense
    MLA, ``gqa`` grouped-query attention (multi-head included). Fields that the kind of attention
    does not have are 0.
    """

    name: str
    hf_id: str | None = None
    architecture: str
    attention: Attention
    num_layers: PositiveInt
    dense_layers: NonNegativeInt = 0
    """Leading layers with a dense MLP instead of experts (all of them if ``num_experts`` is 0)."""
    hidden_size: PositiveInt
    num_heads: PositiveInt
    num_kv_heads: PositiveInt
    head_dim: NonNegativeInt = 0
    """Of a GQA key and value; 0 for MLA."""
    q_lora_rank: NonNegativeInt = 0
    kv_lora_rank: NonNegativeInt = 0
    qk_rope_head_dim: NonNegativeInt = 0
    qk_nope_head_dim: NonNegativeInt = 0
    v_head_dim: NonNegativeInt = 0
    index_heads: NonNegativeInt = 0
    index_head_dim: NonNegativeInt = 0
    index_topk: NonNegativeInt = 0
    """Tokens that a decode step reads per layer under sparse MLA."""
    indexer_layers: tuple[NonNegativeInt, ...] = ()
    """Layers with an indexer of their own (leaders); the others reuse their leader's selection."""
    num_experts: NonNegativeInt = 0
    experts_per_token: NonNegativeInt = 0
    shared_experts: NonNegativeInt = 0
    moe_intermediate_size: NonNegativeInt = 0
    intermediate_size: PositiveInt
    vocab_size: PositiveInt
    mtp_layers: NonNegativeInt = 0
    max_context_tokens: PositiveInt
    kv_dtype_of_checkpoint: Literal["fp8"] | None = None
    """Set when the quantised checkpoint turns on fp8 KV by itself (``auto`` then means fp8)."""
    weights: WeightsSpec
    sources: tuple[Sourced, ...] = Field(default=())

    @property
    def num_indexers(self) -> int:
        """Layers with an indexer of their own."""
        return len(self.indexer_layers)

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts, MTP layers not counted."""
        return self.num_layers - self.dense_layers if self.num_experts else 0
