"""``hisparse-sim run --trace``: what of a trace is sent, and what is said of mistakes."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from hisparse_sim.cli import main as cli


def test_flags_of_a_trace_cut_and_stretch_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "t.csv"
    source.write_text(
        "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{t},{100 + t},3\n" for t in (0, 5, 4, 9, 20))
    )
    argv = [
        "run",
        "agentic-13turn-8xh200",
        "--trace",
        str(source),
        "--no-plots",
        "--json",
        "--out",
        str(tmp_path / "r"),
    ]
    code = cli.run(
        [*argv, "--skip-bad-lines", "1", "--trace-from", "2", "--trace-to", "10", "--trace-repeat", "2"]
    )
    _, err = capsys.readouterr()
    assert code == 0 and "note: bad lines left out: 1 (" in err
    assert len(pd.read_parquet(tmp_path / "r" / "requests.parquet")) == 4


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--trace-scale", "0.5"], "--trace-scale: is for traces; this scenario's requests are generated"),
        (["--trace", "FILE", "--trace-scale", "0"], "--trace-scale: 0.0 is not allowed, must be more than 0"),
        (
            ["--trace", "FILE", "--trace-from", "5", "--trace-to", "4"],
            "to_s: 4 is not after from_s, 5",
        ),
        (
            ["--trace", "FILE", "--trace-from", "99"],
            "--trace-from: no request arrives between from_s and to_s",
        ),
    ],
)
def test_a_wrong_flag_of_a_trace_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    source = tmp_path / "t.csv"
    source.write_text("arrival_s,prompt_tokens,output_tokens\n0,5,1\n")
    argv = [str(source) if word == "FILE" else word for word in argv]
    assert cli.run(["run", "agentic-13turn-8xh200", *argv, "--out", str(tmp_path / "r")]) == 2
    assert message in capsys.readouterr().err
