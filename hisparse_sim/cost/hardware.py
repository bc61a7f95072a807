"""What a figure was measured on: the machine, and how the measuring code was built."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from hisparse_sim.scenario.base import Record


class Hardware(Record):
    """The machine behind a profile or a samples file. Only ``gpu`` is always known.

    Clocks are those under load; ``gpus`` were used, of one kind.
    """

    gpu: str = Field(min_length=1)
    """As the driver names it: ``NVIDIA H200``."""
    generation: str = ""
    gpus: PositiveInt = 1
    memory_note: str = ""
    compute_capability: str = ""
    """``9.0``."""
    sms: PositiveInt | None = None
    l2_bytes: PositiveInt | None = None
    memory_bytes: PositiveInt | None = None
    driver: str = ""
    cuda_runtime: str = ""
    uuid_sha256: str = ""
    ecc: Literal["on", "off", "unknown"] = "unknown"
    pcie_generation: PositiveInt | None = None
    pcie_width: PositiveInt | None = None
    gpu_numa_node: NonNegativeInt | None = None
    host_memory_numa_node: NonNegativeInt | None = None
    sm_clock_hz: PositiveFloat | None = None
    memory_clock_hz: PositiveFloat | None = None
    throttle: tuple[str, ...] = ()
    """Reasons the driver gave for clocks below the most; empty: none."""
    cpu: str = ""
    cpu_cores: PositiveInt | None = None
    virtualisation: str = ""


class Build(Record):
    """How the measuring code came about. Empty where it was not built here."""

    tool_version: str = ""
    git: str = ""
    source_sha256: str = ""
    library_sha256: str = ""
    nvcc: str = ""
    host_compiler: str = ""
    architecture: str = ""
    flags: str = ""


def same_gpu(one: str, other: str) -> bool:
    """Whether two names mean one kind of GPU: ``NVIDIA H200`` and ``H200 SXM 141GB``.

    The model is the first word with a digit (``RTX PRO 6000`` in whole); memory sizes are no model.
    """
    return gpu_model(one) == gpu_model(other)


def gpu_model(name: str) -> str:
    """``h200`` of ``NVIDIA H200 SXM``: the word that tells one kind of GPU from another."""
    words = name.lower().replace("-", " ").split()
    if {"rtx", "pro"} <= set(words):
        return " ".join(words[words.index("rtx") : words.index("rtx") + 3])
    return next((w for w in words if any(c.isdigit() for c in w)), " ".join(words))
