"""What is measured, in order of value; each benchmark yields its points, those of most value first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from hisparse_sim.calibration.bench.benchmarks.interference import interferences
from hisparse_sim.calibration.bench.benchmarks.link import (
    copies,
    copies_both,
    copy_batches,
    copy_issue,
    launches,
)
from hisparse_sim.calibration.bench.benchmarks.memory import passes
from hisparse_sim.calibration.bench.benchmarks.resolver import resolvers
from hisparse_sim.calibration.bench.benchmarks.rows import gathers
from hisparse_sim.calibration.bench.benchmarks.sparse import attentions, indexers, selections
from hisparse_sim.calibration.bench.benchmarks.spill import mirrors, spills
from hisparse_sim.calibration.bench.points import Benchmark, Ground, Point


@dataclass(frozen=True)
class Group:
    """Benchmarks that one process runs: a fault in it costs the others nothing.

    ``share`` of the time is for them; ``checks`` must have passed, else nothing is timed.
    """

    name: str
    benchmarks: dict[str, Benchmark]
    share: float
    checks: tuple[str, ...] = ()


GROUPS: tuple[Group, ...] = (
    Group(
        "link",
        {
            "launch": launches,
            "copy_h2d": partial(copies, "h2d"),
            "copy_d2h": partial(copies, "d2h"),
            "copy_both": copies_both,
            "copy_issue": copy_issue,
            "copy_batch": copy_batches,
        },
        8,
        ("copies",),
    ),
    Group("rows", {"gather": gathers}, 25, ("memory", "gather")),
    Group("resolver", {"resolve": resolvers}, 30, ("resolver",)),
    Group("interference", {"interference": interferences}, 8, ("memory", "gather", "copies")),
    Group("spill", {"spill": spills, "mirror": mirrors}, 10, ("memory", "copies")),
    Group("memory", {"hbm": passes}, 3, ("memory",)),
    Group("indexer", {"indexer": indexers}, 8, ("indexer",)),
    Group("selection", {"topk": selections}, 8, ("topk",)),
    Group("attention", {"attention": attentions}, 8, ("attention",)),
)
"""In order of value."""


def points_of(group: Group, ground: Ground) -> Iterator[tuple[str, Point]]:
    """The points of a group, each with its benchmark's name; memory is freed between benchmarks."""
    for name, benchmark in group.benchmarks.items():
        with ground.gpu.scope():
            for point in benchmark(ground):
                yield name, point
