"""Whole commands, as people type them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from bench.markdown import markdown
from bench.process import Usage, run
from bench.repeats import alternate, spread
from bench.setup import Setup

NAME = "commands"
ABOUT = "Whole commands, start-up included."
RUN = ["run", "agentic-13turn-8xh200", "--concurrency", "32", "--no-plots"]


def measure(setup: Setup) -> dict[str, list[Usage]]:
    """What each command took, each time."""
    cases = {
        name: partial(run, name.split()) for name in ("--help", "estimate --model glm-5.3 --node 8xh200")
    }
    for mode in ("hisparse", "offload"):
        arguments = [*RUN, "--mode", mode]
        cases[" ".join(arguments)] = partial(run, [*arguments, "--out", str(setup.work / mode)])
    return alternate(cases, setup)


def table(found: Mapping[str, Sequence[Usage]]) -> str:
    """A row a command."""
    rows = []
    for name, usages in found.items():
        wall_s, cpu_s, peak_mb = map(spread, zip(*usages, strict=True))
        rows.append([f"`{name}`", f"{wall_s:.2f}", f"{cpu_s:.2f}", f"{peak_mb:.0f}"])
    return markdown(["command", "wall s", "CPU s", "peak MB"], rows)
