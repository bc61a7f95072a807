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
    from hisparse_sim.measurements import Measurement, measured
    from hisparse_sim.studies import (
        Anatomy,
        Expected,
        Plan,
        Sensitivity,
        expected,
        explain,
        plan,
        sensitivity,
    )

_MEASUREMENTS = {"Measurement", "measured"}
_STUDIES = {"Anatomy", "Expected", "Plan", "Sensitivity", "expected", "explain", "plan", "sensitivity"}
__all__ = [
    "Anatomy",
    "Comparison",
    "Estimate",
    "Expected",
    "HiSparseError",
    "Measurement",
    "Plan",
    "Run",
    "Sensitivity",
    "__version__",
    "compare",
    "estimate",
    "expected",
    "explain",
    "measured",
    "plan",
    "scenario",
    "sensitivity",
    "simulate",
    "sweep",
]


def __getattr__(name: str) -> Any:
    # Rooms of the package have some of these names, too; the functions come first, and only when asked for.
    if name in __all__:
        module = "studies" if name in _STUDIES else "measurements" if name in _MEASUREMENTS else "api"
        return getattr(import_module(f"hisparse_sim.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
