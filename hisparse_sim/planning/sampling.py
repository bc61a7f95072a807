"""Choices of a space too large to look through, drawn by Optuna: estimates guide where it looks next.

A tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011) draws; then the best are changed one
field at a time until no change is better, so that what is recommended has no better neighbour.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from hisparse_sim.errors import InputError
from hisparse_sim.planning.axes import Axis

Place = tuple[int, ...]
"""The position of each axis's value."""
Rank = tuple[float, ...]
"""How good a place is, smaller is better: a class, then a value within it."""
STARTS = 3
"""So many of the best are improved further."""
SEED = 0


def require_optuna(size: int, most: int) -> Any:
    """The library. Raises ``InputError`` with the command that installs it."""
    try:
        import optuna
    except ImportError:
        what = f"{size:,} combinations are more than the {most:,} that are looked through whole"
        if size <= most:
            what = "drawing choices"
        raise InputError(
            f"{what}; that takes optuna, which is not installed: pip install 'hisparse-sim[search]', or vary "
            "less",
            where="plan.vary",
        ) from None
    return optuna


def drawn(
    axes: Sequence[Axis],
    rank: Callable[[Place], Rank],
    trials: int,
    *,
    told: Callable[[int, int], None] | None = None,
) -> None:
    """Call ``rank`` for so many places, fewer where there are fewer, and for what is near the best of them.

    The draws are the same every time.
    """
    import optuna

    known: dict[Place, Rank] = {}

    def ranked(place: Place) -> Rank:
        if place not in known:
            known[place] = rank(place)
        return known[place]

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the library, about its own
            sampler = optuna.samplers.TPESampler(seed=SEED, multivariate=True, n_startup_trials=trials // 4)
            study = optuna.create_study(sampler=sampler)
            for done in range(trials):
                if told is not None and done % 16 == 0:
                    told(done, trials)
                trial = study.ask()
                place = tuple(_value(trial, n, axis) for n, axis in enumerate(axes))
                study.tell(trial, _scalar(ranked(place)))
    finally:
        optuna.logging.set_verbosity(before)
    for place in sorted(known, key=known.__getitem__)[:STARTS]:
        _improved(place, axes, ranked)


def neighbours(place: Place, axes: Sequence[Axis]) -> list[Place]:
    """All places that differ in one field."""
    return [
        (*place[:n], value, *place[n + 1 :])
        for n, axis in enumerate(axes)
        for value in range(len(axis.values))
        if value != place[n]
    ]


def _improved(place: Place, axes: Sequence[Axis], ranked: Callable[[Place], Rank]) -> Place:
    while True:
        best = min(neighbours(place, axes), key=ranked, default=place)
        if not ranked(best) < ranked(place):
            return place
        place = best


def _value(trial: Any, number: int, axis: Axis) -> int:
    name, count = f"{number}:{axis.path}", len(axis.values)
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in axis.values)
    if numbers and list(axis.values) == sorted(axis.values):
        return int(trial.suggest_int(name, 0, count - 1))
    return int(trial.suggest_categorical(name, list(range(count))))


def _scalar(rank: Rank) -> float:
    """One number in the same order: the sampler looks at nothing else."""
    kind, value = rank[0], rank[1]
    return 3.0 * kind + (math.copysign(1.0, value) if math.isinf(value) else value / (1 + abs(value)))
