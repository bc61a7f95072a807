"""Prompts of a million tokens, which pages one by one would make slow."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from bench.markdown import markdown
from bench.process import Usage, run
from bench.repeats import alternate, spread
from bench.setup import Setup

NAME = "long"
ABOUT = """\
32 requests of 1,000,000 prompt and 1,000 output tokens, asked at once of GLM-5.3 with HiSparse:
`run stream-1m-8xh200 --no-plots` as a process."""


def measure(setup: Setup) -> list[Usage]:
    """What it took, each time."""
    arguments = ["run", "stream-1m-8xh200", "--no-plots", "--out", str(setup.work / "long")]
    return alternate({"long": partial(run, arguments)}, setup)["long"]


def table(usages: Sequence[Usage]) -> str:
    """One row."""
    wall_s, cpu_s, peak_mb = map(spread, zip(*usages, strict=True))
    return markdown(["wall s", "CPU s", "peak MB"], [[f"{wall_s:.2f}", f"{cpu_s:.2f}", f"{peak_mb:.0f}"]])
