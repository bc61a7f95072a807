"""The named shapes that a profile's terms may have, and how to evaluate them.

A form names its parameters, the variables it is evaluated at, and a function from both to seconds (or
to another quantity). Times never fall when work grows: coefficients are non-negative and features
rise, tables and lines rise. ``evaluate`` works on arrays, for fits and checks; the step model unrolls
the same sums into scalar code.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from math import exp, log
from typing import TYPE_CHECKING

from msgspec import Struct

from hisparse_sim.cost.decode_form import DECODE_PARAMETERS, decode_s
from hisparse_sim.cost.prefill_form import PREFILL_PARAMETERS, prefill_s

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

Params = Mapping[str, float | tuple[float, ...]]
Variables = Mapping[str, "Array"]


class Form(Struct, frozen=True):
    """``variables`` empty: one variable of any name. ``axes``: parameters ``at_*`` name the variables.

    ``series``: parameters that are several numbers, all others are one. ``monotone``: series that must
    not fall. ``positive``: parameters that something is divided by, or whose logarithm is taken.
    """

    parameters: tuple[str, ...]
    variables: tuple[str, ...]
    evaluate: Callable[[Params, Variables], Array]
    monotone: tuple[str, ...] = ()
    series: tuple[str, ...] = ()
    positive: tuple[str, ...] = ()
    axes: bool = False
    about: str = ""


def scalar(params: Params, name: str) -> float:
    """A parameter that is one number."""
    value = params[name]
    if isinstance(value, tuple):
        raise TypeError(f"{name} is a series")
    return value


def series(params: Params, name: str) -> tuple[float, ...]:
    """A parameter that is a series."""
    value = params[name]
    return value if isinstance(value, tuple) else (value,)


def _only(variables: Variables) -> Array:
    return next(iter(variables.values()))


def _constant(params: Params, variables: Variables) -> Array:
    return 0.0 * _only(variables) + scalar(params, "value")


def _alpha_beta(params: Params, variables: Variables) -> Array:
    return scalar(params, "base_s") + scalar(params, "per_unit_s") * _only(variables)


def _piecewise(params: Params, variables: Variables) -> Array:
    import numpy as np

    x, y = np.array(series(params, "x")), np.array(series(params, "y"))
    at = _only(variables)
    inside = np.interp(at, x, y) + np.maximum(0.0, at - x[-1]) * scalar(params, "tail_slope")
    return np.asarray(inside - np.maximum(0.0, x[0] - at) * (y[1] - y[0]) / (x[1] - x[0]))


def _log_log(params: Params, variables: Variables) -> Array:
    import numpy as np

    x, y = np.log(np.array(series(params, "x"))), np.log(np.array(series(params, "y")))
    at = np.log(_only(variables))
    first, last = (y[1] - y[0]) / (x[1] - x[0]), (y[-1] - y[-2]) / (x[-1] - x[-2])
    beyond = np.maximum(0.0, at - x[-1]) * last - np.maximum(0.0, x[0] - at) * first
    return np.asarray(np.exp(np.interp(at, x, y) + beyond))


def _table(params: Params, variables: Variables) -> Array:
    """Multilinear in logarithms of axes and values; clamped to the outermost points."""
    import numpy as np

    names = sorted(name[3:] for name in params if name.startswith("at_"))
    axes = [np.log(np.array(series(params, f"at_{name}"))) for name in names]
    grid = np.log(np.array(series(params, "values"))).reshape([len(a) for a in axes])
    total = np.zeros_like(variables[names[0]], dtype=float)
    low, share = [], []
    for name, axis in zip(names, axes, strict=True):
        at = np.clip(np.log(variables[name]), axis[0], axis[-1])
        i = np.clip(np.searchsorted(axis, at, side="right") - 1, 0, max(0, len(axis) - 2))
        wide = axis[np.minimum(i + 1, len(axis) - 1)] - axis[i]
        low.append(i)
        share.append(np.divide(at - axis[i], wide, out=np.zeros_like(at), where=wide > 0))
    for corner in np.ndindex(*([2] * len(axes))):
        weight = np.ones_like(total)
        index = []
        for c, i, part, axis in zip(corner, low, share, axes, strict=True):
            weight = weight * (part if c else 1.0 - part)
            index.append(np.minimum(i + c, len(axis) - 1))
        total += weight * grid[tuple(index)]
    return np.asarray(np.exp(total))


def _inflight(params: Params, variables: Variables) -> Array:
    import numpy as np

    line = scalar(params, "line_bytes")
    moved = variables["rows"] * np.ceil(variables["row_bytes"] / line) * line
    rate = np.minimum(
        scalar(params, "saturated_bytes_per_s"), variables["blocks"] * scalar(params, "block_bytes_per_s")
    )
    return np.asarray(scalar(params, "base_s") + moved / rate)


def _wave(params: Params, variables: Variables) -> Array:
    import numpy as np

    waves = np.ceil(_only(variables) / scalar(params, "slots"))
    return np.asarray(scalar(params, "base_s") + scalar(params, "wave_s") * waves)


def _module_law(params: Params, variables: Variables) -> Array:
    import numpy as np

    batch, context = variables["batch"], variables["context_tokens"]
    return (
        scalar(params, "base_s")
        + scalar(params, "row_to_64_s") * np.minimum(batch, 64.0)
        + scalar(params, "row_past_64_s") * np.maximum(0.0, batch - 64.0)
        + scalar(params, "context_s") * batch * context
    )


def _rates(params: Params, variables: Variables) -> Array:
    return (
        scalar(params, "base_s")
        + scalar(params, "byte_s") * variables["read_bytes"]
        + scalar(params, "flop_s") * variables["flops"]
    )


def _gqa_decode(params: Params, variables: Variables) -> Array:
    import numpy as np

    doublings = np.log2(np.maximum(variables["total_tokens"], 64.0) / 64.0)
    return (
        _rates(params, variables)
        + scalar(params, "row_head_s") * variables["row_heads"]
        + scalar(params, "doubling_s") * doublings
    )


def _shares(params: Params, variables: Variables) -> Array:
    return (
        scalar(params, "base_s")
        + variables["read_s"] / scalar(params, "hbm_share")
        + variables["work_s"] / scalar(params, "flops_share")
    )


FORMS: dict[str, Form] = {
    "constant": Form(("value",), (), _constant, about="one number"),
    "alpha_beta": Form(("base_s", "per_unit_s"), (), _alpha_beta, about="base + slope x"),
    "piecewise_linear": Form(
        ("x", "y", "tail_slope"),
        (),
        _piecewise,
        monotone=("y",),
        series=("x", "y"),
        about="a rising broken line; tail_slope after it",
    ),
    "log_log": Form(
        ("x", "y"),
        (),
        _log_log,
        series=("x", "y"),
        positive=("x", "y"),
        about="straight lines on logarithmic axes, prolonged",
    ),
    "rising_log_log": Form(
        ("x", "y"),
        (),
        _log_log,
        monotone=("y",),
        series=("x", "y"),
        positive=("x", "y"),
        about="the same, which never falls",
    ),
    "table": Form(
        ("values",),
        (),
        _table,
        series=("values",),
        positive=("values",),
        axes=True,
        about="monotone table: multilinear in logarithms, clamped",
    ),
    "inflight_saturation": Form(
        ("base_s", "saturated_bytes_per_s", "block_bytes_per_s", "line_bytes"),
        ("rows", "row_bytes", "blocks"),
        _inflight,
        positive=("saturated_bytes_per_s", "block_bytes_per_s", "line_bytes"),
        about="base + whole lines / min(saturated, blocks x bytes in flight / round trip)",
    ),
    "wave": Form(
        ("base_s", "wave_s", "slots"),
        (),
        _wave,
        positive=("slots",),
        about="base + wave x ceil(x / slots)",
    ),
    "module_law": Form(
        ("base_s", "row_to_64_s", "row_past_64_s", "context_s"),
        ("batch", "context_tokens"),
        _module_law,
        about="c0 + c1 min(B, 64) + c2 max(0, B - 64) + k B L",
    ),
    "decode_module": Form(
        DECODE_PARAMETERS,
        ("batch", "context_tokens"),
        decode_s,
        monotone=("rows_s",),
        series=("rows", "rows_s"),
        about="the module law with a broken line in the batch and the selection's own costs",
    ),
    "prefill_module": Form(
        PREFILL_PARAMETERS,
        ("sequences", "new_tokens", "past_tokens"),
        prefill_s,
        monotone=("floor_s",),
        series=("floor_s", "floor_past_tokens", "many_keys", "step_keys"),
        positive=("topk_rows", "chunk_tokens"),
        about="the longer of launches and of work by tokens, pairs and keys",
    ),
    "rates": Form(
        ("base_s", "byte_s", "flop_s"),
        ("read_bytes", "flops"),
        _rates,
        about="base + bytes / rate + work / rate",
    ),
    "gqa_decode": Form(
        ("base_s", "byte_s", "flop_s", "row_head_s", "doubling_s"),
        ("read_bytes", "flops", "row_heads", "total_tokens"),
        _gqa_decode,
        about="rates + (request, KV head) pairs + doublings of all context beyond 64 tokens",
    ),
    "shares": Form(
        ("base_s", "hbm_share", "flops_share"),
        ("read_s", "work_s"),
        _shares,
        positive=("hbm_share", "flops_share"),
        about="base + reading + work at shares of datasheet rates",
    ),
}
"""Forms by name; a term's parameters are these, no more and no fewer (a table's axes apart)."""


class PiecewiseLinear:
    """A monotone broken line through ``(x, y)``; beyond the last knot it goes on with ``tail_slope``."""

    __slots__ = ("_bases", "_slopes", "_x")

    def __init__(self, x: Sequence[float], y: Sequence[float], tail_slope: float) -> None:
        self._x = tuple(x)
        self._bases = tuple(y)
        rises = [(y[i + 1] - y[i]) / (x[i + 1] - x[i]) for i in range(len(x) - 1)]
        self._slopes = (*rises, tail_slope)

    def __call__(self, value: float) -> float:
        i = max(0, bisect_right(self._x, value) - 1)
        return self._bases[i] + self._slopes[i] * (value - self._x[i])


class LogLog:
    """Straight lines between ``(x, y)`` on logarithmic axes, the end lines prolonged."""

    __slots__ = ("_slopes", "_x", "_y")

    def __init__(self, x: Sequence[float], y: Sequence[float]) -> None:
        self._x = [log(v) for v in x]
        self._y = [log(v) for v in y]
        self._slopes = [
            (self._y[i + 1] - self._y[i]) / (self._x[i + 1] - self._x[i]) for i in range(len(x) - 1)
        ]

    def __call__(self, value: float) -> float:
        at = log(value)
        i = min(max(bisect_right(self._x, at) - 1, 0), len(self._slopes) - 1)
        return exp(self._y[i] + self._slopes[i] * (at - self._x[i]))
