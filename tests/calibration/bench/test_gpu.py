"""Launches and timings by the library's own host code, with a runtime that counts launches for a clock."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import numpy as np
import pytest

from hisparse_sim.calibration.bench import benchmarks, worker
from hisparse_sim.calibration.bench.abi import op
from hisparse_sim.calibration.bench.benchmarks import Group
from hisparse_sim.calibration.bench.benchmarks.link import launches
from hisparse_sim.calibration.bench.gpu import HOST, GpuError, Library
from hisparse_sim.calibration.bench.operations import copy, copy_batch

MICRO = 1e-6


@pytest.fixture
def library(emulation: Library) -> Iterator[Library]:
    yield emulation
    emulation.release()


@pytest.mark.parametrize("graphs", [True, False])
def test_each_slice_is_timed_on_each_of_its_streams(library: Library, graphs: bool) -> None:
    ops = [
        op("null", on_slice=s, on_stream=t) for s in range(3) for t in range(2) for _ in range(1 + s + 10 * t)
    ]
    timed = library.time(ops, slices=3, launches=4, warmup=1, graphs=graphs, before=op("null"))
    # The warm-up was slice 0; what goes before is not timed.
    assert timed.seconds[0] == pytest.approx(np.array([2, 3, 1, 2]) * MICRO)
    assert timed.seconds[1] == pytest.approx(np.array([12, 13, 11, 12]) * MICRO)
    assert timed.late == 0


def test_a_timing_stops_when_its_time_is_up(library: Library) -> None:
    assert library.time([op("null")], launches=50, most_s=0.0).seconds.shape == (2, 1)


def test_what_is_timed_is_done_each_time(library: Library) -> None:
    source, target = library.put(np.arange(8, dtype=np.int64)), library.empty(64)
    ops = [copy(target.address, source.address, 64), copy(source.address, target.address + 8, 56)]
    library.time(ops, launches=2, warmup=1)  # three times one place to the left
    assert library.read(source, np.int64, 8).tolist() == [3, 4, 5, 6, 7, 7, 7, 7]


def test_a_batch_of_copies_counts_as_one_and_cannot_be_in_a_graph(library: Library) -> None:
    source, target = library.put(np.arange(4, dtype=np.int64)), library.empty(64, HOST)
    at = np.arange(4, dtype=np.int64)
    batch = copy_batch(target.address + 16 * at[:2], source.address + 8 * at[:2], 8)
    timed = library.time([batch], launches=3, graphs=False)
    assert timed.seconds[0] == pytest.approx(MICRO)
    assert library.read(target, np.int64, 3)[::2].tolist() == [0, 1]
    with pytest.raises(GpuError):
        library.time([batch], launches=1)
    assert library.time([op("null")], launches=1).seconds[0, 0] == pytest.approx(MICRO)


def test_issuing_is_timed_by_the_host(library: Library) -> None:
    seconds = library.issue([op("null")] * 5, repeats=3)
    assert seconds.shape == (3,) and (seconds > 0).all()


def test_memory_is_freed_at_the_end_of_its_scope(library: Library) -> None:
    outside = library.empty(16)
    with library.scope():
        library.empty(16)
    assert library._owned == [outside]


def test_a_pattern_is_repeated(library: Library) -> None:
    made = library.repeat(np.array([1, 2, 3], dtype=np.int16), 5)
    assert library.read(made, np.int16, 15).tolist() == [1, 2, 3] * 5


def test_a_worker_tells_the_machine_checks_and_samples(
    library: Library, emulated_path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "GROUPS", (Group("few", {"launch": launches}, 1),))
    monkeypatch.setattr(worker, "spin_up", lambda _: None)
    monkeypatch.setenv("CUDA_MODULE_LOADING", "EAGER")
    assert worker.main([emulated_path, "machine"]) == 0
    assert worker.main([emulated_path, "check", "copies"]) == 0
    assert worker.main([emulated_path, "few", str(time.monotonic() + 60)]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told[0]["hardware"]["gpu"] == "host emulation"
    assert told[1]["check"]["passed"] and told[1]["check"]["name"] == "copies"
    samples = [t["sample"] for t in told if "sample" in t]
    assert [s["parameters"]["launches"] for s in samples] == [1, 16, 256, 64, 1]
    assert [s["median_s"] for s in samples[:4]] == pytest.approx([MICRO, 16 * MICRO, 256 * MICRO, 64 * MICRO])
    assert [t["note"] for t in told if "note" in t] == [
        "launch {'kernel': 'graph', 'launches': 1}: timed again at once, +0.0%"
    ]


def test_a_worker_without_time_says_what_is_left(
    emulated_path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "spin_up", lambda _: None)
    monkeypatch.setenv("CUDA_MODULE_LOADING", "EAGER")
    assert worker.main([emulated_path, "link", "0.0"]) == 0
    (told,) = [json.loads(line)["sample"] for line in capsys.readouterr().out.splitlines()]
    assert (told["name"], told["status"], told["median_s"]) == ("launch", "truncated", None)


def test_groups_need_only_checks_that_exist() -> None:
    from hisparse_sim.calibration.bench.checks import CHECKS

    assert {name for group in benchmarks.GROUPS for name in group.checks} == set(CHECKS)
