"""hisparse-sim: a discrete-event simulator and capacity planner for tiered KV memory."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from hisparse_sim.api import (
        Comparison,
        Estimate,
        HiSparseError,
        Run,
        compare,
        estimate,
        scenario,
        simulate,
        sweep,
    )

__all__ = [
    "Comparison",
    "Estimate",
    "HiSparseError",
    "Run",
    "__version__",
    "compare",
    "estimate",
    "scenario",
    "simulate",
    "sweep",
]


def __getattr__(name: str) -> Any:
    # Rooms of the package have some of these names, too; the functions come first, and only when asked for.
    if name in __all__:
        return getattr(import_module("hisparse_sim.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
