"""Runs as lines of text."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from hisparse_sim.report.run_picture import RunPicture
from hisparse_sim.report.sparklines import BLOCKS, LETTERS, sparklines

ROWS = 8
SUMMARY: dict[str, Any] = {
    "scenario": "mine",
    "mode": "hisparse",
    "pools": {"num_gpu_blocks": 101, "num_host_blocks": 11, "block_size": 64},
}


def run(seconds: float = 10.0, rows: int = ROWS, **more: Any) -> RunPicture:
    """Running rises by one a row; the pools fill; every row moves 1 GB a second."""
    steps = pd.DataFrame(
        {
            "start_s": [seconds * i for i in range(rows)],
            "end_s": [seconds * (i + 1) for i in range(rows)],
            "running": list(range(1, rows + 1)),
            "waiting": [0] * rows,
            "gpu_free_blocks": [100 - 10 * (i + 1) for i in range(rows)],
            "host_free_blocks": [10 - i for i in range(rows)],
            "h2d_bytes": [1e9 * seconds] * rows,
            "d2h_bytes": [0.0] * rows,
        }
    )
    return RunPicture(SUMMARY | more, pd.DataFrame(columns=["arrival_s", "first_scheduled_s"]), steps)


def fields(text: str, title: str) -> tuple[str, list[str]]:
    """The line of a quantity and its numbers."""
    (line,) = (line for line in text.splitlines() if line.startswith(title))
    bar = "│" if "│" in line else "|"
    _, spark, numbers = line.split(bar)
    return spark, numbers.split()


def test_a_line_rises_with_its_quantity() -> None:
    spark, numbers = fields(sparklines([run()]), "running")
    assert "".join(dict.fromkeys(spark)) == BLOCKS
    assert numbers == ["1", "4.5", "8"]


def test_memory_is_told_against_all_of_the_pool() -> None:
    spark, numbers = fields(sparklines([run()]), "HBM")
    assert spark[0] == "▁" and spark[-1] == "▇"
    assert numbers == ["10", "45", "80"]
    assert fields(sparklines([run()]), "host KV")[1] == ["0", "35", "70"]


def test_traffic_is_told_in_gb_a_second_and_what_never_happens_is_left_out() -> None:
    text = sparklines([run()])
    assert fields(text, "host to GPU")[1] == ["1", "1", "1"]
    assert "GPU to host" not in text and "waiting" not in text


@pytest.mark.parametrize("seconds", [1e-5, 1.0, 1e6])
@pytest.mark.parametrize("name", ["mine", "x" * 200])
def test_no_line_is_wider_than_a_hundred_columns(seconds: float, name: str) -> None:
    text = sparklines([run(seconds, scenario=name), run(3 * seconds, scenario=name)])
    assert max(map(len, text.splitlines())) == 100
    assert all(line == line.rstrip() for line in text.splitlines())


def test_runs_have_the_same_scales() -> None:
    text = sparklines([run(), run(rows=4, mode="offload")])
    first, second = text.split("\n\n")
    assert first.startswith("mine, hisparse: 0 to 80 s") and second.startswith("mine, offload: 0 to 40 s")
    long, cut = fields(first, "running")[0], fields(second, "running")[0]
    assert len(long) == len(cut)
    assert cut.rstrip() == long[: len(cut.rstrip())]
    assert len(cut.rstrip()) == pytest.approx(len(long) / 2, abs=1)
    assert fields(second, "running")[1] == ["1", "2.5", "4"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", None, "no-such-encoding"])
def test_where_blocks_cannot_be_printed_letters_are(encoding: str | None) -> None:
    text = sparklines([run()], encoding=encoding)
    assert text.isascii()
    assert "".join(dict.fromkeys(fields(text, "running")[0])) == LETTERS


def test_a_run_of_nothing_says_why() -> None:
    text = sparklines([run(rows=0, limit="the prompt is too long"), run()])
    assert text.splitlines()[0] == "mine, run 1 (nothing ran): the prompt is too long"
    assert sparklines([run(rows=0)]) == "mine, hisparse (nothing ran): no step was taken"
