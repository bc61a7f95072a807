"""What a model is, as far as its memory and its step time go."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

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
    """The part of ``shared_bytes`` in MTP layers. Sizing counts it whether or not the engine drafts, as
    vLLM's calculator page does (see ``memory.reserve`` for what the sum was checked against)."""
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
    locality: str | None = None
    """How its layers select, under sparse MLA: a shipped locality's name or a file; none: GLM-5.1's."""
    kv_dtype_of_checkpoint: Literal["fp8"] | None = None
    """Set when the quantised checkpoint turns on fp8 KV by itself (``auto`` then means fp8)."""
    weights: WeightsSpec
    sources: tuple[Sourced, ...] = Field(default=())

    @model_validator(mode="after")
    def _fields_of_its_kind(self) -> ModelSpec:
        kinds = {"gqa": ("head_dim",), "mla": ("kv_lora_rank", "qk_rope_head_dim")}
        kinds["dsa"] = (*kinds["mla"], "index_heads", "index_head_dim", "index_topk")
        needed = kinds[self.attention]
        if self.num_experts:
            needed += ("experts_per_token", "moe_intermediate_size")
        if missing := [name for name in needed if not getattr(self, name)]:
            raise ValueError(f"attention {self.attention} needs {', '.join(missing)}")
        if self.attention == "gqa" and self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_kv_heads} KV heads do not divide {self.num_heads} attention heads")
        if self.experts_per_token > self.num_experts:
            raise ValueError(f"{self.experts_per_token} experts a token of {self.num_experts} experts")
        if self.dense_layers > self.num_layers:
            raise ValueError(f"{self.dense_layers} dense layers of {self.num_layers} layers")
        leaders = self.indexer_layers
        if (self.attention == "dsa") != bool(leaders):
            raise ValueError("indexer_layers belong to attention dsa, and it needs them")
        if leaders and (
            leaders[0] != 0 or leaders[-1] >= self.num_layers or sorted(set(leaders)) != [*leaders]
        ):
            raise ValueError(f"indexer_layers must rise from layer 0 to at most {self.num_layers - 1}")
        return self

    @property
    def num_indexers(self) -> int:
        """Layers with an indexer of their own."""
        return len(self.indexer_layers)

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts, MTP layers not counted."""
        return self.num_layers - self.dense_layers if self.num_experts else 0
