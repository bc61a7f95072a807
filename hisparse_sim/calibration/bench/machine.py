"""The machine that is measured: what it is, what it promises, and how much of it a benchmark may take."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hisparse_sim.calibration.bench.abi import Device
from hisparse_sim.cost.hardware import Hardware, gpu_model

HOST_POOL_BYTES = 2 << 30
"""Pinned memory that sources of host reads rotate over: far more than a CPU's caches hold."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Datasheet rates of a GPU: bytes/s of its memory and of its host link each way; dense FLOP/s."""

    hbm_bytes_per_s: float
    link_bytes_per_s: float
    fp8_flops: float
    bf16_flops: float


PCIE5_X16_BYTES_PER_S = 32e9 * 16 * 128 / 130 / 8
"""32 GT/s on 16 lanes, 128 of 130 bits payload (PCI Express 5.0)."""

RATES: dict[str, Rates] = {
    "h200": Rates(4.8e12, PCIE5_X16_BYTES_PER_S, 1979e12, 989.5e12),
    "h100": Rates(3.35e12, PCIE5_X16_BYTES_PER_S, 1979e12, 989.5e12),
}
"""NVIDIA H200 and H100 SXM data sheets, without sparsity."""


def rates_of(gpu: str) -> Rates | None:
    """The rates of a GPU by its name; none for one that is not listed (no floors are shown then)."""
    return RATES.get(gpu_model(gpu))


_GPU_FIELDS = (
    "driver_version",
    "ecc.mode.current",
    "pcie.link.gen.current",
    "pcie.link.width.current",
    "clocks.sm",
    "clocks.mem",
)
_REASON_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The same by its new and its old name: a driver that knows only one refuses a query with the other."""


def query_gpu(bus: str) -> dict[str, str]:
    """What nvidia-smi says of one GPU now; empty without it."""
    for reasons in _REASON_FIELDS:
        fields = ",".join((*_GPU_FIELDS, reasons))
        command = ["nvidia-smi", f"--id={bus}", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            return {}
        if done.returncode == 0 and done.stdout.strip():
            values = [value.strip() for value in done.stdout.strip().splitlines()[0].split(",")]
            pairs = zip((*_GPU_FIELDS, "reasons"), values, strict=False)
            return {name: value for name, value in pairs if value and not value.startswith("[")}
    return {}


def hardware(device: Device, under_load: dict[str, str]) -> Hardware:
    """The record of ``device``; ``under_load`` is :func:`query_gpu` while, or right after, it worked."""
    bus = device.pci_bus.decode().lower()
    facts: dict[str, Any] = {
        "gpu": device.name.decode(),
        "compute_capability": f"{device.major}.{device.minor}",
        "sms": device.sms,
        "l2_bytes": device.l2_bytes,
        "memory_bytes": device.memory_bytes,
        "driver": under_load.get("driver_version", ""),
        "cuda_runtime": f"{device.runtime // 1000}.{device.runtime % 1000 // 10}",
        "uuid_sha256": hashlib.sha256(device.uuid).hexdigest(),
        "ecc": {"Enabled": "on", "Disabled": "off"}.get(under_load.get("ecc.mode.current", ""), "unknown"),
        "pcie_generation": _number(under_load.get("pcie.link.gen.current")),
        "pcie_width": _number(under_load.get("pcie.link.width.current")),
        "sm_clock_hz": _hertz(under_load.get("clocks.sm")),
        "memory_clock_hz": _hertz(under_load.get("clocks.mem")),
        "throttle": throttle_reasons(under_load.get("reasons", "")),
        "gpu_numa_node": _numa_node(bus),
        "host_memory_numa_node": _numa_node(bus) if _cpus_near(bus) else None,
        "cpu": _cpu(),
        "cpu_cores": os.cpu_count(),
        "virtualisation": _virtualisation(),
    }
    return Hardware(**{name: value for name, value in facts.items() if value is not None})


_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
"""Bits of NVML's clock event reasons that mean lower clocks under load (nvml.h)."""


def throttle_reasons(mask: str) -> tuple[str, ...]:
    """The reasons in nvidia-smi's mask (``0x0000000000000004``)."""
    bits = int(mask, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", mask) else 0
    return tuple(name for bit, name in _REASONS.items() if bits & bit)


def stay_near(device: Device) -> None:
    """Keep this process, and so its pinned memory, on the GPU's side of the machine, where it has one."""
    cpus = _cpus_near(device.pci_bus.decode().lower())
    if cpus & os.sched_getaffinity(0):
        os.sched_setaffinity(0, cpus & os.sched_getaffinity(0))


def host_pool_bytes() -> int:
    """Pinned bytes that a benchmark may take: a quarter of what is free, at most ``HOST_POOL_BYTES``."""
    return min(HOST_POOL_BYTES, _free_host_bytes() // 4) & ~0xFFFFF


def _free_host_bytes() -> int:
    match = re.search(r"MemAvailable:\s+(\d+) kB", _text(Path("/proc/meminfo")))
    free = int(match[1]) * 1024 if match else 4 << 30
    limit, used = (_text(Path("/sys/fs/cgroup") / n).strip() for n in ("memory.max", "memory.current"))
    if limit.isdigit() and used.isdigit():
        free = min(free, int(limit) - int(used))
    return max(free, 0)


def _cpus_near(bus: str) -> set[int]:
    if _numa_node(bus) is None:
        return set()
    cpus: set[int] = set()
    for part in _text(_pci(bus) / "local_cpulist").strip().split(","):
        if match := re.fullmatch(r"(\d+)(?:-(\d+))?", part):
            cpus |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return cpus


def _numa_node(bus: str) -> int | None:
    node = _text(_pci(bus) / "numa_node").strip()
    return int(node) if node.isdigit() else None  # -1: the machine has one node, or hides them


def _pci(bus: str) -> Path:
    return Path("/sys/bus/pci/devices") / bus


def _cpu() -> str:
    match = re.search(r"model name\s*:\s*(.+)", _text(Path("/proc/cpuinfo")))
    return match[1] if match else ""


def _virtualisation() -> str:
    return "virtual machine" if "hypervisor" in _text(Path("/proc/cpuinfo")) else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() and int(text) > 0 else None


def _hertz(megahertz: str | None) -> float | None:
    number = _number(megahertz)
    return number * 1e6 if number else None
