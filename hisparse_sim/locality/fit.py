"""Localities from published figures, and how far each figure is missed when it is left out.

Of a model: one tail exponent, a step overlap for each class of layers, and for classes whose least and
largest overlap are known the spread between layers. A model without figures of larger buffers takes the
mean exponent of those that have some. Errors are relative, of miss shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.errors import InputError
from hisparse_sim.locality.figures import Figure
from hisparse_sim.locality.file import FitRow, LayerClass, Locality
from hisparse_sim.locality.policies import POLICIES
from hisparse_sim.locality.reuse import Process, Reuse, reuse

Floats = NDArray[np.float64]
Key = tuple[str, str]
"""A model and its layers, as a figure names them."""


_START_OVERLAP, _START_EXPONENT, _START_SPREAD = 0.6, 0.45, 0.03
_LAYERS_BETWEEN = 41
"""Layers between whose extremes a least and a largest overlap are taken, if ``layers`` is no range."""


@dataclass(frozen=True)
class Fit:
    """Of one model, by class of layers. ``of_tail``: whether its own figures tell the exponent."""

    exponent: float
    of_tail: bool
    overlap: dict[Key, float]
    spread: dict[Key, float]

    def predict(self, figure: Figure) -> float:
        """The figure as this fit has it, in its own terms."""
        key = figure.model, figure.layers
        overlap = self.overlap.get(key)
        if overlap is None:  # nothing else tells: a random selection
            overlap, exponent = figure.topk_rows / figure.context_rows, 0.0
        else:
            exponent = self.exponent
        if figure.quantity.startswith("step_overlap"):
            extreme = _extreme(figure.layers) * self.spread.get(key, 0.0)
            sign = {"step_overlap_min": -1.0, "step_overlap_max": 1.0}.get(figure.quantity, 0.0)
            return overlap + sign * extreme
        windows = _windows(Process(overlap, exponent), figure.topk_rows, figure.context_rows)
        return figure.of(POLICIES[figure.policy.lower()](windows, figure.buffer_rows))


@lru_cache(maxsize=512)
def _windows(process: Process, topk_rows: int, context_rows: int) -> Reuse:
    return reuse(process, topk_rows=topk_rows, context_rows=context_rows)


def layer_count(layers: str) -> int | None:
    """Layers of ``20-60``: 41; none for other words."""
    ends = layers.split("-")
    if len(ends) == 2 and all(end.isdigit() for end in ends):
        return int(ends[1]) - int(ends[0]) + 1
    return None


def _extreme(layers: str) -> float:
    """Expected largest of so many normal deviates (G. Blom, 1958: quantile of (n - 3/8) / (n + 1/4))."""
    n = layer_count(layers) or _LAYERS_BETWEEN
    return NormalDist().inv_cdf((n - 0.375) / (n + 0.25))


def fit_model(figures: Sequence[Figure], *, exponent: float = _START_EXPONENT) -> Fit:
    """The parameters closest to one model's figures: least squares of log miss shares.

    ``exponent``: of the tail where no figure is of a buffer above the top-k.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise InputError("needs scipy: pip install 'hisparse-sim[fit]'", where="locality fit") from None
    keys = list(dict.fromkeys((f.model, f.layers) for f in figures))
    spreads = [key for key in keys if any(_is_extreme(f) and (f.model, f.layers) == key for f in figures)]
    of_tail = any(f.quantity.endswith("_rate") and f.buffer_rows > f.topk_rows for f in figures)

    # A mean over many layers is sure, their extremes vary by about as much as one layer does.
    weights = np.array([_layers(f) ** 0.5 if f.quantity == "step_overlap_mean" else 1.0 for f in figures])

    def unpack(x: Floats) -> Fit:
        n = len(keys)
        overlaps = dict(zip(keys, x[:n].tolist(), strict=True))
        widths = dict(zip(spreads, x[n : n + len(spreads)].tolist(), strict=True))
        return Fit(float(x[-1]) if of_tail else exponent, of_tail, overlaps, widths)

    def residuals(x: Floats) -> Floats:
        found = unpack(x)
        pairs = ((_missed(f, found.predict(f)), _missed(f, f.value)) for f in figures)
        logs: Floats = np.array([log(max(value, 1e-9) / max(given, 1e-9)) for value, given in pairs])
        return weights * logs

    start = [_START_OVERLAP] * len(keys) + [_START_SPREAD] * len(spreads) + [_START_EXPONENT] * of_tail
    low = [0.0] * len(start)
    high = [0.999] * len(keys) + [0.3] * len(spreads) + [0.95] * of_tail
    # Smaller differences would see the bisections behind the shares.
    found = least_squares(residuals, start, bounds=(low, high), diff_step=1e-4)
    return unpack(found.x)


def _layers(figure: Figure) -> int:
    return layer_count(figure.layers) or 1


def _is_extreme(figure: Figure) -> bool:
    return figure.quantity in ("step_overlap_min", "step_overlap_max")


def _missed(figure: Figure, value: float) -> float:
    return value if figure.quantity == "miss_rate" else 1.0 - value


def fit_figures(figures: Sequence[Figure]) -> dict[str, Fit]:
    """The parameters of each model."""
    by_model: dict[str, list[Figure]] = {}
    for figure in figures:
        by_model.setdefault(figure.model, []).append(figure)
    fits = {model: fit_model(own) for model, own in by_model.items()}
    tails = [fit.exponent for fit in fits.values() if fit.of_tail]
    mean = sum(tails) / len(tails) if tails else _START_EXPONENT
    return {m: fit if fit.of_tail else fit_model(by_model[m], exponent=mean) for m, fit in fits.items()}


def leave_one_out(figures: Sequence[Figure], fits: Mapping[str, Fit]) -> list[FitRow]:
    """Each figure beside the fit to all and beside the fit without it.

    A class with no other figure is predicted as a random selection.
    """
    rows = []
    for figure in figures:
        own = fits[figure.model]
        others = [f for f in figures if f is not figure and f.model == figure.model]
        without = fit_model(others, exponent=own.exponent) if others else None
        rows.append(
            FitRow(
                figure=f"{figure.model} {figure.words}",
                given=figure.value,
                fitted=own.predict(figure),
                left_out=None if without is None else without.predict(figure),
            )
        )
    return rows


def miss_errors(figures: Sequence[Figure], rows: Sequence[FitRow]) -> list[float]:
    """Signed relative error of each figure's miss share when it was left out."""
    return [
        _missed(f, f.value if r.left_out is None else r.left_out) / max(_missed(f, f.value), 1e-9) - 1.0
        for f, r in zip(figures, rows, strict=True)
    ]


def localities(figures: Sequence[Figure], *, source: str, digest: str, file: str) -> list[Locality]:
    """A locality for each model of the figures, with its rows of the fit."""
    fits = fit_figures(figures)
    rows = leave_one_out(figures, fits)
    errors = miss_errors(figures, rows)
    made = []
    for model in dict.fromkeys(f.model for f in figures):
        fit = fits[model]
        at = [i for i, f in enumerate(figures) if f.model == model]
        of_model = [figures[i] for i in at]
        # A class that no other figure supports is outside of what the tail was fitted to.
        lru = [abs(errors[i]) for i in at if figures[i].policy.lower() == "lru"]
        shares = [f.buffer_rows for f in of_model if f.quantity.endswith("_rate")]
        classes = []
        for layers in dict.fromkeys(f.layers for f in of_model):
            key = model, layers
            random = of_model[0].topk_rows / of_model[0].context_rows
            # An overlap no higher than chance has no tail either: what was not selected again at once is
            # as likely to be selected as any row.
            by_chance = fit.overlap[key] <= random
            classes.append(
                LayerClass(
                    name=f"layers {layers}",
                    layers=layer_count(layers) or 1,
                    step_overlap=fit.overlap[key],
                    overlap_spread=fit.spread.get(key, 0.0),
                    tail_exponent=0.0 if by_chance else fit.exponent,
                )
            )
        every = [abs(e) for e, f in zip(errors, figures, strict=True) if f.policy.lower() == "lru"]
        made.append(
            Locality(
                schema="hisparse-sim/locality/1",
                id=model.lower(),
                model=model,
                topk_rows=of_model[0].topk_rows,
                context_rows=of_model[0].context_rows,
                buffer_rows=(min(shares), max(shares)) if shares else None,
                classes=tuple(classes),
                source=source,
                grade="published",
                miss_error=max(lru or every or [0.0]) or None,
                fit=tuple(rows[i] for i in at),
                inputs={file: digest},
            )
        )
    return made
