"""From a samples file to terms: which form each benchmark takes, and which points it is fitted to.

A benchmark with a plan becomes the terms that the cost model asks for; any other becomes a term of its
own name if a form is given for it. Parameters that are text (a kernel, a locality) split a benchmark
into one term each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hisparse_sim.calibration.samples import Sample, Samples
from hisparse_sim.cost.forms import FORMS
from hisparse_sim.errors import InputError
from hisparse_sim.scenario.validate import nearest

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Plan:
    """``variables``: each of the form's, and the sample's parameter it comes from (times ``factor``).

    ``where``: only points with these parameters. ``nearest``: of a further parameter, the value next to
    the given one that has points enough. ``per``: the parameter that a point's seconds are divided by.
    """

    term: str
    sample: str
    form: str
    variables: Mapping[str, str]
    where: Mapping[str, str | float] = field(default_factory=dict)
    nearest: tuple[str, float] | None = None
    factor: float = 1.0
    per: str | None = None


PLANS: tuple[Plan, ...] = (
    Plan("link.h2d", "copy_h2d", "alpha_beta", {"bytes": "bytes"}),
    Plan("link.d2h", "copy_d2h", "alpha_beta", {"bytes": "bytes"}),
    # Each way so many bytes; the rate is of both.
    Plan("link.both_ways", "copy_both", "alpha_beta", {"bytes": "bytes"}, factor=2.0),
    Plan(
        "link.copy_issue",
        "copy_issue",
        "constant",
        {"bytes": "bytes"},
        where={"kernel": "single"},
    ),
    Plan(
        "hisparse.kernel",
        "launch",
        "constant",
        {"launches": "launches"},
        where={"kernel": "graph", "launches": 256},
        per="launches",
    ),
    Plan(
        "hisparse.gather",
        "gather",
        "inflight_saturation",
        {"rows": "rows", "row_bytes": "row_bytes", "blocks": "ctas"},
        where={"kernel": "sm", "locality": "random"},
    ),
    # Misses as the published rate of a buffer of twice the top-k has them: 13.4 % of 2,048.
    Plan(
        "hisparse.resolve",
        "resolve",
        "wave",
        {"batch": "batch"},
        where={"kernel": "split", "hot_rows": 4096, "resident": 0.0},
        nearest=("misses", 274.0),
    ),
    Plan("hbm.read", "hbm", "alpha_beta", {"bytes": "bytes"}, where={"kernel": "read"}),
    Plan("hbm.write", "hbm", "alpha_beta", {"bytes": "bytes"}, where={"kernel": "write"}),
    *(
        Plan(
            f"kernel.indexer.h{heads}",
            "indexer",
            "module_law",
            {"batch": "batch", "context_tokens": "context"},
            where={"heads": heads},
        )
        for heads in (32, 64)
    ),
)
"""Benchmarks that price parts of a step (``link``, ``hisparse``), and some that stand beside published
figures. What the cost model has no use for has no plan; ``--model`` gives it a form."""


@dataclass(frozen=True, slots=True)
class SampleGroup:
    """The points of one term: variables of its form, and seconds."""

    term: str
    sample: str
    form: str
    variables: dict[str, Array]
    seconds: Array
    spread: Array
    """(p90 - p10) / median of each point."""


def sample_groups(samples: Samples, forms: Mapping[str, str] | None = None) -> Iterator[SampleGroup]:
    """The groups of a file: those with a plan, and those that ``forms`` gives one (name -> form).

    A form given for a planned benchmark replaces the plan's. Raises ``InputError`` for a name that the
    file lacks and a form that is unknown or needs variables which the points lack.
    """
    forms = dict(forms or {})
    measured = samples.measured
    names = {s.name for s in measured}
    for name, form in forms.items():
        if name not in names:
            raise InputError(
                f"no measured sample is named {name!r}{nearest(name, names) or _known(names)}",
                where="--model",
            )
        if form not in FORMS:
            raise InputError(
                f"unknown form {form!r}{nearest(form, FORMS)}; known are {', '.join(FORMS)}", where="--model"
            )
    for plan in PLANS:
        if plan.sample in forms:
            continue
        points = _chosen([s for s in measured if s.name == plan.sample], plan)
        if points:
            yield _group(plan.term, points, plan.form, plan.variables, factor=plan.factor, per=plan.per)
    for name, form in forms.items():
        yield from _own(name, form, [s for s in measured if s.name == name])


def _known(names: set[str]) -> str:
    return f"; measured are {', '.join(sorted(names))}" if names else "; none was measured"


def _chosen(points: Sequence[Sample], plan: Plan) -> list[Sample]:
    chosen = [
        s
        for s in points
        if all(s.parameters.get(name, value) == value for name, value in plan.where.items())
        and not any(isinstance(s.parameters.get(name, ""), str) for name in plan.variables.values())
    ]
    if plan.nearest is None:
        return chosen
    name, wanted = plan.nearest
    by_value: dict[float, list[Sample]] = {}
    for s in chosen:
        value = s.parameters.get(name)
        by_value.setdefault(wanted if value is None or isinstance(value, str) else float(value), []).append(s)
    enough = {v: found for v, found in by_value.items() if len(found) >= least_points(plan.form)}
    best = min(enough or by_value, key=lambda v: abs(v - wanted), default=wanted)
    return by_value.get(best, [])


def least_points(form: str) -> int:
    """Fewest points that a form is fitted to."""
    return {"constant": 1, "wave": 4, "inflight_saturation": 6, "decode_module": 12}.get(form, 3)


def _own(name: str, form: str, points: Sequence[Sample]) -> Iterator[SampleGroup]:
    """Terms named after the benchmark: one for each combination of its parameters that are text."""
    texts: dict[tuple[str, ...], list[Sample]] = {}
    for sample in points:
        key = tuple(str(v) for v in sample.parameters.values() if isinstance(v, str))
        texts.setdefault(key, []).append(sample)
    wanted = FORMS[form].variables
    for key, group in sorted(texts.items()):
        numbers = {
            k: {s.parameters.get(k) for s in group}
            for k, v in group[0].parameters.items()
            if not isinstance(v, str)
        }
        varied = [k for k, values in numbers.items() if len(values) > 1]
        if wanted:
            lacking = [v for v in wanted if v not in numbers]
            if lacking:
                raise InputError(
                    f"form {form} needs the parameters {', '.join(wanted)}, {name} has "
                    f"{', '.join(numbers) or 'none'}",
                    where="--model",
                )
            used: Sequence[str] = wanted
        elif FORMS[form].axes or len(varied) == 1:
            used = varied
        elif form == "constant":
            used = list(numbers)[:1]
        else:
            raise InputError(
                f"form {form} has one variable, but {', '.join(varied) or 'nothing'} varies in {name}",
                where="--model",
            )
        yield _group(".".join((name, *key)), group, form, {v: v for v in used})


def _group(
    term: str,
    points: Sequence[Sample],
    form: str,
    variables: Mapping[str, str],
    *,
    factor: float = 1.0,
    per: str | None = None,
) -> SampleGroup:
    import numpy as np

    columns: dict[str, Array] = {}
    for variable, parameter in variables.items():
        values = [s.parameters.get(parameter) for s in points]
        if any(isinstance(v, str) or v is None for v in values):
            raise InputError(f"{points[0].name} has points without a number for {parameter!r}", where=term)
        columns[variable] = factor * np.array(values, dtype=float)
    seconds = np.array([s.median_s for s in points], dtype=float)
    low, high = (np.array([getattr(s, n) for s in points], dtype=float) for n in ("p10_s", "p90_s"))
    spread = (high - low) / seconds
    if per is not None:
        seconds = seconds / np.array([float(s.parameters[per]) for s in points])
    return SampleGroup(term, points[0].name, form, columns, seconds, spread)
