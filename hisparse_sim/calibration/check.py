"""How far a profile is from timed rows: published tables and our own samples, table by table.

Targets are for rows that no fit has seen; which rows are scored is the caller's choice. All-reduce
tables are too small to keep rows out, so those that decode uses are scored with each left out in turn:
the term's own form and knots, fitted to the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hisparse_sim.calibration.plan import sample_groups
from hisparse_sim.calibration.rows import Group, groups, seconds_of
from hisparse_sim.calibration.samples import SCHEMA as SAMPLES_SCHEMA
from hisparse_sim.calibration.samples import Samples, read_samples
from hisparse_sim.calibration.tables import Table, read_rows, recognised, table_name
from hisparse_sim.cost.hardware import same_gpu
from hisparse_sim.cost.profile import Profile
from hisparse_sim.cost.term import Term
from hisparse_sim.errors import InputError
from hisparse_sim.scenario.yaml_file import check_regular

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

    Array = npt.NDArray[np.float64]
    Mask = npt.NDArray[np.bool_]

MEDIAN, P90 = 0.03, 0.10
"""The targets: relative errors of rows that were not fitted."""
SPLIT_TOKENS = 1024
"""Prefill rows up to so many new tokens, all sequences together, are bound by launches."""
_LEFT_OUT = "allreduce_custom_vllm"
"""The table whose rows of decode are scored with each left out in turn."""
Which = Literal["all", "kept-out", "fitted"]


@dataclass(frozen=True, slots=True)
class Score:
    """One stratum of one table. Errors are |predicted / measured - 1|; null when ``n`` is 0.

    ``target``: whether the stratum has one (median 3 %, 90th percentile 10 %). ``out_of_domain`` rows
    are scored, too; ``unmodelled`` and ``zero_latency`` ones are not. ``neighbour_*``: the error of
    predicting a row from those next to it along one axis, which is the noise of the data itself.
    ``method``: ``profile``, ``leave-one-out``, or ``fitted`` where that would need scipy, or more rows.
    """

    name: str
    stratum: str
    n: int
    median_abs_rel: float | None
    p90_abs_rel: float | None
    max_abs_rel: float | None
    target: bool
    out_of_domain: int
    unmodelled: int
    zero_latency: int
    method: str = "profile"
    neighbour_n: int = 0
    neighbour_median_abs_rel: float | None = None
    neighbour_p90_abs_rel: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the target is met; none without one, without rows, and for rows that the fit has seen."""
        if not self.target or self.median_abs_rel is None or self.p90_abs_rel is None:
            return None
        if self.method == "fitted":
            return None
        return self.median_abs_rel <= MEDIAN and self.p90_abs_rel <= P90


@dataclass(frozen=True, slots=True)
class Checked:
    """All scores, and what a person should know about them."""

    scores: tuple[Score, ...]
    warnings: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """``{"tables": [...]}``, errors rounded to six digits."""
        return {"tables": [{k: _short(v) for k, v in asdict(score).items()} for score in self.scores]}


def check(profile: Profile, path: Path, *, which: Which = "all") -> Checked:
    """Score the tables and samples in ``path``, a folder or one file.

    Raises ``InputError`` for a path that holds neither, and for files that cannot be used.
    """
    tables, samples = _found(path)
    scores: list[Score] = []
    warnings: list[str] = []
    for file, table in tables:
        rows = read_rows(file, table)
        if which != "all":
            rows = rows[rows["kept_out"] == (which == "kept-out")].reset_index(drop=True)
        name = table_name(file, table)
        warnings += _other_gpu(profile, name, set(map(str, rows.get("device", ()))))
        found = list(_table_scores(profile, name, table, rows))
        if any(s.method == "fitted" for s in found) and find_spec("scipy") is None:
            warnings.append(
                f"{name}: scored as fitted, since leaving each row out needs scipy (pip install "
                "'hisparse-sim[fit]'); no target is judged by that"
            )
        scores += found
    for file in samples:
        read = read_samples(file)
        warnings += _other_gpu(profile, file.name, {read.hardware.gpu})
        scores += _sample_scores(profile, file.stem, read)
    return Checked(tuple(scores), tuple(dict.fromkeys(warnings)))


def _found(path: Path) -> tuple[list[tuple[Path, Table]], list[Path]]:
    if path.is_dir():
        tables = list(recognised(path))
        samples = [p for p in sorted(path.glob("*.json")) if _holds_samples(p)]
    else:
        check_regular(path)
        if not path.exists():
            raise InputError("no such file or folder", where=str(path))
        tables = [(p, t) for p, t in recognised(path.parent) if p == path]
        samples = [path] if path.suffix == ".json" else []
    if not tables and not samples:
        raise InputError("holds no samples file and no table that is known here", where=str(path))
    return tables, samples


def _holds_samples(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as file:
            return SAMPLES_SCHEMA.split("/")[1] in file.read(200)
    except (OSError, ValueError):
        return False


def _other_gpu(profile: Profile, name: str, gpus: set[str]) -> list[str]:
    return [
        f"{name} was measured on {gpu}, profile {profile.id} on {profile.hardware.gpu}"
        for gpu in sorted(gpus)
        if not same_gpu(gpu, profile.hardware.gpu)
    ]


def strata(table: Table, rows: pd.DataFrame) -> Iterator[tuple[str, Mask, bool]]:
    """Name, rows, and whether there is a target, of each stratum of a table."""
    import numpy as np

    everything = np.ones(len(rows), dtype=bool)
    if table.stem.startswith("dsa_prefill"):
        many = (rows["isl"] * rows["batch_size"] > SPLIT_TOKENS).to_numpy(dtype=bool)
        skip = rows["op_name"].str.contains("skip", na=False).to_numpy(dtype=bool)
        for words, which in (("with indexer", ~skip), ("without indexer", skip)):
            yield f"{words}, above 1,024 new tokens", which & many, words == "with indexer"
            yield f"{words}, to 1,024 new tokens", which & ~many, False
    elif table.stem == "allreduce_custom_vllm":
        for backend, which in _each(rows["backend"], ("vllm_graph", "vllm_eager")):
            yield backend, which, backend == "vllm_graph"
    elif table.stem == "nccl":
        for op, which in _each(rows["op_name"], ("all_gather", "all_reduce", "alltoall", "reduce_scatter")):
            yield op, which, False
    else:
        yield "all", everything, table.stem.startswith(("dsa_decode", "moe_"))


def _each(column: pd.Series, known: tuple[str, ...]) -> Iterator[tuple[str, Mask]]:
    """The rows of each value: the known ones, whether there are any or not, then all others."""
    texts = column.astype(object).map(str)
    for value in (*known, *sorted(set(texts) - set(known))):
        yield value, (texts == value).to_numpy(dtype=bool)


def _table_scores(profile: Profile, name: str, table: Table, rows: pd.DataFrame) -> Iterator[Score]:
    import numpy as np

    seconds = seconds_of(table.stem, rows)
    usable = np.isfinite(seconds) & (seconds > 0)
    errors = np.full(len(rows), np.nan)
    beyond = np.zeros(len(rows), dtype=bool)
    nearby = np.full(len(rows), np.nan)
    left_out, seen = np.zeros(len(rows), dtype=bool), np.zeros(len(rows), dtype=bool)
    for group in groups(table.stem, rows):
        inside = usable[group.rows] & group.whole
        index = group.rows[inside]
        variables = {k: v[inside] for k, v in group.variables.items()}
        nearby[index] = neighbour_errors(variables, seconds[index])
        term = profile.find(group.term)
        if term is None:
            continue
        refit = _refit(table, group, term, variables, seconds[index])
        left_out[index] = refit is not None
        seen[index] = refit is None and _leaves_out(table, group.term)
        errors[index] = _errors(term, variables, seconds[index]) if refit is None else refit
        beyond[index] = outside(term, variables)
    for stratum, which, target in strata(table, rows):
        scored = which & ~np.isnan(errors)
        noise = np.abs(nearby[which & ~np.isnan(nearby)])
        yield Score(
            name,
            stratum,
            int(scored.sum()),
            *_figures(np.abs(errors[scored])),
            target,
            int((beyond & scored).sum()),
            int((which & usable & np.isnan(errors)).sum()),
            int((which & ~usable).sum()),
            "leave-one-out" if left_out[scored].any() else "profile" if not seen[scored].any() else "fitted",
            len(noise),
            *_figures(noise)[:2],
        )


def _errors(term: Term, variables: Mapping[str, Array], seconds: Array) -> Array:
    """Predicted over measured, less 1; not a number where the term gives no time (a call of no tokens)."""
    import numpy as np

    with np.errstate(all="ignore"):
        predicted = term.evaluate(variables)
        found = predicted / seconds - 1.0
    return np.where(np.isfinite(found) & (predicted > 0), found, np.nan)


def _refit(
    table: Table, group: Group, term: Term, variables: Mapping[str, Array], seconds: Array
) -> Array | None:
    """Errors with each row left out in turn, where that is how a table is scored and can be done."""
    if not _leaves_out(table, group.term) or find_spec("scipy") is None:
        return None
    if len(seconds) <= len(term.series("x")) + 1:
        return None
    from hisparse_sim.calibration.fitting import FITTERS, left_out_errors

    knots = term.series("x")
    return left_out_errors(
        lambda some, times: FITTERS["piecewise_linear"](some, times, knots=knots),
        term.form,
        variables,
        seconds,
        each=True,
    )


def _leaves_out(table: Table, term_id: str) -> bool:
    return table.stem == _LEFT_OUT and term_id.startswith("allreduce.")


def outside(term: Term, variables: Mapping[str, Array]) -> Mask:
    """Which rows lie outside the term's domain."""
    import numpy as np

    found = np.zeros(len(next(iter(variables.values()))), dtype=bool)
    known = dict(variables)
    if {"batch", "context_tokens"} <= set(known):
        known["batch_x_context"] = known["batch"] * known["context_tokens"]
    if {"sequences", "past_tokens"} <= set(known):
        known["keys"] = known["sequences"] * (known["past_tokens"] + known["new_tokens"])
    for name, (low, high) in term.domain.items():
        if name in known:
            found |= (known[name] < low) | (known[name] > high)
    return found


def neighbour_errors(variables: Mapping[str, Array], seconds: Array) -> Array:
    """The error of predicting each row from the two next to it along the last variable.

    All other variables equal, straight lines on logarithmic axes; not a number where a row has no
    neighbour on either side.
    """
    import numpy as np

    *others, last = variables.values()
    order = np.lexsort((last, *others))
    errors = np.full(len(seconds), np.nan)
    if len(order) < 3:
        return errors
    before, here, after = order[:-2], order[1:-1], order[2:]
    same = np.ones(len(here), dtype=bool)
    for values in others:
        same &= (values[before] == values[here]) & (values[here] == values[after])
    x, y = np.log(np.maximum(last, 1e-12)), np.log(seconds)
    wide = x[after] - x[before]
    same &= (wide > 0) & (x[here] > x[before]) & (x[here] < x[after])
    b, h, a = before[same], here[same], after[same]
    share = (x[h] - x[b]) / (x[a] - x[b])
    errors[h] = np.exp(y[b] + share * (y[a] - y[b]) - y[h]) - 1.0
    return errors


def _sample_scores(profile: Profile, name: str, samples: Samples) -> Iterator[Score]:
    import numpy as np

    found = list(sample_groups(samples))
    formed = {group.sample for group in found}
    for group in found:
        term = profile.find(group.term)
        if term is None:
            yield Score(name, group.term, 0, None, None, None, False, 0, len(group.seconds), 0)
            continue
        errors = np.abs(_errors(term, group.variables, group.seconds))
        priced = ~np.isnan(errors)
        beyond = int((outside(term, group.variables) & priced).sum())
        lacking = int((~priced).sum())
        yield Score(
            name, group.term, len(errors) - lacking, *_figures(errors[priced]), False, beyond, lacking, 0
        )
    others = [s for s in samples.measured if s.name not in formed]
    if others:
        yield Score(name, "without a form", 0, None, None, None, False, 0, len(others), 0)


def _figures(errors: Array) -> tuple[float | None, float | None, float | None]:
    import numpy as np

    if not len(errors):
        return None, None, None
    return float(np.median(errors)), float(np.quantile(errors, 0.9)), float(errors.max())


def _short(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value
