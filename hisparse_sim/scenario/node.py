"""What a machine is: GPUs, their memory and links, and the host behind them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from hisparse_sim.scenario.base import Record, Sourced


class GpuSpec(Record):
    """One GPU. ``memory_bytes`` is what the driver reports where that is public."""

    name: str
    vendor: Literal["nvidia", "amd"]
    generation: Literal["hopper", "blackwell", "blackwell-sm120", "cdna4"]
    memory_bytes: PositiveInt
    memory_grade: Literal["driver", "datasheet"]
    marketing_bytes: PositiveInt
    """The decimal figure of the product name (H200: 141e9); used by ``--like vllm-calculator``."""
    hbm_bytes_per_s: PositiveFloat
    bf16_flops: PositiveFloat
    fp8_flops: PositiveFloat


class HostLinkSpec(Record):
    """The link between one GPU and host memory (PCIe or C2C), one direction at a time unless said."""

    kind: Literal["pcie5", "pcie6", "c2c"]
    copy_h2d_bytes_per_s: PositiveFloat
    copy_d2h_bytes_per_s: PositiveFloat
    gather_bytes_per_s: PositiveFloat
    """Ceiling of row gathers that the SMs issue themselves (zero-copy loads), per GPU."""
    gather_per_request_bytes_per_s: PositiveFloat
    """The same for one request alone (one thread block)."""
    both_ways_bytes_per_s: PositiveFloat
    """Sum over the two directions when both are busy."""


class NodeSpec(Record):
    """A machine, or the unit that one engine replica is placed on."""

    name: str
    gpus: PositiveInt
    gpu: GpuSpec
    host_link: HostLinkSpec
    nvlink_bytes_per_s: NonNegativeFloat
    """Per GPU and direction; 0 when GPUs talk over PCIe."""
    dram_bytes: PositiveInt
    dram_bytes_per_s: PositiveFloat
    """Peak read rate of the node's host memory, all sockets."""
    calibration: str | None = None
    """Name of the shipped profile that prices steps on this node; none: capacity only."""
    hisparse: bool = True
    """Whether vLLM's HiSparse runs on it (NVIDIA only)."""
    sources: tuple[Sourced, ...] = Field(default=())
