"""A measured profile from a samples file: each benchmark's form fitted, refused where it does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hisparse_sim.calibration.fitting import FITTERS, describe, fit, relative_errors, rounded, span
from hisparse_sim.calibration.plan import SampleGroup, least_points, sample_groups
from hisparse_sim.calibration.samples import Samples
from hisparse_sim.cost.profile import SCHEMA
from hisparse_sim.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Mask = npt.NDArray[np.bool_]

GATE = 0.10
"""Largest median error, on points left out, of a fit that is accepted."""
HOLDOUT = 0.25
"""Share of a benchmark's points that its form is not fitted to; none where there are fewer than 8."""
_FEW_POINTS = 8

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fitted:
    """The profile as JSON-ready data, and what was refused and why."""

    profile: Json
    refused: tuple[str, ...]


def fit_samples(
    samples: Samples,
    *,
    profile_id: str,
    forms: Mapping[str, str] | None = None,
    over: Sequence[str] = (),
    gate: float = GATE,
    holdout: float = HOLDOUT,
) -> Fitted:
    """Terms for all benchmarks of ``samples`` that have a form.

    A form whose median error on the points kept out of the fit (all of them in turn, where few) exceeds
    ``gate`` is refused; the profile has no term for it, so that what lies below prices it. Raises
    ``InputError`` when nothing is left.
    """
    terms: list[Json] = []
    refused: list[str] = []
    for group in sample_groups(samples, forms):
        if group.form not in FITTERS:
            raise InputError(f"form {group.form} cannot be fitted to samples", where=group.term)
        least = least_points(group.form)
        if len(group.seconds) < least:
            refused.append(f"{group.term}: {len(group.seconds)} points, {group.form} needs {least}")
            continue
        term = _term(group, holdout)
        error: Json = term["holdout"] if "holdout" in term else term["residual"]
        if error["median_abs_rel"] > gate:
            refused.append(
                f"{group.term}: {group.form} misses points left out by {error['median_abs_rel']:.1%} in the "
                f"median, the gate is {gate:.1%}"
            )
            continue
        terms.append(term)
    if not terms:
        why = "; ".join(refused) or "no benchmark in it has a form; give one with --model NAME=FORM"
        raise InputError(f"nothing could be fitted: {why}", where=profile_id)
    profile = {
        "schema": SCHEMA,
        "id": profile_id,
        "kind": "measured",
        "created": samples.created,
        "hardware": samples.hardware.model_dump(mode="json", exclude_defaults=True),
        "build": samples.build.model_dump(mode="json", exclude_defaults=True),
        "over": list(over),
        "sources": {"measured": {"text": f"measured on {samples.hardware.gpu} {samples.created}".strip()}},
        "samples": [s.model_dump(mode="json", exclude_defaults=True) for s in samples.samples],
        "terms": terms,
    }
    return Fitted(profile, tuple(refused))


def kept_out(count: int, holdout: float) -> Mask:
    """Which of ``count`` points a form is not fitted to: the same ones each time, the ends never."""
    import numpy as np

    out = np.zeros(count, dtype=bool)
    wanted = round(holdout * count) if count >= _FEW_POINTS else 0
    if wanted:
        inner = np.random.default_rng(0).permutation(np.arange(1, count - 1))
        out[inner[: min(wanted, len(inner))]] = True
    return out


def _term(group: SampleGroup, holdout: float) -> Json:
    import numpy as np

    order = np.lexsort(tuple(group.variables.values()))
    variables = {name: values[order] for name, values in group.variables.items()}
    seconds = group.seconds[order]
    out = kept_out(len(seconds), holdout)
    inside = {name: values[~out] for name, values in variables.items()}
    params, errors = fit(group.form, inside, seconds[~out], holdout=not out.any())
    if out.any():
        unseen = {name: values[out] for name, values in variables.items()}
        errors["holdout"] = describe(relative_errors(group.form, params, unseen, seconds[out]))
    spread = float(np.median(group.spread))
    return {
        "id": group.term,
        "form": group.form,
        "unit": "s",
        "params": dict(rounded(params)),
        "domain": {name: list(span(values)) for name, values in variables.items()},
        **errors,
        "source": "measured",
        "grade": "measured",
        "note": f"{group.sample}: {len(seconds)} points, 10th to 90th percentile {spread:.1%} of the median.",
    }
