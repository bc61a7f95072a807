"""Profiles in Python: samples of your own machine become one, and what it changes.

    mine = hs.calibrate("samples.json", "mine.json", over=["h200-published"])
    hs.compare_profiles("h200-published", "mine.json", "stream-1m-8xh200")
    hs.simulate(hs.scenario("stream-1m-8xh200", {"calibration": "mine.json"}))

``hisparse_sim`` offers these beside what ``api.py`` has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisparse_sim.api import scenario
from hisparse_sim.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

    from hisparse_sim.calibration.difference import Difference
    from hisparse_sim.cost.profile import Profile
    from hisparse_sim.scenario.scenario import Scenario

__all__ = ["Calibration", "ProfileDifference", "calibrate", "compare_profiles"]


class Calibration:
    """A fitted profile in its file. ``refused``: benchmarks whose form missed the points left out."""

    def __init__(self, path: Path, profile: Profile, refused: Sequence[str]) -> None:
        self.path, self.profile, self.refused = path, profile, tuple(refused)

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row a term: its form, its relative errors on points left out (or all, where few), its source."""
        import pandas as pd

        rows = []
        for term in self.profile.terms:
            error = term.holdout or term.residual
            rows.append(
                {
                    "term": term.id,
                    "form": term.form,
                    "left_out": term.holdout is not None,
                    "error_median": error.median_abs_rel if error else None,
                    "error_p90": error.p90_abs_rel if error else None,
                    "note": term.note,
                }
            )
        return pd.DataFrame(rows)

    def seconds(self, term: str, **variables: Any) -> npt.NDArray[np.float64]:
        """The fitted form of ``term`` at its variables (``bytes=[1e6, 1e9]``), broadcast."""
        import numpy as np

        from hisparse_sim.cost.forms import FORMS

        found = {t.id: t for t in self.profile.terms}
        if term not in found:
            raise InputError(f"{term!r} is not fitted; one of {', '.join(found)}", where=str(self.path))
        form = FORMS[found[term].form]
        if form.variables and set(variables) != set(form.variables):
            raise InputError(f"is a function of {', '.join(form.variables)}", where=term)
        at = np.broadcast_arrays(*(np.asarray(v, dtype=float) for v in variables.values()))
        return form.evaluate(found[term].params, dict(zip(variables, at, strict=True)))

    def __repr__(self) -> str:
        from hisparse_sim.cli.calibrate_text import terms_text

        said = [f"refused: {text}" for text in self.refused]
        return "\n".join([terms_text(self.profile.terms), *said])

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


def calibrate(
    samples: str | Path,
    out: str | Path,
    *,
    over: Sequence[str] = (),
    forms: Mapping[str, str] | None = None,
    profile_id: str | None = None,
) -> Calibration:
    """Fit the samples of ``hisparse-sim calibrate run`` to a profile and write it, as ``calibrate fit``.

    ``over``: profiles that price what was not measured. ``forms``: of benchmarks that have none of their own.
    Needs the extra ``fit``. Raises ``InputError`` naming file and field.
    """
    from hisparse_sim.calibration.importer import to_text
    from hisparse_sim.calibration.measured import fit_samples
    from hisparse_sim.calibration.profile_file import validated, write_text
    from hisparse_sim.calibration.samples import read_samples

    path = Path(out)
    fitted = fit_samples(
        read_samples(samples), profile_id=profile_id or path.stem, forms=forms, over=list(over)
    )
    profile = validated(fitted.profile, path)
    write_text(path, to_text(fitted.profile))
    return Calibration(path, profile, fitted.refused)


class ProfileDifference:
    """Two profiles: ``terms`` that differ, and ``tpot``, seconds a token of a scenario's engine with both."""

    def __init__(self, found: Difference) -> None:
        self.found = found

    @cached_property
    def terms(self) -> pd.DataFrame:
        """A row a term: what changed, the parameter that did most, and its ratio."""
        return self._frame("terms", ["term", "what", "parameter", "ratio"])

    @cached_property
    def tpot(self) -> pd.DataFrame:
        """A row a batch and context: seconds before and after; empty without a scenario."""
        return self._frame("tpot", ["batch", "context_tokens", "before_s", "after_s", "ratio"])

    def _frame(self, key: str, columns: list[str]) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(self.found.as_json()[key], columns=columns)

    def __repr__(self) -> str:
        from hisparse_sim.cli.calibrate_text import difference_text

        return difference_text(self.found)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


def compare_profiles(
    before: str | Path, after: str | Path, what: Scenario | str | Path | None = None
) -> ProfileDifference:
    """Two profiles, by shipped names or files, as ``hisparse-sim calibrate diff``."""
    from hisparse_sim.calibration.difference import difference
    from hisparse_sim.cost.profile import load_profile

    asked = scenario(what) if isinstance(what, str | Path) else what
    return ProfileDifference(difference(load_profile(before), load_profile(after), asked))
