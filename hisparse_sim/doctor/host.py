"""What a host has, as far as pinned memory asks for it: from a YAML file, or read from a machine."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from hisparse_sim.scenario.base import Record
from hisparse_sim.scenario.validate import build
from hisparse_sim.scenario.yaml_file import read_mapping


class NumaNode(Record):
    """Memory of one socket or part of it."""

    node: NonNegativeInt
    memory_gib: PositiveFloat
    available_gib: NonNegativeFloat | None = None


class HostGpu(Record):
    """One GPU's place. ``link_gt_s``: now, which is less than ``max_link_gt_s`` while the GPU is idle."""

    address: str
    name: str = ""
    numa_node: NonNegativeInt | None = None
    link_gt_s: PositiveFloat | None = None
    max_link_gt_s: PositiveFloat | None = None
    link_width: PositiveInt | None = None
    max_link_width: PositiveInt | None = None


class HostFacts(Record):
    """A host. GiB are 2^30 bytes; what is not known is left out, and its check says so."""

    name: str
    memory_gib: PositiveFloat
    available_gib: NonNegativeFloat | None = None
    """What new processes may use without swapping (``MemAvailable``); none: all of it."""
    shm_gib: NonNegativeFloat | None = None
    """Size of ``/dev/shm`` as the engine sees it (a container has its own)."""
    shm_used_gib: NonNegativeFloat = 0.0
    cgroup_limit_gib: PositiveFloat | None = None
    """Memory limit of the container or slice; none: no limit."""
    memlock_gib: NonNegativeFloat | Literal["unlimited"] | None = None
    """``ulimit -l`` of who starts the engine."""
    overcommit: Literal["heuristic", "always", "strict"] | None = None
    commit_left_gib: float | None = None
    """Under strict overcommit: ``CommitLimit`` - ``Committed_AS``."""
    kernel: str | None = None
    numa: tuple[NumaNode, ...] = Field(default=())
    gpus: tuple[HostGpu, ...] | None = None
    """None: not known; empty: no GPU."""


def load_host(path: str | Path) -> HostFacts:
    """A host described in YAML. Raises ``InputError`` naming file, field and value."""
    return build(HostFacts, read_mapping(Path(path)), file=str(path))
