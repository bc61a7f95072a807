"""The JSON Schemas of the two files of this room; the committed copies are tested to be these."""

from __future__ import annotations

from typing import Any

from hisparse_sim.calibration.samples import Samples
from hisparse_sim.cost.profile import Profile

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def profile_schema() -> dict[str, Any]:
    """Of ``hisparse-sim/calibration/1``."""
    return {"$schema": _DIALECT, **Profile.model_json_schema(by_alias=True)}


def samples_schema() -> dict[str, Any]:
    """Of ``hisparse-sim/samples/1``."""
    return {"$schema": _DIALECT, **Samples.model_json_schema(by_alias=True)}
