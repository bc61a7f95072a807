"""The facts of the machine this runs on, from ``/proc`` and ``/sys``; what cannot be read stays unknown."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from hisparse_sim.doctor.host import HostFacts, HostGpu, NumaNode

GIB = 2**30
_GPU_CLASSES = ("0x0300", "0x0302", "0x1200")
"""PCI classes of display and 3D controllers and of processing accelerators."""
_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD"}


def read_host(root: Path = Path("/")) -> HostFacts:
    """Facts of this machine; ``root``: where its ``/proc``, ``/sys`` and ``/dev`` stand."""
    memory = _meminfo(root / "proc/meminfo")
    total = memory.get("MemTotal", 0)
    shm = _filesystem(root / "dev/shm")
    mode = _text(root / "proc/sys/vm/overcommit_memory")
    names: dict[str, Literal["heuristic", "always", "strict"]] = {
        "0": "heuristic",
        "1": "always",
        "2": "strict",
    }
    left = memory.get("CommitLimit", 0) - memory.get("Committed_AS", 0)
    return HostFacts(
        name=platform.node() or "this machine",
        memory_gib=total / GIB,
        available_gib=memory["MemAvailable"] / GIB if "MemAvailable" in memory else None,
        shm_gib=shm[0] / GIB if shm else None,
        shm_used_gib=shm[1] / GIB if shm else 0.0,
        cgroup_limit_gib=_cgroup_limit(root, total),
        memlock_gib=_memlock(),
        overcommit=names.get(mode or ""),
        commit_left_gib=left / GIB if mode == "2" else None,
        kernel=_text(root / "proc/sys/kernel/osrelease"),
        numa=tuple(_numa(root / "sys/devices/system/node")),
        gpus=tuple(_gpus(root / "sys/bus/pci/devices")),
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _meminfo(path: Path, prefix: str = "") -> dict[str, int]:
    """Bytes by name."""
    lines = re.findall(rf"^{prefix}(\w+):\s+(\d+) kB", _text(path) or "", re.M)
    return {name: int(kib) * 1024 for name, kib in lines}


def _filesystem(path: Path) -> tuple[int, int] | None:
    """Bytes in all, and used."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize, (found.f_blocks - found.f_bfree) * found.f_frsize


def _cgroup_limit(root: Path, total: int) -> float | None:
    """The least limit on the way from this process's group to the root, of cgroup v2 or v1."""
    groups = [line.split(":", 2) for line in (_text(root / "proc/self/cgroup") or "").splitlines()]
    mounted = root / "sys/fs/cgroup"
    files = [mounted / "memory.max", mounted / "memory/memory.limit_in_bytes"]
    for group in groups:
        if len(group) == 3 and (group[0] == "0" or "memory" in group[1].split(",")):
            base = mounted / ("" if group[0] == "0" else "memory")
            here = base / group[2].lstrip("/")
            name = "memory.max" if group[0] == "0" else "memory.limit_in_bytes"
            files += [folder / name for folder in (here, *here.parents) if folder.is_relative_to(base)]
    limits = [int(text) for file in files if (text := _text(file)) and text.isdigit()]
    least = min(limits, default=total)
    return least / GIB if 0 < least < total else None


def _memlock() -> float | Literal["unlimited"] | None:
    try:
        import resource
    except ImportError:
        return None
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return "unlimited" if soft == resource.RLIM_INFINITY else soft / GIB


def _numa(folder: Path) -> Iterator[NumaNode]:
    for path in sorted(folder.glob("node[0-9]*"), key=lambda p: int(p.name[4:])):
        memory = _meminfo(path / "meminfo", prefix=r"Node \d+ ")
        if memory.get("MemTotal"):  # a node may hold GPUs' memory or nothing
            free = memory.get("MemFree", 0) + memory.get("FilePages", 0) - memory.get("Shmem", 0)
            yield NumaNode(
                node=int(path.name[4:]), memory_gib=memory["MemTotal"] / GIB, available_gib=max(0, free) / GIB
            )


def _gpus(folder: Path) -> Iterator[HostGpu]:
    for path in sorted(folder.glob("*")):
        kind, vendor = _text(path / "class") or "", _text(path / "vendor") or ""
        if not kind.startswith(_GPU_CLASSES) or vendor not in _VENDORS:
            continue
        node = _text(path / "numa_node")
        yield HostGpu(
            address=path.name,
            name=f"{_VENDORS[vendor]} {_text(path / 'device') or ''}".strip(),
            numa_node=int(node) if node and node.isdigit() else None,
            **_link(path),
        )


def _link(path: Path) -> dict[str, Any]:
    """Speeds in GT/s and widths in lanes; unknown ones are left out."""
    found: dict[str, Any] = {}
    for field, file in (("link_gt_s", "current_link_speed"), ("max_link_gt_s", "max_link_speed")):
        match = re.match(r"([\d.]+) GT/s", _text(path / file) or "")
        if match:
            found[field] = float(match[1])
    for field, file in (("link_width", "current_link_width"), ("max_link_width", "max_link_width")):
        text = _text(path / file) or ""
        if text.isdigit() and 0 < int(text) <= 32:
            found[field] = int(text)
    return found
