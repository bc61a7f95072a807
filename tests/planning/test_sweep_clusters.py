"""Sweeps on a Dask cluster of two worker processes, one of which dies; clusters that are not there."""

from __future__ import annotations

import os
import signal
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from small_sweeps import SLOW, base, parts, sweep

from hisparse_sim.cli.main import run
from hisparse_sim.errors import InputError
from hisparse_sim.planning.sweep import run_sweep

VARY = "workload.concurrency=1,2,3,4,5,6"


@pytest.fixture
def cluster() -> Iterator[object]:
    distributed = pytest.importorskip("distributed", reason="dask is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        started = distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
        )
        yield started
        started.close(timeout=10)


@pytest.mark.filterwarnings("ignore")
def test_every_point_is_there_once_when_a_worker_dies_in_the_middle(tmp_path: Path, cluster) -> None:
    import distributed

    client = distributed.Client(cluster)
    victim = min(client.run(os.getpid).values())
    client.close()
    killed = []

    def progress(done: int, total: int) -> None:
        if not killed:
            killed.append(done)
            os.kill(victim, signal.SIGKILL)

    asked = sweep(tmp_path, VARY, of=base(*SLOW), backend="dask", address=cluster.scheduler_address, jobs=2)
    outcome = run_sweep(asked, progress)
    assert killed
    assert killed[0] < 6
    frame = pd.read_parquet(tmp_path)
    assert sorted(frame["workload.concurrency"]) == [1, 2, 3, 4, 5, 6]
    assert outcome.complete
    before = parts(tmp_path)
    assert run_sweep(asked).computed == 0
    assert parts(tmp_path) == before


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.parametrize(("backend", "module"), [("dask", "distributed"), ("ray", "ray")])
def test_a_cluster_that_is_not_there_is_said_and_nothing_is_left(
    tmp_path: Path, backend: str, module: str
) -> None:
    pytest.importorskip(module, reason=f"{module} is not installed")
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(InputError, match=f"--address {address}: nothing answers"):
        run_sweep(sweep(tmp_path / "out", VARY, backend=backend, address=address))
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore")
def test_something_that_is_no_scheduler_is_said(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="dask is not installed")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(InputError, match="is no Dask scheduler that answers"):
            run_sweep(sweep(tmp_path / "out", VARY, backend="dask", address=address))
    assert not (tmp_path / "out").exists()


def test_a_missing_extra_names_what_to_install(tmp_path: Path, monkeypatch, capsys) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "distributed", None)
    words = [
        "sweep",
        "agentic-13turn-8xh200",
        "--vary",
        "workload.concurrency=1",
        "--out",
        str(tmp_path / "o"),
    ]
    assert run([*words, "--backend", "dask"]) == 2
    assert "pip install 'hisparse-sim[dask]'" in capsys.readouterr().err
