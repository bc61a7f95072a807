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
        save_workload,
        scenario,
        simulate,
        sweep,
    )
    from hisparse_sim.measurements import Measurement, measured
    from hisparse_sim.profiles import Calibration, ProfileDifference, calibrate, compare_profiles
    from hisparse_sim.scenario.scenario import Scenario
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

_STUDIES = ("Anatomy", "Expected", "Plan", "Sensitivity", "expected", "explain", "plan", "sensitivity")
_PROFILES = ("Calibration", "ProfileDifference", "calibrate", "compare_profiles")
_HOMES = {
    "Scenario": "scenario.scenario",
    **dict.fromkeys(_STUDIES, "studies"),
    **dict.fromkeys(_PROFILES, "profiles"),
    **dict.fromkeys(("Measurement", "measured"), "measurements"),
}
"""Modules of names that are not in ``api``."""
__all__ = [
    "Anatomy",
    "Calibration",
    "Comparison",
    "Estimate",
    "Expected",
    "HiSparseError",
    "Measurement",
    "Plan",
    "ProfileDifference",
    "Run",
    "Scenario",
    "Sensitivity",
    "__version__",
    "calibrate",
    "compare",
    "compare_profiles",
    "estimate",
    "expected",
    "explain",
    "measured",
    "plan",
    "save_workload",
    "scenario",
    "sensitivity",
    "simulate",
    "sweep",
]


# Hidden from type checkers, which would take every name, misspelt ones too, for one of this module's.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        # Rooms of the package have some of these names, too; the functions come first, when asked for.
        if name in __all__:
            return getattr(import_module(f"hisparse_sim.{_HOMES.get(name, 'api')}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
