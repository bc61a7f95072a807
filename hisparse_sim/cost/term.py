"""One coefficient set of a profile: a named form, where it was fitted, and how well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hisparse_sim.cost.forms import FORMS, Variables, scalar, series

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Grade = Literal["measured", "published", "datasheet", "derived", "guess"]

GRADE_UNCERTAINTY: dict[str, float] = {
    "measured": 0.05,
    "published": 0.10,
    "datasheet": 0.20,
    "derived": 0.25,
    "guess": 0.50,
}
"""Relative uncertainty where neither an error of a fit nor a range is known: a convention of this
package, not a measurement."""

_TINY = 1e-12
_LEAST = {"slots": 1.0, "chunk_tokens": 1.0, "line_bytes": 1.0, "topk_rows": 1.0}
"""Least values of parameters that something is divided by; of all others ``_TINY``."""
_MOST_S, _MOST = 1e6, 1e18
"""Most of a time (11 days) and of anything else: far beyond any machine, and sums stay finite."""

_MEDIAN_TO_SIGMA = 1.4826
"""Standard deviation over median absolute deviation of a normal distribution."""


class Fitted(BaseModel):
    """Frozen and strict about fields, without the checks of what people write: profiles hold thousands."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class FitError(Fitted):
    """Relative errors of a fitted term on ``n`` rows, |predicted / measured - 1|."""

    n: int = Field(gt=0)
    median_abs_rel: float = Field(ge=0)
    p90_abs_rel: float = Field(ge=0)
    max_abs_rel: float = Field(ge=0)


class Term(Fitted):
    """One coefficient set.

    ``domain`` bounds the variables of the fit; ``residual`` is the error on the rows fitted,
    ``holdout`` on rows left out (folds, or each row in turn where rows are few), ``kept_out`` on rows
    that no fit of this project ever sees. ``plausible``: low and high of a constant, or of a wave.
    """

    id: str = Field(min_length=1)
    form: str
    unit: Literal["s", "B/s", "1"]
    params: dict[str, float | tuple[float, ...]]
    domain: dict[str, tuple[float, float]] = Field(default={})
    residual: FitError | None = None
    holdout: FitError | None = None
    kept_out: FitError | None = None
    plausible: tuple[float, float] | None = None
    source: str
    grade: Grade
    note: str = ""

    @model_validator(mode="after")
    def _whole(self) -> Term:
        form = FORMS.get(self.form)
        if form is None:
            raise ValueError(f"{self.id}: unknown model form {self.form!r} (known: {', '.join(FORMS)})")
        want, got = set(form.parameters), set(self.params)
        axes = {name for name in got if form.axes and name.startswith("at_")}
        if want != got - axes or (form.axes and not axes):
            extra = [*sorted(want), *(["at_<variable> for each axis"] if form.axes else [])]
            raise ValueError(f"{self.id}: form {self.form} takes {extra}, not {sorted(got)}")
        for name in self.params:
            self._parameter(name, several=name in form.series or name in axes, positive=name in form.positive)
        for name in form.monotone:
            if list(self.series(name)) != sorted(self.series(name)):
                raise ValueError(f"{self.id}: {name} falls; more work must not cost less")
        if self.form in ("piecewise_linear", "log_log", "rising_log_log"):
            self._knots("x", "y")
        elif self.form == "decode_module":
            self._knots("rows", "rows_s")
        elif self.form == "prefill_module":
            self._knots("floor_past_tokens", "floor_s", least=1)
            self._prefill_limits()
        elif self.form == "table":
            self._grid(sorted(axes))
        if self.plausible is not None and self.form not in ("constant", "wave"):
            raise ValueError(f"{self.id}: only a constant or a wave has a plausible range")
        for name, (low, high) in self.domain.items():
            if low > high:
                raise ValueError(f"{self.id}: domain.{name} runs from {low:g} down to {high:g}")
        return self

    def _parameter(self, name: str, *, several: bool, positive: bool) -> None:
        value = self.params[name]
        if isinstance(value, tuple):
            if not several:
                raise ValueError(f"{self.id}: {name} is one number, not {len(value)}")
            least, most = min(value, default=-1.0), max(value, default=-1.0)
        else:
            least = most = value
        if least < 0:
            raise ValueError(f"{self.id}: {name} is negative or empty: {value}")
        if positive and least < (bound := _LEAST.get(name, _TINY)):
            raise ValueError(f"{self.id}: {name} is {least:g}, must be at least {bound:g}")
        timed = self.unit == "s" and name in ("value", "values", "y", "tail_slope")
        timed = timed or (name.endswith("_s") and not name.endswith("_per_s"))
        if most > (bound := _MOST_S if timed else _MOST):
            raise ValueError(f"{self.id}: {name} is {most:g}, must be at most {bound:g}")

    def _knots(self, at: str, values: str, least: int = 2) -> None:
        x, y = self.series(at), self.series(values)
        if len(x) != len(y) or len(x) < least or list(x) != sorted(set(x)):
            raise ValueError(
                f"{self.id}: {at} and {values} need equal length of at least {least}, {at} rising"
            )

    def _prefill_limits(self) -> None:
        for name in ("many_keys", "step_keys"):
            if len(self.series(name)) != 2:
                raise ValueError(f"{self.id}: {name} needs two numbers")

    def _grid(self, axes: list[str]) -> None:
        size = 1
        for name in axes:
            axis = self.series(name)
            if list(axis) != sorted(set(axis)) or axis[0] <= 0:
                raise ValueError(f"{self.id}: {name} must rise and be more than 0")
            size *= len(axis)
        values = self.series("values")
        if len(values) != size:
            raise ValueError(f"{self.id}: values must be {size} numbers, one a grid point")
        inner = 1
        for name in reversed(axes):  # the last axis runs fastest
            n = len(self.series(name))
            for i in range(size):
                if (i // inner) % n and values[i] < values[i - inner]:
                    raise ValueError(f"{self.id}: values fall along {name}; more work must not cost less")
            inner *= n

    def value(self, name: str = "value") -> float:
        """A scalar parameter."""
        try:
            return scalar(self.params, name)
        except TypeError as error:
            raise TypeError(f"{self.id}.{error}") from None

    def series(self, name: str) -> tuple[float, ...]:
        """A parameter that is a series."""
        return series(self.params, name)

    def covers(self, **values: float) -> bool:
        """Whether the given variables lie inside the fitted domain."""
        return all(low <= values[name] <= high for name, (low, high) in self.domain.items() if name in values)

    def evaluate(self, variables: Variables) -> npt.NDArray[np.float64]:
        """The term at arrays of its form's variables; seconds, or its unit."""
        return FORMS[self.form].evaluate(self.params, variables)

    @property
    def uncertainty(self) -> float:
        """Relative standard deviation of what the term predicts inside its domain.

        From rows left out of the fit where there are any (1.48 x the median error), else from what is
        plausible, else by grade.
        """
        error = self.kept_out or self.holdout or self.residual
        if error is not None:
            return _MEDIAN_TO_SIGMA * error.median_abs_rel
        middle = self.value("wave_s" if self.form == "wave" else "value") if self.plausible else 0.0
        if self.plausible is not None and middle > 0:
            return max(self.plausible[1] - middle, middle - self.plausible[0]) / middle
        return GRADE_UNCERTAINTY[self.grade]
