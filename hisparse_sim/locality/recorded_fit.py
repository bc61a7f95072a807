"""A locality from one request's recorded selections, beside what the exact buffer does with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.errors import InputError
from hisparse_sim.locality.file import FitRow, LayerClass, Locality
from hisparse_sim.locality.policies import POLICIES
from hisparse_sim.locality.recording import Recording
from hisparse_sim.locality.replay import lookups_of, replay
from hisparse_sim.locality.reuse import Process, reuse, shape_in
from hisparse_sim.locality.selection import Positions

FEWEST_STEPS = 16
"""A shorter recording shows no tail."""
_APART = 0.5
"""Layers whose overlap is below this part of the median are a class of their own."""
_FACTORS = (1, 2, 4, 8)
"""Buffers, in multiples of the top-k, at which fit and replay are compared."""
_GOLDEN = (5**0.5 - 1) / 2

Floats = NDArray[np.float64]


class Seen(NamedTuple):
    """What one layer shows: s(g) at some ages (see ``reuse.py``), and its overlap."""

    layer: int
    ages: Floats
    share: Floats

    @property
    def overlap(self) -> float:
        """Share of rows that the step before selected as well."""
        return 1.0 - float(self.share[0])


def seen(positions: Positions, layer: int) -> Seen:
    """s(g) of positions [steps, 1, top-k], each from the steps that have g steps before them."""
    steps = len(positions)
    last = np.full(int(positions.max()) + 1, -1, dtype=np.int64)
    returned = np.zeros(steps + 1, dtype=np.int64)  # lookups by steps since the last
    known = np.zeros(steps, dtype=np.int64)  # lookups of each step that had one
    asked = np.zeros(steps, dtype=np.int64)
    for step, rows in enumerate(positions[:, 0]):
        rows = rows[rows >= 0]
        before = last[rows]
        gaps = step - before[before >= 0]
        returned += np.bincount(gaps, minlength=steps + 1)
        known[step], asked[step] = len(gaps), len(rows)
        last[rows] = step
    ages = np.unique(np.geomspace(1, max(1, steps // 2), 40).round().astype(np.int64))
    # Within g steps of step t < g lie all rows that were seen before.
    early_known = np.concatenate(([0], np.cumsum(known)))[ages]
    early_asked = np.concatenate(([0], np.cumsum(asked)))[ages]
    within = np.cumsum(returned)[ages] - early_known
    share = 1.0 - within / np.maximum(1, asked.sum() - early_asked)
    return Seen(layer, ages.astype(np.float64), np.clip(share, 0.0, 1.0))


def fit_recording(
    recording: Recording, *, name: str, digest: str, progress: Callable[[int, int], None] | None = None
) -> Locality:
    """The locality of a recording's layers. Raises ``InputError`` for one that cannot show it."""
    where = str(recording.path)
    if recording.queries > 1:
        raise InputError(
            f"holds {recording.queries} queries a step; a fit needs one (record without speculation)",
            where=where,
        )
    if recording.steps < FEWEST_STEPS:
        raise InputError(f"holds {recording.steps} steps; a fit needs {FEWEST_STEPS} or more", where=where)
    layers, replayed, furthest = [], [], 0
    for index, positions in enumerate(recording.each()):
        layers.append(seen(positions, recording.layers[index]))
        furthest = max(furthest, int(positions.max()) + 1)
        lookups = lookups_of(positions)
        since = recording.steps // 2
        replayed.append([replay(lookups, hot_rows=f * recording.topk_rows).share(since) for f in _FACTORS])
        if progress is not None:
            progress(index + 1, len(recording.layers))
    context = furthest if recording.contexts is None else int(recording.contexts.mean())
    over_topk = max(1.0, context / recording.topk_rows)
    classes = _classes(layers, over_topk)
    fit = _beside(classes, np.mean(replayed, axis=0), recording.topk_rows, context)
    errors = [abs(row.fitted / row.given - 1.0) for row in fit if row.given > 0.0]
    return Locality(
        schema="hisparse-sim/locality/1",
        id=name,
        model=name,
        topk_rows=recording.topk_rows,
        context_rows=context,
        buffer_rows=(recording.topk_rows, _FACTORS[-1] * recording.topk_rows),
        classes=tuple(classes),
        source=f"recorded selections, {recording.path.name}: {recording.steps:,} steps of "
        f"{len(recording.layers)} layers",
        grade="measured",
        miss_error=max(errors, default=0.0) or None,
        fit=tuple(fit),
        inputs={recording.path.name: digest},
    )


def _classes(layers: list[Seen], context_over_topk: float) -> list[LayerClass]:
    overlaps = np.array([layer.overlap for layer in layers])
    low = overlaps < _APART * np.median(overlaps)
    made = []
    for apart in (False, True):
        own = [layer for layer, is_low in zip(layers, low, strict=True) if is_low == apart]
        if not own:
            continue
        values = np.array([layer.overlap for layer in own])
        overlap = min(0.999, float(values.mean()))
        share = np.mean([layer.share for layer in own], axis=0)
        name = "layers " + ", ".join(_runs([layer.layer for layer in own]))
        made.append(
            LayerClass(
                name=name,
                layers=len(own),
                step_overlap=overlap,
                overlap_spread=min(0.49, float(values.std())),
                tail_exponent=_exponent(own[0].ages, share, overlap, context_over_topk),
            )
        )
    return made


def _runs(numbers: list[int]) -> list[str]:
    """``0-2`` and ``5`` of 0, 1, 2, 5."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return [f"{a}-{b}" if b > a else f"{a}" for a, b in runs]


def _exponent(ages: Floats, share: Floats, overlap: float, context_over_topk: float) -> float:
    """The tail closest to s(g) beyond the first step, in logarithms (golden-section search)."""
    old = (ages > 1) & (share > 1e-4)
    if not old.any():
        return 0.0

    def error(exponent: float) -> float:
        expected = shape_in(Process(overlap, exponent), context_over_topk).share(ages[old])
        logs = np.log(np.maximum(expected, 1e-9) / share[old])
        return float(logs @ logs)

    low, high = 0.0, 2.0
    while high - low > 1e-3:
        a, b = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (low, b) if error(a) < error(b) else (a, high)
    return (low + high) / 2


def _beside(classes: list[LayerClass], replayed: Floats, topk_rows: int, context: int) -> list[FitRow]:
    layers = sum(c.layers for c in classes)
    made = []
    for factor, given in zip(_FACTORS, replayed, strict=True):
        expected = 0.0
        for c in classes:
            each = c.processes()
            for process in each:
                windows = reuse(process, topk_rows=topk_rows, context_rows=context)
                share = POLICIES["lru"](windows, factor * topk_rows)
                expected += c.layers / layers / len(each) * share
        made.append(
            FitRow(figure=f"miss_rate LRU {factor * topk_rows} rows, replayed", given=given, fitted=expected)
        )
    return made


def default_name(path: Path) -> str:
    """A locality's id from its recording's file name."""
    return path.stem
