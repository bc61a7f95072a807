"""Several engines behind one address: how many there are, and who is sent what."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from hisparse_sim.scenario.base import Record
from hisparse_sim.scenario.engine import EngineSpec

RouterPolicy = Literal["round_robin", "least_loaded", "prefix_affinity"]


class PrefillSpec(Record):
    """Instances that only prefill, and the network over which they hand their KV to those that decode.

    Each of ``engine.tp`` ranks of a decoding replica reads its own KV over its own adapter.
    """

    instances: PositiveInt = Field(default=1, le=1000)
    engine: EngineSpec = EngineSpec()
    """Of a prefilling instance, on nodes of the same type; its ``mode`` is ``resident``, and its
    ``kv_cache_dtype`` that of the instances that decode, which take its rows as they are."""
    link_bytes_per_s: PositiveFloat = 50e9
    """Of one GPU's network adapter; 400 Gbit/s, as a DGX H200 has one for each GPU (NVIDIA datasheet)."""
    lands: Literal["auto", "gpu", "host"] = "auto"
    """Where HiSparse takes KV that comes: into pages on the GPU, which are then mirrored, or into the host
    pool, from where rows are gathered. ``auto``, as vLLM: the GPU if it has room for the whole prompt when
    the request's turn comes, else the host; decided once. The other modes have the GPU only."""

    @field_validator("engine")
    @classmethod
    def _only_resident(cls, value: EngineSpec) -> EngineSpec:
        if value.mode != "resident":
            raise ValueError(f"mode {value.mode}: prefilling instances are simulated in mode resident")
        return value


class ClusterSpec(Record):
    """Instances of the engine, alike, behind a router.

    Each instance is one ``vllm serve`` on machines of its own (``engine.dp`` replicas of ``engine.tp``
    GPUs); which of an instance's replicas runs a request is decided by vLLM's own balancer.
    """

    instances: PositiveInt = Field(default=1, le=1000)
    router: RouterPolicy = "least_loaded"
    """``round_robin``: in turn. ``least_loaded``: to the instance with the fewest requests under way, in turn
    among equals. ``prefix_affinity``: to the instance that was sent the longest prefix of it before, as
    vllm-router's and SGLang's ``cache_aware`` do."""
    cache_threshold: float = Field(default=0.3, ge=0, le=1)
    """Share of a prompt that an instance must have been sent before to be preferred for it; else, of
    ``prefix_affinity``, the least loaded one. vllm-router's default."""
    balance_abs_threshold: PositiveInt = 64
    """Of ``prefix_affinity``: once the busiest instance has so many requests more than the idlest, and
    ``balance_rel_threshold`` times as many, the least loaded one is taken. vllm-router's default."""
    balance_rel_threshold: float = Field(default=1.5, ge=1)
    prefill: PrefillSpec | None = None
    """Prefill and decode apart: ``instances`` decode only. None: every instance does both."""
