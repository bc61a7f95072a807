"""How the inference engine is started: the knobs of ``vllm serve`` that this package models."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from hisparse_sim.scenario.base import Record

Mode = Literal["resident", "offload", "hisparse"]
Kind = Literal["vllm", "sglang"]
KVDtype = Literal["auto", "bf16", "fp8", "fp8_ds_mla"]


class EngineSpec(Record):
    """One deployment of vLLM, or of SGLang. Defaults are the engine's own unless a docstring says otherwise.

    ``mode``: ``resident`` keeps all KV in HBM; ``offload`` adds the native CPU offloading connector
    (``kv_offload_gib``); ``hisparse`` is HiSparseConnector (``host_pool_gib``), of SGLang
    ``--enable-hisparse``. What the other ``kind`` knows nothing of is refused when set
    (:data:`VLLM_ONLY`, :data:`SGLANG_ONLY`).
    """

    kind: Kind = "vllm"
    version: str = "0.33"
    """vLLM's: 0.33 or 0.30, whose HiSparse scheduling differs; other versions are not modelled."""
    mode: Mode = "resident"
    tp: PositiveInt | None = None
    """Tensor parallel size; none: the node's GPUs."""
    dp: PositiveInt = 1
    ep: bool = True
    """Expert parallelism (``--enable-expert-parallel``); no effect on models without experts."""
    gpu_memory_utilization: float = Field(default=0.92, gt=0, le=1)
    max_model_len: PositiveInt | Literal["auto"] = "auto"
    """``auto``: the largest that passes the start-up checks, at most the model's own."""
    max_num_seqs: PositiveInt = 256
    max_num_batched_tokens: PositiveInt = 8192
    long_prefill_token_threshold: NonNegativeInt = 0
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    policy: Literal["fcfs", "priority"] = "fcfs"
    async_scheduling: bool = True
    watermark: float = Field(default=0.0, ge=0, lt=1)
    block_size: PositiveInt | None = None
    """Tokens a block; none: 64 for MLA, sparse or dense, 16 for GQA."""
    kv_cache_dtype: KVDtype = "auto"
    mtp: NonNegativeInt = 0
    """Speculative tokens drafted a step by the model's MTP layer."""
    mtp_acceptance: tuple[float, ...] | None = None
    """Share of steps that accept at least the first, the second … drafted token, as vLLM logs it
    (per-position acceptance rate); none: 0.78, 0.78^2 …

    That makes 3.5 tokens a step of five drafts, which SGLang states for GLM-5.2 (low-latency recipe, 2026;
    that the drafts are five is taken from its usual settings). It depends on the text: on random tokens
    GLM-5.1 accepts 0.37, 0.20 and 0.07 (vLLM recipes, GLM-5.1 on 8xH200).
    """
    hot_rows: PositiveInt | None = None
    """HiSparse ``device_buffer_size``: rows of a request's hot buffer per layer; none: (mtp + 2) x top-k."""
    host_pool_gib: PositiveFloat | Literal["auto"] = "auto"
    """HiSparse host pool per DP replica; ``auto``: what host DRAM allows."""
    shared_host_pool: bool = True
    """One pinned copy for the TP ranks of a replica on one node, or (false) one a rank."""
    indexer_offload_gib: NonNegativeFloat = 0.0
    """OffloadingConnector beside HiSparse, for the indexer's cache; total over TP ranks."""
    kv_offload_gib: NonNegativeFloat = 0.0
    """``--kv-offloading-size``: total over TP ranks, each holding its own copy of replicated MLA KV."""
    transfer_delay_steps: NonNegativeInt | None = None
    """Steps between a page write-back and its report; none: 1 (0 for engine version 0.30)."""
    single_step: bool = False
    """Simulate step by step even where nothing is decided; the result is the same, only slower."""
    reserve_gib: NonNegativeFloat | None = None
    """Activations, CUDA graphs and runtime per GPU; none: derived."""
    available_kv_gib: PositiveFloat | None = None
    """vLLM's ``Available KV cache memory`` per GPU, when a real log says so."""
    num_gpu_blocks: PositiveInt | None = None
    kv_tokens: PositiveInt | None = None
    """vLLM's ``GPU KV cache size`` in tokens (pool of resident or offload mode)."""

    # SGLang's own, by the names of its flags and of the keys of --hisparse-config.
    device_buffer_size: PositiveInt | None = None
    """Rows of a request's hot buffer in each layer; none: 2 x top-k (mem_cache/sparsity)."""
    host_to_device_ratio: PositiveInt = 2
    """Tokens of the host pool, and of the indexer's pool in HBM, for each token of the device pool; 2 in
    mem_cache/sparsity. Its guide (docs/advanced_features/hisparse_guide.md) takes 5 for 1 TB of host
    memory and 10 for 2 TB."""
    mem_fraction_static: float | None = Field(default=None, gt=0, lt=1)
    """Weights' and pools' part of GPU memory; none: derived as server_args does."""
    max_total_tokens: PositiveInt | None = None
    """Upper bound of the device pool, in tokens."""
    context_length: PositiveInt | None = None
    """None: the model's own."""
    max_running_requests: PositiveInt | None = None
    """None: 512 x pool / context, at least 2,048 and at most 4,096 (model_runner)."""
    chunked_prefill_size: PositiveInt | None = None
    """None: 4,096 below 60 GB of GPU memory, 8,192 below 160 GB, 16,384 above (server_args)."""
    schedule_conservativeness: NonNegativeFloat = 1.0
    enable_mixed_chunk: bool = False
    """Decodes share a step with prefill; off, a step with prefill runs no decode."""
    disaggregation_mode: Literal["null", "decode"] = "null"
    """``decode``: prompts arrive in the host pool, computed elsewhere (HiSparse only)."""
    num_reserved_decode_tokens: NonNegativeInt = 512
    """Tokens kept free for each request that decodes, with ``disaggregation_mode: decode``."""
    index_share: bool = True
    """Follower layers replay their leader's copies, ahead of time on a side stream (sglang PR 34329,
    August 2026); off, as before: each layer resolves and gathers for itself."""

    @field_validator("version", mode="before")
    @classmethod
    def _known_version(cls, value: Any) -> Any:
        text = f"{value:.2f}" if isinstance(value, float) else str(value)  # YAML reads 0.30 as 0.3
        if not re.fullmatch(r"0\.3[03](\.\d+)?", text):
            raise ValueError(f"vLLM {text} is not modelled; known are 0.30 and 0.33")
        return text

    @field_validator("disaggregation_mode", mode="before")
    @classmethod
    def _named_null(cls, value: Any) -> Any:
        return "null" if value is None else value  # as YAML reads it

    @field_validator("mtp_acceptance")
    @classmethod
    def _falling(cls, value: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if value is not None and any(not 0 <= b <= a for a, b in zip((1.0, *value), value, strict=False)):
            raise ValueError(
                f"{list(value)}: shares from 0 to 1, none above the one before (a token is accepted only "
                "after those before it)"
            )
        return value

    @field_validator("block_size")
    @classmethod
    def _size_of_a_kernel(cls, value: int | None) -> int | None:
        # vLLM's attention backends take multiples of 16; smaller powers of two serve for studies.
        if value is not None and value % 16 and value not in (1, 2, 4, 8):
            raise ValueError(f"{value} tokens is no size of a block; a multiple of 16, or 1, 2, 4 or 8")
        return value

    @model_validator(mode="after")
    def _modes_of_its_kind(self) -> EngineSpec:
        if self.kind == "sglang" and self.mode == "offload":
            raise ValueError("mode offload is vLLM's connector; kind sglang knows resident and hisparse")
        if self.disaggregation_mode == "decode" and self.mode != "hisparse":
            raise ValueError("disaggregation_mode decode is modelled with mode hisparse only")
        return self

    @model_validator(mode="after")
    def _one_override(self) -> EngineSpec:
        given = [
            n for n in ("available_kv_gib", "num_gpu_blocks", "kv_tokens") if getattr(self, n) is not None
        ]
        if len(given) > 1:
            raise ValueError(f"give only one of {', '.join(given)}: each fixes the size of the KV pool")
        rates = self.mtp_acceptance
        if rates is not None and len(rates) < self.mtp:
            raise ValueError(f"mtp_acceptance has {len(rates)} shares for {self.mtp} drafted tokens")
        return self

    @model_serializer(mode="wrap")
    def _of_its_kind_only(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if name not in self.foreign}

    @property
    def foreign(self) -> frozenset[str]:
        """Fields that mean nothing to this kind of engine."""
        return SGLANG_ONLY if self.kind == "vllm" else VLLM_ONLY

    @property
    def prefills_into_buffer(self) -> bool:
        """Whether a hot buffer begins with the prompt's first rows instead of empty."""
        return self.kind == "sglang" and self.disaggregation_mode == "null"

    @property
    def acceptance(self) -> tuple[float, ...]:
        """Of each of the ``mtp`` drafted tokens."""
        if self.mtp_acceptance is not None:
            return self.mtp_acceptance[: self.mtp]
        return tuple(DRAFT_ACCEPTED**position for position in range(1, self.mtp + 1))

    @property
    def tokens_a_step(self) -> float:
        """Expected, of one request that decodes: the sampled one and what is accepted."""
        return 1.0 + sum(self.acceptance)


SGLANG_ONLY = frozenset(
    (
        "device_buffer_size", "host_to_device_ratio", "mem_fraction_static", "max_total_tokens",
        "context_length", "max_running_requests", "chunked_prefill_size", "schedule_conservativeness",
        "enable_mixed_chunk", "disaggregation_mode", "num_reserved_decode_tokens", "index_share",
    )
)  # fmt: skip
VLLM_ONLY = frozenset(
    (
        "version", "gpu_memory_utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens",
        "long_prefill_token_threshold", "enable_chunked_prefill", "enable_prefix_caching", "policy",
        "async_scheduling", "watermark", "block_size", "hot_rows", "host_pool_gib", "shared_host_pool",
        "indexer_offload_gib", "kv_offload_gib", "transfer_delay_steps", "reserve_gib", "available_kv_gib",
        "num_gpu_blocks", "kv_tokens",
    )
)  # fmt: skip
DRAFT_ACCEPTED = 0.78
"""Of a draft whose predecessors were accepted; see ``EngineSpec.mtp_acceptance``."""
