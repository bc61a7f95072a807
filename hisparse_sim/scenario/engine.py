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
    field_validator,
    model_validator,
)

from hisparse_sim.scenario.base import Record

Mode = Literal["resident", "offload", "hisparse"]
KVDtype = Literal["auto", "bf16", "fp8", "fp8_ds_mla"]


class EngineSpec(Record):
    """One vLLM deployment. Defaults are vLLM's own unless a docstring says otherwise.

    ``mode``: ``resident`` keeps all KV in HBM; ``offload`` adds the native CPU offloading connector
    (``kv_offload_gib``); ``hisparse`` is HiSparseConnector (``host_pool_gib``).
    """

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

    @field_validator("version", mode="before")
    @classmethod
    def _known_version(cls, value: Any) -> Any:
        text = f"{value:.2f}" if isinstance(value, float) else str(value)  # YAML reads 0.30 as 0.3
        if not re.fullmatch(r"0\.3[03](\.\d+)?", text):
            raise ValueError(f"vLLM {text} is not modelled; known are 0.30 and 0.33")
        return text

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


DRAFT_ACCEPTED = 0.78
"""Of a draft whose predecessors were accepted; see ``EngineSpec.mtp_acceptance``."""
