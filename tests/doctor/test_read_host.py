"""What /proc and /sys say becomes facts; what they do not say stays unknown."""

from __future__ import annotations

from pathlib import Path

from hisparse_sim.doctor.read_host import read_host


def put(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def machine(root: Path) -> Path:
    kib = 1024 * 1024
    put(
        root,
        "proc/meminfo",
        f"MemTotal: {2048 * kib} kB\nMemAvailable: {1900 * kib} kB\n"
        f"CommitLimit: {1000 * kib} kB\nCommitted_AS: {400 * kib} kB\n",
    )
    put(root, "proc/sys/vm/overcommit_memory", "2\n")
    put(root, "proc/sys/kernel/osrelease", "6.8.0-51-generic\n")
    put(root, "proc/self/cgroup", "0::/kubepods/pod1\n")
    put(root, "sys/fs/cgroup/kubepods/memory.max", f"{700 * 2**30}\n")
    put(root, "sys/fs/cgroup/kubepods/pod1/memory.max", "max\n")
    for node in (0, 1, 10):
        lines = f"Node {node} MemTotal: {1024 * kib} kB\nNode {node} MemFree: {900 * kib} kB\n"
        put(root, f"sys/devices/system/node/node{node}/meminfo", lines)
    put(root, "sys/devices/system/node/node2/meminfo", "Node 2 MemTotal: 0 kB\n")
    for address, kind, vendor in (
        ("0000:18:00.0", "0x030200", "0x10de"),
        ("0000:2a:00.0", "0x030200", "0x10de"),
        ("0000:01:00.0", "0x020000", "0x15b3"),
    ):
        device = f"sys/bus/pci/devices/{address}"
        put(root, f"{device}/class", kind)
        put(root, f"{device}/vendor", vendor)
        put(root, f"{device}/device", "0x2335")
        put(root, f"{device}/numa_node", "-1" if address.startswith("0000:2a") else "0")
        put(root, f"{device}/current_link_speed", "2.5 GT/s PCIe")
        put(root, f"{device}/max_link_speed", "32.0 GT/s PCIe")
        put(root, f"{device}/current_link_width", "16")
        put(root, f"{device}/max_link_width", "255")
    return root


def test_a_machine_is_read_whole(tmp_path: Path) -> None:
    facts = read_host(machine(tmp_path))
    assert (facts.memory_gib, facts.available_gib) == (2048, 1900)
    assert (facts.overcommit, facts.commit_left_gib) == ("strict", 600)
    assert facts.cgroup_limit_gib == 700
    assert facts.kernel == "6.8.0-51-generic"
    assert [(n.node, n.memory_gib, n.available_gib) for n in facts.numa] == [
        (0, 1024, 900),
        (1, 1024, 900),
        (10, 1024, 900),
    ]
    assert facts.gpus is not None
    first, second = facts.gpus
    assert (first.address, first.numa_node, first.link_gt_s, first.max_link_gt_s, first.link_width) == (
        "0000:18:00.0",
        0,
        2.5,
        32,
        16,
    )
    assert first.max_link_width is None
    assert second.numa_node is None


def test_this_machine_is_read(tmp_path: Path) -> None:
    facts = read_host()
    assert facts.memory_gib > 0.1
    assert facts.available_gib is not None
    assert facts.available_gib <= facts.memory_gib
