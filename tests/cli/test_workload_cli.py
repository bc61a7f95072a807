"""``hisparse-sim workload``: described, saved and drawn without being simulated."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hisparse_sim.cli import main as cli
from hisparse_sim.scenario.loader import list_scenarios

SCENARIO = "agentic-13turn-8xh200"


def call(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> tuple[str, str]:
    assert cli.run(["workload", *argv]) == code
    out, err = capsys.readouterr()
    return out, err


def trace(folder: Path, times: tuple[float, ...] = (0, 1, 2, 3), name: str = "t.jsonl") -> str:
    path = folder / name
    row = {"prompt_tokens": 100, "output_tokens": 7, "session": "s"}
    path.write_text("".join(json.dumps({"arrival_s": t} | row) + "\n" for t in times))
    return str(path)


def facts(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call(capsys, "describe", *argv, "--json")[0])
    return found


def test_a_scenario_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = call(capsys, "describe", SCENARIO)
    assert "64 sessions, 832 requests, 32 sessions at a time" in out
    assert "92.0% of all prompt tokens were said before" in out
    assert "prompt tokens" in out and "79,998" in out
    assert err == ""


def test_a_trace_is_described_with_its_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(tmp_path)
    assert "4 requests; 1 sessions/s over 3 s" in call(capsys, "describe", path)[0]
    assert facts(capsys, path, "--trace-scale", "2")["last_arrival_s"] == 6
    assert facts(capsys, path, "--trace-from", "1", "--trace-to", "3")["requests"] == 2
    assert facts(capsys, path, "--trace-repeat", "3", "--limit", "10")["requests"] == 10
    assert facts(capsys, path, "--set", "workload.limit=3")["requests"] == 3
    assert facts(capsys, path, "--trace-format", "plain")["requests"] == 4


def test_bad_lines_are_told_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(tmp_path, (0, 5, 4, 6))
    out, err = call(capsys, "describe", path, "--skip-bad-lines", "1")
    assert "3 requests" in out
    line = f"{path}:3: arrives 1 s before a line above it; sort the file by time"
    assert err == f"note: bad lines left out: 1 ({line})\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("look", SCENARIO), "workload: 'look' is not an action; use one of describe, save, plot"),
        (("describe", "nowhere.jsonl"), "nowhere.jsonl"),
        (("describe", SCENARIO, "--trace-scale", "2"), "--trace-scale: is for traces"),
        (("save", SCENARIO), "--out: missing; name a .jsonl"),
        (("save", SCENARIO, "--out", "w.csv"), "--out w.csv: is not a name that ends in .jsonl"),
        (("plot", SCENARIO, "--out", "w.pdf"), "--out w.pdf: ends in .pdf; pictures are .png or .svg"),
        (("plot", SCENARIO, "--out", "nowhere/w.png"), "--out nowhere/w.png: cannot be written"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    argv: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    out, err = call(capsys, *argv, code=2)
    assert out == "" and err.count("\n") == 1
    assert err.startswith("error: ") and message in err
    assert not list(tmp_path.iterdir())


def test_a_flag_of_a_trace_that_cannot_be_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, err = call(capsys, "describe", trace(tmp_path), "--trace-scale", "0", code=2)
    assert err == "error: --trace-scale: 0.0 is not allowed, must be more than 0\n"
    _, err = call(capsys, "describe", trace(tmp_path), "--trace-format", "csv", code=2)
    assert err.startswith("error: --trace-format: 'csv' is not one of")
    _, err = call(capsys, "describe", trace(tmp_path), "--trace-from", "99", code=2)
    assert err == "error: --trace-from: no request arrives between from_s and to_s\n"


@pytest.mark.parametrize("name", list_scenarios())
def test_every_shipped_scenario_is_described_saved_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    asked = (name, "--set", "workload.limit=null")
    call(capsys, "save", *asked, "--out", str(tmp_path / "w.jsonl.gz"))
    assert facts(capsys, str(tmp_path / "w.jsonl.gz")) == facts(capsys, *asked)
    call(capsys, "plot", *asked, "--out", str(tmp_path / "w.png"))
    assert (tmp_path / "w.png").stat().st_size > 10_000


@pytest.mark.parametrize("name", ["w.jsonl", "w.parquet"])
def test_a_saved_scenario_has_the_facts_of_the_scenario(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    asked = (SCENARIO, "--set", "workload={kind: agentic-coding, sessions: 5, concurrency: 3}", "--seed", "4")
    out, err = call(capsys, "save", *asked, "--out", str(tmp_path / name))
    assert out == "" and f"requests: {tmp_path / name}" in err
    assert facts(capsys, str(tmp_path / name)) == facts(capsys, *asked)


def test_what_may_be_among_the_first_requests_is_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = str(tmp_path / "w.jsonl")
    alone = ("--set", "workload.concurrency=1")
    _, err = call(capsys, "save", SCENARIO, "--limit", "5", *alone, "--out", saved)
    assert err == f"5 requests: {saved}\n"
    note = "note: a run sends 100 of these requests; how fast they are served decides which come first\n"
    _, err = call(capsys, "describe", SCENARIO, "--limit", "100")
    assert err == note
    _, err = call(capsys, "save", SCENARIO, "--limit", "100", "--out", saved)
    assert err == f"{note}472 requests: {saved}\n"
    assert facts(capsys, saved)["requests"] == facts(capsys, SCENARIO, "--limit", "100")["requests"]


def test_a_saved_workload_saved_again_is_the_same_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    call(capsys, "save", SCENARIO, "--limit", "50", "--seed", "4", "--out", str(one))
    call(capsys, "save", str(one), "--out", str(two))
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("times", [(0.0,), (0.0, 1.0, 4.0, 9.0, 9.5)])
def test_pictures_are_drawn_and_the_same_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], times: tuple[float, ...]
) -> None:
    source = trace(tmp_path, times)
    for name in ("one", "two"):
        out, _ = call(capsys, "plot", source, "--out", str(tmp_path / name))
        assert out.split() == [str(tmp_path / f"{name}{suffix}") for suffix in (".png", ".svg")]
    for suffix in (".png", ".svg"):
        assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"two{suffix}").read_bytes()
    call(capsys, "plot", SCENARIO, "--out", str(tmp_path / "closed.png"))
    assert (tmp_path / "closed.png").stat().st_size > 10_000


@pytest.mark.skipif(os.name != "posix", reason="terminals are POSIX ones")
@pytest.mark.parametrize(("action", "said"), [("describe", b"reading t.jsonl"), ("save", b"writing w.jsonl")])
def test_a_terminal_sees_how_many_requests_were_read(tmp_path: Path, action: str, said: bytes) -> None:
    path = trace(tmp_path, tuple(range(9_000)))
    out = ("--out", str(tmp_path / "w.jsonl")) if action == "save" else ()
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from hisparse_sim.cli.main import main; main()",
            "workload",
            action,
            path,
            *out,
        ],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            more = os.read(ours, 65536)
        except OSError:  # Linux says so when the other side is closed
            break
        if not more:
            break
        shown += more
    os.close(ours)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert said in shown and b" requests" in shown
    assert said not in printed
