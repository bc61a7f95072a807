"""A plan's pinned memory against described hosts."""

from __future__ import annotations

from typing import Any

import pytest

from hisparse_sim.doctor.checks import CHECKS, Check, examine, pinning_s
from hisparse_sim.doctor.host import HostFacts, HostGpu, NumaNode
from hisparse_sim.doctor.pinned import Pinned, pinned
from hisparse_sim.memory.budget import size_pools
from hisparse_sim.scenario.catalogue import load_model, load_node
from hisparse_sim.scenario.engine import EngineSpec

GIB = 2**30
NODE = load_node("8xh200")


def need(**engine: Any) -> Pinned:
    spec = EngineSpec.model_validate({"tp": 8, "kv_cache_dtype": "fp8", **engine})
    return pinned(size_pools(load_model("glm-5.3"), NODE, spec), NODE, spec)


HISPARSE = {"mode": "hisparse", "host_pool_gib": 384, "indexer_offload_gib": 128}
PLAN = need(**HISPARSE)
GPUS = tuple(
    HostGpu(
        address=f"0000:{i:02x}:00.0",
        numa_node=i // 4,
        link_gt_s=2.5,
        max_link_gt_s=32,
        link_width=16,
        max_link_width=16,
    )
    for i in range(8)
)
GOOD: dict[str, Any] = {
    "name": "good",
    "memory_gib": 2048,
    "available_gib": 2000,
    "shm_gib": 1024,
    "memlock_gib": "unlimited",
    "overcommit": "heuristic",
    "kernel": "6.8.0-51-generic",
    "numa": (NumaNode(node=0, memory_gib=2048),),
    "gpus": GPUS,
}


def checks(plan: Pinned = PLAN, **facts: Any) -> dict[str, Check]:
    return {c.name: c for c in examine(plan, HostFacts.model_validate(GOOD | facts), NODE)}


def test_a_good_host_passes_every_check() -> None:
    found = checks()
    assert len(found) == len(CHECKS)
    assert {c.verdict for c in found.values()} == {"ok"}


def test_what_is_pinned_counts_copies_and_ranks() -> None:
    assert PLAN.total_bytes == 512 * GIB
    assert (PLAN.pool_copies, PLAN.shared) == (1, True)
    private = need(**HISPARSE | {"host_pool_gib": 100, "shared_host_pool": False})
    assert private.total_bytes == (8 * 100 + 128) * GIB
    assert private.shm_bytes == 128 * GIB + private.queue_bytes
    two = need(**HISPARSE | {"tp": 4, "dp": 2})
    assert (two.pool_copies, two.total_bytes) == (2, 2 * 512 * GIB)
    assert need(mode="offload", kv_offload_gib=512).total_bytes == 512 * GIB
    assert need().total_bytes == 0


@pytest.mark.parametrize(
    ("facts", "name", "verdict", "said"),
    [
        ({"available_gib": 530}, "pinned-memory", "problem", "95 % of the 530 GiB"),
        ({"available_gib": 540}, "pinned-memory", "ok", "512 GiB pinned"),
        ({"shm_gib": 512}, "shared-memory", "problem", "513 GiB needed in /dev/shm"),
        ({"shm_gib": 1024, "shm_used_gib": 600}, "shared-memory", "problem", "424 GiB of 1,024 GiB"),
        ({"shm_gib": None}, "shared-memory", "unknown", "not known"),
        ({"cgroup_limit_gib": 400}, "memory-limit", "problem", "under a limit of 400 GiB"),
        ({"cgroup_limit_gib": 1000}, "memory-limit", "ok", "under a limit of 1,000 GiB"),
        ({"memlock_gib": 0.0078125}, "memlock", "warning", "ulimit -l is 8,192 KiB"),
        ({"memlock_gib": 600}, "memlock", "ok", ""),
        ({"memlock_gib": None}, "memlock", "unknown", ""),
        ({"overcommit": "strict", "commit_left_gib": 100}, "overcommit", "problem", "100 GiB"),
        ({"overcommit": "strict", "commit_left_gib": 900}, "overcommit", "ok", ""),
        ({"numa": ()}, "numa", "unknown", ""),
        ({"gpus": GPUS[:4]}, "gpus", "problem", "4 GPUs on PCI, the plan puts 8 ranks"),
        ({"gpus": None}, "gpus", "unknown", ""),
        ({"gpus": None}, "pcie", "unknown", ""),
        ({"kernel": "5.4.0"}, "kernel", "warning", "MADV_POPULATE_WRITE"),
        ({"kernel": None}, "kernel", "unknown", ""),
    ],
)
def test_a_host_that_lacks_something_is_told(
    facts: dict[str, Any], name: str, verdict: str, said: str
) -> None:
    found = checks(**facts)[name]
    assert found.verdict == verdict
    assert said in found.said
    assert bool(found.remedy) == (verdict in ("problem", "warning"))


def test_a_pool_of_one_socket_is_read_across_by_the_other() -> None:
    two = (NumaNode(node=0, memory_gib=1024), NumaNode(node=1, memory_gib=1024, available_gib=300))
    found = checks(numa=two)["numa"]
    assert found.verdict == "warning"
    assert "GPUs 4 on node 0, 4 on node 1" in found.said
    assert "across sockets" in found.said
    small = tuple(NumaNode(node=n, memory_gib=256) for n in range(8))
    assert "more than the 256 GiB available on one" in checks(numa=small)["numa"].said


def test_a_narrow_link_is_named_and_an_idle_one_is_not_a_fault() -> None:
    assert "8 run slower now, as idle GPUs do" in checks()["pcie"].said
    narrow = (*GPUS[:7], GPUS[7].model_copy(update={"link_width": 8}))
    found = checks(gpus=narrow)["pcie"]
    assert found.verdict == "warning"
    assert "0000:07:00.0 32 GT/s x8" in found.said


def test_private_pools_ask_for_memory_and_not_for_dev_shm() -> None:
    private = need(mode="hisparse", host_pool_gib=200, shared_host_pool=False)
    found = checks(private, available_gib=1000, shm_gib=2)
    assert found["pinned-memory"].verdict == "problem"
    assert "share one pool" in found["pinned-memory"].remedy
    assert found["shared-memory"].verdict == "ok"


def test_pinning_takes_as_long_as_was_measured_elsewhere() -> None:
    fast, slow = pinning_s(Pinned(549_700_000_000, 1, True, 0, 0, 8))
    assert fast == pytest.approx(55.4, rel=0.03)
    assert 380 < slow < 450
