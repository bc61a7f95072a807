"""Correctness before speed: every kernel against its oracle, by the calls that are timed later.

Outputs are poisoned first, lie between guard pages, and are compared whole: what must not be written
still holds the poison. Everything runs twice, with another poison.
"""

from __future__ import annotations

from collections.abc import Callable

from hisparse_sim.calibration.bench.checks.moves import check_copies, check_gather, check_memory
from hisparse_sim.calibration.bench.checks.resolver import check_resolver
from hisparse_sim.calibration.bench.checks.sparse import (
    ATTENTION_ERROR,
    INDEXER_ERROR,
    check_attention,
    check_indexer,
    check_topk,
)
from hisparse_sim.calibration.bench.checks.workbench import POISONS, Bench
from hisparse_sim.calibration.bench.gpu import Library
from hisparse_sim.calibration.samples import Check

CHECKS: dict[str, tuple[Callable[[Bench], None], str]] = {
    "memory": (check_memory, "exact, numpy"),
    "copies": (check_copies, "exact, numpy"),
    "gather": (check_gather, "exact, numpy"),
    "resolver": (check_resolver, "exact LRU, numpy"),
    "topk": (check_topk, "exact, numpy sort"),
    "indexer": (check_indexer, f"float64, relative error {INDEXER_ERROR:g}"),
    "attention": (check_attention, f"float64, relative error {ATTENTION_ERROR:g}"),
}


def run_check(library: Library, name: str, *, full: bool) -> Check:
    """One check with both poisons. Raises ``GpuError`` when the GPU itself fails."""
    check, reference = CHECKS[name]
    cases = mismatches = 0
    worst = ""
    for poison in POISONS:
        bench = Bench(library, poison, full)
        check(bench)
        library.release()
        cases += bench.cases
        mismatches += bench.mismatches
        worst = worst or bench.worst
    return Check(
        name=name,
        reference=reference,
        cases=cases,
        mismatches=mismatches,
        passed=mismatches == 0 and cases > 0,
        detail=worst,
    )
