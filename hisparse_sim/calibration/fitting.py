"""Coefficients of a named form from timed points, by relative error, with the error on points left out.

Small errors count in proportion, few large ones are forgiven (weights fall with the error of the last
round), because timings have a slow tail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

from hisparse_sim.cost.decode_form import DECODE_WORK, batch_features, decode_features
from hisparse_sim.cost.forms import FORMS, Params, Variables
from hisparse_sim.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

Fitter = Callable[..., Params]

FOLDS = 5
FEW_ROWS = 40
"""Below so many rows each is left out in turn."""
_ROUNDS = 20
_FORGIVEN = 0.02
_MOST_SLOTS = 4096
_CHOSEN = frozenset(
    ("x", "rows", "slots", "line_bytes", "topk_rows", "chunk_tokens", "far_tokens", "many_keys", "step_keys")
)
"""Parameters that are not fitted: knots and thresholds."""


def solve(features: Array, seconds: Array) -> Array:
    """Non-negative coefficients of the features (n, k), small in relative error."""
    import numpy as np
    from scipy.optimize import nnls

    # Columns of one size: the solver's idea of zero is absolute.
    scale = np.maximum(np.abs(features).max(axis=0), 1e-300)
    x = features / scale
    weight = 1.0 / seconds
    found = np.zeros(x.shape[1])
    for _ in range(_ROUNDS):
        found, _ = nnls(x * weight[:, None], seconds * weight, maxiter=50 * x.shape[1])
        error = np.abs(x @ found / seconds - 1.0)
        weight = 1.0 / seconds / np.sqrt(np.maximum(error, _FORGIVEN))
    return np.asarray(found / scale)


def describe(relative: Array) -> dict[str, Any]:
    """Relative errors as a profile states them (``FitError``)."""
    import numpy as np

    size = np.abs(relative)
    return {
        "n": len(size),
        "median_abs_rel": round(float(np.median(size)), 4),
        "p90_abs_rel": round(float(np.quantile(size, 0.9)), 4),
        "max_abs_rel": round(float(size.max()), 4),
    }


def relative_errors(form: str, params: Params, variables: Variables, seconds: Array) -> Array:
    """Predicted over measured, less 1."""
    return FORMS[form].evaluate(params, variables) / seconds - 1.0


def left_out_errors(
    fitter: Callable[[Variables, Array], Params],
    form: str,
    variables: Variables,
    seconds: Array,
    *,
    each: bool = False,
) -> Array:
    """The error on each row when it was not fitted: five folds, or each row in turn where few."""
    import numpy as np

    n = len(seconds)
    folds = n if each or n < FEW_ROWS else FOLDS
    fold = np.random.default_rng(0).permutation(n) % folds
    errors = np.empty(n)
    for i in range(folds):
        out = fold == i
        params = fitter(_rows(variables, ~out), seconds[~out])
        errors[out] = relative_errors(form, params, _rows(variables, out), seconds[out])
    return errors


def fit(
    form: str, variables: Variables, seconds: Array, *, holdout: bool = True, **options: Any
) -> tuple[Params, dict[str, Any]]:
    """Parameters of ``form`` and its errors (``residual``, ``holdout``) on all rows.

    ``options`` go to the form's fitter (knots, thresholds). Raises ``InputError`` for too few rows.
    """
    fitter = FITTERS.get(form)
    if fitter is None:
        raise InputError(f"form {form!r} has no fit of its own; known are {', '.join(FITTERS)}")

    def fitted(some: Variables, times: Array) -> Params:
        return fitter(some, times, **options)

    params = rounded(fitted(variables, seconds))
    errors = {"residual": describe(relative_errors(form, params, variables, seconds))}
    if holdout and len(seconds) > 2:
        errors["holdout"] = describe(left_out_errors(fitted, form, variables, seconds))
    return params, errors


def rounded(params: Params) -> Params:
    """Five significant digits for what was fitted: no timing is better. What was chosen stays as it is."""

    def short(value: float) -> float:
        return float(f"{value:.5g}")

    return {
        name: value
        if name in _CHOSEN or name.startswith("at_")
        else tuple(short(v) for v in value)
        if isinstance(value, tuple)
        else short(value)
        for name, value in params.items()
    }


def span(values: Array) -> tuple[float, float]:
    """Smallest and largest."""
    return float(values.min()), float(values.max())


def _rows(variables: Variables, which: npt.NDArray[np.bool_]) -> dict[str, Array]:
    return {name: values[which] for name, values in variables.items()}


def _only(variables: Variables) -> Array:
    return next(iter(variables.values()))


def _constant(variables: Variables, seconds: Array) -> Params:
    import numpy as np

    return {"value": float(np.median(seconds))}


def _alpha_beta(variables: Variables, seconds: Array) -> Params:
    import numpy as np

    x = _only(variables)
    base, slope = solve(np.stack([np.ones_like(x), x], axis=1), seconds)
    return {"base_s": float(base), "per_unit_s": float(slope)}


def _piecewise(variables: Variables, seconds: Array, knots: tuple[float, ...] | None = None) -> Params:
    """A rising broken line; without ``knots`` at most three segments, where they serve best."""
    import numpy as np

    x = _only(variables)
    if knots is None:
        knots = _best_knots(x, seconds)
    tops = (*knots[1:], np.inf)
    parts = [np.clip(x, low, high) - low for low, high in zip(knots, tops, strict=True)]
    found = solve(np.stack([np.ones_like(x), *parts], axis=1), seconds)
    y = [float(found[0])]
    for i in range(len(knots) - 1):
        y.append(y[-1] + float(found[i + 1]) * (knots[i + 1] - knots[i]))
    return {"x": tuple(map(float, knots)), "y": tuple(y), "tail_slope": float(found[-1])}


def _best_knots(x: Array, seconds: Array) -> tuple[float, ...]:
    import numpy as np

    inner = np.unique(x)[1:-1]
    candidates = inner[:: max(1, len(inner) // 12)]
    best, least = (0.0, float(x.max())), np.inf
    for count in (1, 2):
        for chosen in combinations(candidates.tolist(), count):
            knots = (0.0, *chosen)
            params = _piecewise({"x": x}, seconds, knots)
            loss = float(np.abs(relative_errors("piecewise_linear", params, {"x": x}, seconds)).mean())
            if loss < least * (0.95 if count > len(best) - 1 else 1.0):
                best, least = knots, loss
    return best


def _rising_log_log(variables: Variables, seconds: Array, knots: tuple[float, ...] | None = None) -> Params:
    """Straight lines between ``knots`` on logarithmic axes, none of which falls."""
    import numpy as np

    x = _only(variables)
    at = np.log(np.array(knots if knots is not None else np.unique(x)))
    low = np.log(seconds).min() - 1.0  # so that all coefficients are positive
    parts = [np.clip(np.log(x), a, b) - a for a, b in pairwise(at)]
    found = solve(np.stack([np.ones_like(x), *parts], axis=1), np.log(seconds) - low)
    y = found[0] + np.concatenate([[0.0], np.cumsum(found[1:] * np.diff(at))])
    return {"x": tuple(np.exp(at).tolist()), "y": tuple(np.exp(y + low).tolist())}


def _table(variables: Variables, seconds: Array) -> Params:
    """Medians at the points of a full grid, made to rise along each axis."""
    import numpy as np

    names = sorted(variables)
    axes = [np.unique(variables[name]) for name in names]
    index = tuple(np.searchsorted(axis, variables[name]) for name, axis in zip(names, axes, strict=True))
    grid = np.full([len(axis) for axis in axes], np.nan)
    for point in set(zip(*(i.tolist() for i in index), strict=True)):
        here = np.all([i == p for i, p in zip(index, point, strict=True)], axis=0)
        grid[point] = np.median(seconds[here])
    for axis in range(grid.ndim):
        grid = np.fmax.accumulate(grid, axis=axis)
    for axis in range(grid.ndim):  # a point that nobody timed costs what the next larger one does
        grid = np.flip(np.fmin.accumulate(np.flip(np.where(np.isnan(grid), np.inf, grid), axis), axis), axis)
        grid = np.where(np.isinf(grid), np.nan, grid)
    if np.isnan(grid).any():
        grid = np.where(np.isnan(grid), np.nanmax(grid), grid)
    axis_params = {f"at_{name}": tuple(axis.tolist()) for name, axis in zip(names, axes, strict=True)}
    return {**axis_params, "values": tuple(grid.ravel().tolist())}


def _inflight(variables: Variables, seconds: Array, line_bytes: float = 128.0) -> Params:
    """Base, saturated rate and rate of one block, by nonlinear least squares on logarithms."""
    import numpy as np
    from scipy.optimize import least_squares

    moved = variables["rows"] * np.ceil(variables["row_bytes"] / line_bytes) * line_bytes
    blocks = variables["blocks"]

    def predicted(logs: Array) -> Array:
        base, saturated, block = np.exp(logs)
        return np.asarray(base + moved / np.minimum(saturated, blocks * block))

    fast = float((moved / seconds).max())
    slow = float((moved / seconds / blocks).max())
    start = np.log([float(seconds.min()) / 2, fast, min(slow, fast)])
    found = least_squares(
        lambda logs: np.log(predicted(logs) / seconds), start, loss="soft_l1", f_scale=_FORGIVEN
    )
    base, saturated, block = np.exp(found.x)
    return {
        "base_s": float(base),
        "saturated_bytes_per_s": float(saturated),
        "block_bytes_per_s": float(block),
        "line_bytes": line_bytes,
    }


def _wave(variables: Variables, seconds: Array, slots: float | None = None) -> Params:
    """Base and wave, for the given ``slots`` or those that serve best: the most of equally good ones."""
    import numpy as np

    x = _only(variables)

    def at(slots: float) -> tuple[float, Params]:
        features = np.stack([np.ones_like(x), np.ceil(x / slots)], axis=1)
        base, wave = solve(features, seconds)
        loss = float(np.abs(features @ [base, wave] / seconds - 1.0).mean())
        return loss, {"base_s": float(base), "wave_s": float(wave), "slots": float(slots)}

    most = int(x.max())
    every = np.arange(1, most + 1) if most <= _MOST_SLOTS else np.unique(x)
    # Only what sorts the points into waves differently is worth a fit.
    ways = {tuple(np.ceil(x / s).tolist()): float(s) for s in every.tolist()}
    tried = [slots] if slots is not None else list(ways.values())
    return min((at(s) for s in tried), key=lambda found: found[0])[1]


def _module_law(variables: Variables, seconds: Array) -> Params:
    import numpy as np

    batch = variables["batch"]
    features = np.stack(
        [
            np.ones_like(batch),
            np.minimum(batch, 64.0),
            np.maximum(0.0, batch - 64.0),
            batch * variables["context_tokens"],
        ],
        axis=1,
    )
    return dict(zip(FORMS["module_law"].parameters, solve(features, seconds).tolist(), strict=True))


def _decode_module(variables: Variables, seconds: Array, topk_rows: float = 2048.0) -> Params:
    """The batch's line has a knot at each batch size that was timed."""
    import numpy as np

    batch = variables["batch"]
    rows = tuple(np.unique(batch).tolist())
    if len(rows) < 2:
        raise InputError("decode_module needs points at two batch sizes at least")
    work = decode_features(batch, variables["context_tokens"], topk_rows=topk_rows)
    found = solve(np.concatenate([batch_features(batch, rows), work], axis=1), seconds)
    rows_s = found[0] + np.concatenate([[0.0], np.cumsum(found[1 : len(rows)] * np.diff(rows))])
    coefficients = dict(zip(DECODE_WORK, found[len(rows) :].tolist(), strict=True))
    return {"rows": rows, "rows_s": tuple(rows_s.tolist()), **coefficients, "topk_rows": topk_rows}


def _rates(variables: Variables, seconds: Array) -> Params:
    import numpy as np

    read, work = variables["read_bytes"], variables["flops"]
    found = solve(np.stack([np.ones_like(read), read, work], axis=1), seconds)
    return dict(zip(FORMS["rates"].parameters, found.tolist(), strict=True))


def _gqa_decode(variables: Variables, seconds: Array) -> Params:
    import numpy as np

    doublings = np.log2(np.maximum(variables["total_tokens"], 64.0) / 64.0)
    work = (variables[name] for name in ("read_bytes", "flops", "row_heads"))
    found = solve(np.stack([np.ones_like(seconds), *work, doublings], axis=1), seconds)
    return dict(zip(FORMS["gqa_decode"].parameters, found.tolist(), strict=True))


def _shares(variables: Variables, seconds: Array) -> Params:
    import numpy as np

    read, work = variables["read_s"], variables["work_s"]
    base, of_read, of_work = solve(np.stack([np.ones_like(read), read, work], axis=1), seconds)
    if not of_read or not of_work:
        raise InputError("these points do not tell the shares of reading and of work apart")
    return {"base_s": float(base), "hbm_share": 1.0 / of_read, "flops_share": 1.0 / of_work}


FITTERS: Mapping[str, Fitter] = {
    "constant": _constant,
    "alpha_beta": _alpha_beta,
    "piecewise_linear": _piecewise,
    "rising_log_log": _rising_log_log,
    "table": _table,
    "inflight_saturation": _inflight,
    "wave": _wave,
    "module_law": _module_law,
    "decode_module": _decode_module,
    "rates": _rates,
    "gqa_decode": _gqa_decode,
    "shares": _shares,
}
"""Forms that a fit can be asked for. Prefill modules have theirs in ``prefill_fit``."""
