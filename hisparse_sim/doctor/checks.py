"""A plan's pinned memory set against a host: each check has a name, a verdict, what was seen, a remedy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hisparse_sim.doctor.host import HostFacts
from hisparse_sim.doctor.pinned import Pinned
from hisparse_sim.memory.host import HOST_POOL_SHARE
from hisparse_sim.scenario.node import NodeSpec

GIB = 2**30
Verdict = Literal["ok", "warning", "problem", "unknown"]

LINK_GT_S = {"pcie5": 32.0, "pcie6": 64.0}
LANES = 16
LEAST_KERNEL = (5, 14)
"""MADV_POPULATE_WRITE, with which vLLM fills a shared region at once."""

PIN_S_PER_GIB = (0.11, 0.85)
"""Seconds a GiB, fast and slow: registering pages that are there, 549.7e9 B in 55.4 s on 4xH200 NVL
(github.com/vllm-project/vllm/pull/51081); allocating and pinning by one thread, 500e9 B in 397.7 s on a
two-socket H20 host (github.com/novitalabs/pegaflow/pull/277), beside 16 GiB in 7.9 s
(github.com/NVIDIA/cudf/pull/23457)."""
PIN_SOURCE = "vllm pull 51081 (fast), novitalabs/pegaflow pull 277 and NVIDIA/cudf pull 23457 (slow)"


@dataclass(frozen=True, slots=True)
class Check:
    """``problem``: the engine would not start, or would be killed. ``unknown``: the fact is missing."""

    name: str
    verdict: Verdict
    said: str
    remedy: str = ""
    source: str = ""

    def as_json(self) -> dict[str, Any]:
        """Of ``doctor --json``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Examined:
    """A plan and a host."""

    need: Pinned
    host: HostFacts
    node: NodeSpec

    @property
    def available_gib(self) -> float:
        """Memory that is left to new processes."""
        return self.host.memory_gib if self.host.available_gib is None else self.host.available_gib


def examine(need: Pinned, host: HostFacts, node: NodeSpec) -> list[Check]:
    """Every check, in the order in which an engine would meet them."""
    about = Examined(need, host, node)
    return [check(about) for check in CHECKS]


def _gib(size: float) -> str:
    return f"{size / GIB:,.0f} GiB" if size >= 10 * GIB else f"{size / GIB:,.2f} GiB"


def _pinned_memory(e: Examined) -> Check:
    need, has = e.need, e.available_gib * HOST_POOL_SHARE * GIB
    parts = []
    if need.pool_bytes:
        kind = "shared by the ranks of a replica" if need.shared else "one a rank"
        parts.append(f"{need.pool_copies} x {_gib(need.pool_bytes)} of HiSparse pool ({kind})")
    if need.offload_bytes:
        parts.append(f"{_gib(need.offload_bytes)} of offload, a copy a rank")
    what = " + ".join(parts) or "nothing"
    said = (
        f"{what} = {_gib(need.total_bytes)} pinned; 95 % of the {e.available_gib:,.0f} GiB available are "
        f"{_gib(has)}"
    )
    source = "vllm/v1/hisparse/runtime.py, check_hisparse_host_memory"
    if need.total_bytes <= has:
        return Check("pinned-memory", "ok", said, source=source)
    fits = need.total_bytes <= e.host.memory_gib * HOST_POOL_SHARE * GIB
    remedy = "stop what else uses memory" if fits else "lower host_pool_gib or the offload"
    if need.pool_copies > 1 and not need.shared:
        remedy = "let ranks share one pool (mp executor, one node, PP and DCP 1), or lower host_pool_gib"
    return Check("pinned-memory", "problem", said, remedy, source)


def _shared_memory(e: Examined) -> Check:
    need = e.need
    source = "vllm/v1/kv_offload/cpu/shared_offload_region.py: /dev/shm/vllm_offload_*.mmap"
    what = f"{_gib(need.shm_bytes)} needed in /dev/shm, {_gib(need.queue_bytes)} of it the executor's queues"
    if e.host.shm_gib is None:
        return Check("shared-memory", "unknown", f"{what}; its size is not known", source=source)
    has = max(0.0, e.host.shm_gib - e.host.shm_used_gib) * GIB
    said = f"{what}; {_gib(has)} of {e.host.shm_gib:,.0f} GiB are free there"
    if need.shm_bytes <= has:
        return Check("shared-memory", "ok", said, source=source)
    size = -(-(need.shm_bytes + e.host.shm_used_gib * GIB) // GIB)
    remedy = (
        f"docker --ipc=host or --shm-size={size:.0f}g, mount -o remount,size={size:.0f}G /dev/shm, or a "
        "Memory-backed emptyDir at /dev/shm"
    )
    return Check("shared-memory", "problem", said, remedy, source)


def _cgroup(e: Examined) -> Check:
    limit = e.host.cgroup_limit_gib
    if limit is None:
        return Check("memory-limit", "ok", "no memory limit on the group of processes")
    said = (
        f"{_gib(e.need.total_bytes)} pinned under a limit of {limit:,.0f} GiB, which counts /dev/shm, too; "
        "vLLM looks at the host's memory and does not see the limit"
    )
    fits = e.need.total_bytes <= limit * GIB * HOST_POOL_SHARE
    remedy = "" if fits else "raise the container's memory limit: the kernel would kill the engine"
    return Check(
        "memory-limit", "ok" if fits else "problem", said, remedy, "Linux cgroups, memory controller"
    )


def _memlock(e: Examined) -> Check:
    limit = e.host.memlock_gib
    if limit is None:
        return Check("memlock", "unknown", "the memlock limit (ulimit -l) is not known")
    shown = limit if limit == "unlimited" else f"{limit * 2**20:,.0f} KiB"
    enough = limit == "unlimited" or limit * GIB >= e.need.total_bytes
    said = f"ulimit -l is {shown}; {_gib(e.need.total_bytes)} are pinned"
    if enough:
        return Check("memlock", "ok", said)
    return Check(
        "memlock",
        "warning",
        f"{said}. CUDA pins through its driver, which mostly does not count; RDMA (NIXL, Mooncake) does",
        "ulimit -l unlimited, docker --ulimit memlock=-1, or LimitMEMLOCK=infinity in systemd",
        "NVIDIA container documentation (--ulimit memlock=-1)",
    )


def _overcommit(e: Examined) -> Check:
    if e.host.overcommit is None:
        return Check("overcommit", "unknown", "vm.overcommit_memory is not known")
    said = f"vm.overcommit_memory is {e.host.overcommit}"
    left = e.host.commit_left_gib
    if e.host.overcommit != "strict" or left is None or left * GIB >= e.need.total_bytes:
        return Check("overcommit", "ok", said)
    return Check(
        "overcommit",
        "problem",
        f"{said} and {left:,.0f} GiB may still be committed",
        "sysctl vm.overcommit_memory=0",
        "Linux overcommit accounting",
    )


def _numa(e: Examined) -> Check:
    numa, gpus = e.host.numa, e.host.gpus or ()
    if not numa:
        return Check("numa", "unknown", "NUMA nodes are not known")
    each = " + ".join(f"{n.memory_gib:,.0f}" for n in numa)
    said = f"{len(numa)} NUMA node{'s' if len(numa) > 1 else ''} ({each} GiB)"
    spread = Counter(g.numa_node for g in gpus if g.numa_node is not None)
    if spread:
        said += ", GPUs " + ", ".join(f"{count} on node {node}" for node, count in sorted(spread.items()))
    if len(numa) == 1 or not e.need.total_bytes:
        return Check("numa", "ok", said)
    source = "the creator alone fills a shared pool (populate_only_on_creator): first touch places it"
    largest = max(n.memory_gib if n.available_gib is None else n.available_gib for n in numa)
    if e.need.pool_bytes > largest * GIB:
        said += (
            f"; one pool of {_gib(e.need.pool_bytes)} is more than the {largest:,.0f} GiB available on one: "
            "bound to a node (numactl --membind) it does not fit"
        )
    elif e.need.shared:
        said += "; the pool lies on the node of the rank that makes it; GPUs of others read across sockets"
    return Check("numa", "warning", said, "start the engine under numactl --interleave=all", source)


def _gpus(e: Examined) -> Check:
    gpus = e.host.gpus
    if gpus is None:
        return Check("gpus", "unknown", "GPUs are not known")
    said = (
        f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'} on PCI, the plan puts {e.need.ranks} ranks on a node"
    )
    if len(gpus) >= e.need.ranks:
        return Check("gpus", "ok", said)
    return Check("gpus", "problem", said, "use fewer ranks (--tensor-parallel-size), or another host")


def _links(e: Examined) -> Check:
    gpus = e.host.gpus or ()
    kind = e.node.host_link.kind
    known = [g for g in gpus if g.max_link_gt_s and g.link_width]
    if kind not in LINK_GT_S:
        return Check("pcie", "ok", f"{e.node.name} reaches its host over {kind}, not PCIe")
    if not known:
        return Check("pcie", "unknown", "links of GPUs are not known")
    slow = [g for g in known if (g.max_link_gt_s or 0) < LINK_GT_S[kind] or (g.link_width or 0) < LANES]
    if slow:
        each = ", ".join(f"{g.address} {g.max_link_gt_s:g} GT/s x{g.link_width}" for g in slow)
        return Check(
            "pcie",
            "warning",
            f"narrower than {LINK_GT_S[kind]:g} GT/s x{LANES}, which {e.node.name} is priced with: {each}",
            "reseat the card or change the slot; or measure the link with hisparse-sim calibrate",
            "PCI Express: 32 GT/s x16 carries 63 GB/s each way",
        )
    idle = [g.address for g in known if g.link_gt_s and g.max_link_gt_s and g.link_gt_s < g.max_link_gt_s]
    note = f"; {len(idle)} run slower now, as idle GPUs do" if idle else ""
    return Check("pcie", "ok", f"{len(known)} GPUs with {known[0].max_link_gt_s:g} GT/s x{LANES}{note}")


def _kernel(e: Examined) -> Check:
    match = re.match(r"(\d+)\.(\d+)", e.host.kernel or "")
    if match is None:
        return Check("kernel", "unknown", "the kernel's version is not known")
    said = f"Linux {e.host.kernel}"
    if (int(match[1]), int(match[2])) >= LEAST_KERNEL:
        return Check("kernel", "ok", said)
    return Check(
        "kernel",
        "warning",
        f"{said} has no MADV_POPULATE_WRITE (5.14): vLLM touches the pool page by page",
        "use a newer kernel, or wait longer at start",
        "vllm/v1/kv_offload/cpu/shared_offload_region.py",
    )


def pinning_s(need: Pinned) -> tuple[float, float]:
    """Seconds that pinning takes, fast and slow. Ranks that share a pool pin it at the same time."""
    size = need.total_bytes / GIB
    return PIN_S_PER_GIB[0] * size, PIN_S_PER_GIB[1] * size


def _pinning(e: Examined) -> Check:
    fast, slow = pinning_s(e.need)
    said = f"pinning {_gib(e.need.total_bytes)} takes about {fast:,.0f} to {slow:,.0f} s"
    return Check("pinning-time", "ok", said, source=PIN_SOURCE)


CHECKS: tuple[Callable[[Examined], Check], ...] = (
    _pinned_memory,
    _shared_memory,
    _cgroup,
    _memlock,
    _overcommit,
    _numa,
    _gpus,
    _links,
    _kernel,
    _pinning,
)
