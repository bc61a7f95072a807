"""Several engines behind one address: how many there are, and who is sent what."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from hisparse_sim.scenario.base import Record

RouterPolicy = Literal["round_robin", "least_loaded", "prefix_affinity"]


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
