"""Sweeps that are stopped, killed or doubled: nothing is lost, nothing is computed twice, nobody stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from small_sweeps import AGENTIC, SLOW, base, parts, sweep

from hisparse_sim.errors import InputError
from hisparse_sim.planning.folder import SweepFolder
from hisparse_sim.planning.sweep import run_sweep

PROGRAM = "from hisparse_sim.cli.main import main; main()"
VARY = "workload.concurrency=1,2,3,4,5,6"


def started(out: Path, *more: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", PROGRAM, "sweep", AGENTIC, "--out", str(out), "--vary", VARY, *more]
    for text in SLOW:
        words += ["--set", text]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def until(found, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def children(pid: int) -> set[int]:
    """Processes below ``pid``."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(text.rpartition(")")[2].split()[1])
    found: set[int] = set()
    grown = {pid}
    while grown:
        grown = {p for p, parent in parents.items() if parent in grown} - found
        found |= grown
    return found


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def goes_on(out: Path, before: dict[str, int]) -> None:
    """The same sweep finishes and leaves alone what was there."""
    again = run_sweep(sweep(out, VARY, of=base(*SLOW)))
    assert again.found == len(before)
    assert again.complete
    after = parts(out)
    assert {name: after[name] for name in before} == before
    frame = pd.read_parquet(out)
    assert sorted(frame["workload.concurrency"]) == [1, 2, 3, 4, 5, 6]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_killed_sweep_goes_on_and_its_workers_leave(tmp_path: Path) -> None:
    process = started(tmp_path, "--jobs", "2")
    until(lambda: len(parts(tmp_path)) >= 2)
    workers = children(process.pid)
    assert workers
    process.kill()
    process.communicate()
    before = parts(tmp_path)
    until(lambda: not any(alive(pid) for pid in workers), seconds=15)
    assert 2 <= len(before) < 6
    goes_on(tmp_path, before)


def test_ctrl_c_keeps_what_is_finished(tmp_path: Path) -> None:
    process = started(tmp_path)
    until(lambda: len(parts(tmp_path)) >= 1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert said.splitlines()[-2:] == ["the same command goes on from there", "interrupted"]
    assert "Traceback" not in said
    goes_on(tmp_path, parts(tmp_path))


def test_a_second_sweep_of_a_folder_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    asked = sweep(tmp_path, "workload.concurrency=1")
    first = SweepFolder(tmp_path, asked.base, asked.points, "run")
    first.open()
    with pytest.raises(InputError, match=rf"another sweep writes here \(process {os.getpid()}\)"):
        run_sweep(asked)
    first.close()
    assert run_sweep(asked).complete


@pytest.mark.parametrize(
    ("backend", "worker", "error"),
    [
        ("local", b"loky.backend.popen_loky_posix", "TerminatedWorkerError"),
        ("ray", b"ray::PoolActor", "ActorDiedError"),
    ],
)
def test_a_lost_worker_ends_the_sweep_and_loses_nothing(
    tmp_path: Path, backend: str, worker: bytes, error: str
) -> None:
    if backend == "ray":
        pytest.importorskip("ray", reason="ray is not installed")
    process = started(tmp_path, "--jobs", "2", "--backend", backend)
    until(lambda: len(parts(tmp_path)) >= 1, seconds=90)
    victims = [
        pid
        for pid in children(process.pid)
        if alive(pid) and worker in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    os.kill(victims[0], signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"error: --backend: workers were lost ({error}" in said
    assert "Traceback" not in said
    goes_on(tmp_path, parts(tmp_path))
