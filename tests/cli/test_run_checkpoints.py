"""``hisparse-sim run`` while it goes on: what its folder holds, and how it can end."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

import pandas as pd
import pytest

from hisparse_sim.cli.main import run
from hisparse_sim.simulation import checkpoints
from hisparse_sim.simulation.result import FILES, Result

AGENTIC = "agentic-13turn-8xh200"
SMALL = ["--concurrency", "2", "--limit", "4", "--set", "workload.first_prompt_tokens=4000", "--no-plots"]
LONG = [*SMALL[:2], *SMALL[4:], "--set", "workload.conversations=1000000"]
"""More than anybody waits for."""

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and terminals are POSIX ones")


def start(out: Path, *args: str, stderr: int | IO[Any] = subprocess.PIPE) -> subprocess.Popen[str]:
    """A long run that leaves checkpoints all the time."""
    call = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    call += "from hisparse_sim.cli.main import main; main()"
    argv = [sys.executable, "-c", call, "run", AGENTIC, "--out", str(out), *LONG, *args]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment)


def wait_for(condition: Any, *, seconds: float = 30.0) -> None:
    until_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until_s, "it never came"
        time.sleep(0.02)


def done(folder: Path) -> int:
    """Completed requests, of the last checkpoint."""
    try:
        summary = json.loads((folder / "summary.json").read_text())
    except FileNotFoundError:
        return 0
    assert summary["complete"] is False
    return int(summary["requests_completed"])


def test_a_run_that_is_killed_leaves_its_last_checkpoint(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    process = start(out, "--checkpoint-every", "0.01")
    try:
        wait_for(lambda: done(out) > 20)
        # While it goes on, it can be looked at from elsewhere.
        assert run(["plot", str(out), "--text"]) == 0
        assert "not complete" in capsys.readouterr().out
        assert process.poll() is None
    finally:
        process.kill()
        _, said = process.communicate(timeout=30)
    assert {path.name for path in out.iterdir() if not path.name.startswith(".")} == set(FILES)
    requests = pd.read_parquet(out / "requests.parquet")
    assert (requests["status"] == "completed").sum() >= 20
    assert run(["plot", str(out), "--format", "png", "--only", "latency"]) == 0
    assert (out / "latency.png").read_bytes()
    assert "So far" not in said  # that is for people: in a pipe it is quiet


def test_ctrl_c_after_a_checkpoint_leaves_what_was_done_until_then(tmp_path: Path) -> None:
    process = start(tmp_path, "--checkpoint-every", "0.01")
    try:
        wait_for(lambda: done(tmp_path) > 0)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130 and f"{tmp_path} holds what was done" in said
    assert {path.name for path in tmp_path.iterdir()} == set(FILES)
    requests = pd.read_parquet(tmp_path / "requests.parquet")
    under_way = requests["reason"][requests["status"] == "incomplete"]
    assert (under_way == "still under way when the run was interrupted").all()


def test_a_terminal_is_told_where_to_look(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = start(tmp_path, "--checkpoint-every", "0.01", stderr=theirs)
    os.close(theirs)
    try:
        shown = b""
        while b"draws it)" not in shown:
            shown += os.read(ours, 65536)
    finally:
        process.kill()
        process.communicate(timeout=30)
        os.close(ours)
    assert b"So far: " in shown


def test_0_is_never_and_what_is_no_time_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "Checkpoints", lambda *_: pytest.fail("there are some"))
    argv = ["run", AGENTIC, "--out", str(tmp_path / "out"), *SMALL, "--checkpoint-every"]
    for bad in ("-1", "nan", "inf", "soon", ""):
        assert run([*argv, bad]) == 2
        said = capsys.readouterr().err
        assert f"'--checkpoint-every': {bad!r} is no number of seconds from 0 to 1,000,000" in said
        assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())
    assert run([*argv, "0"]) == 0


def test_a_checkpoint_that_cannot_be_written_is_told_once_and_the_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hisparse_sim.simulation import result
    from hisparse_sim.simulation import run as running

    whole = result._write_json

    tried = 0

    def full(path: Path, data: dict[str, Any]) -> None:
        nonlocal tried
        if not data.get("complete", True):
            tried += 1
            raise OSError(28, "No space left on device")
        whole(path, data)

    monkeypatch.setattr(running, "_EVENTS", 5)
    monkeypatch.setattr(checkpoints, "SHARE", 1e9)
    monkeypatch.setattr(result, "_write_json", full)
    (tmp_path / ".run-abc").mkdir()
    (tmp_path / ".run-abc" / "steps.parquet").write_text("of a run that was killed while it wrote")
    (tmp_path / "timeline.png").write_text("of an earlier run")
    assert run(["run", AGENTIC, "--out", str(tmp_path), *SMALL, "--checkpoint-every", "1e-9"]) == 0
    said = capsys.readouterr().err
    assert tried > 1 and said.count("No space left on device") == 1
    assert "the run goes on without checkpoints" in said
    assert {path.name for path in tmp_path.iterdir()} == set(FILES)


def test_pictures_of_an_earlier_run_go_with_the_first_checkpoint_and_later_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hisparse_sim.simulation import run as running

    picture = tmp_path / "gantt.png"
    picture.write_text("of an earlier run")
    write, seen = Result.write, []

    def watched(result: Result, folder: Path) -> None:
        seen.append(picture.exists())
        write(result, folder)
        if len(seen) == 2:
            picture.write_text("drawn meanwhile")

    monkeypatch.setattr(running, "_EVENTS", 5)
    monkeypatch.setattr(checkpoints, "SHARE", 1e9)
    monkeypatch.setattr(Result, "write", watched)
    assert run(["run", AGENTIC, "--out", str(tmp_path), *SMALL, "--checkpoint-every", "1e-9"]) == 0
    assert seen[:3] == [True, False, True]
