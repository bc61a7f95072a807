"""The choices of a plan: fields and their values, and how many machines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hisparse_sim.errors import InputError
from hisparse_sim.planning.axes import Axis, Choice, crossed, parse_axis
from hisparse_sim.planning.point import Point, make_points
from hisparse_sim.planning.sampling import require_optuna
from hisparse_sim.scenario.node import NodeSpec
from hisparse_sim.scenario.plan import PlanSpec
from hisparse_sim.scenario.scenario import Scenario

NODES = "nodes"
_LOADS = ("workload", "seed", "slo", "plan")
MOST_NODES = 100_000
MOST_WHOLE = 50_000
"""Combinations that are all estimated, in minutes; of more, some are drawn."""


@dataclass(frozen=True, slots=True)
class Space:
    """``points``: a scenario a choice; each may be had on each count of ``nodes``. None are made of a space
    to draw from: :meth:`point` makes one."""

    base: Scenario
    axes: tuple[Axis, ...]
    nodes: tuple[int, ...]
    points: tuple[Point, ...]

    @property
    def size(self) -> int:
        """Combinations, counts of machines included."""
        choices = len(self.points) or math.prod(len(axis.values) for axis in self.axes)
        return choices * len(self.nodes)

    def point(self, choice: Choice) -> Point:
        """One of them."""
        return make_points(self.base, [choice], seeds=1, kind="estimate")[0]

    def machines(self) -> list[NodeSpec]:
        """Every node that a choice may have."""
        if self.points:
            return [point.scenario.node for point in self.points]
        of_node = [axis for axis in self.axes if axis.path.split(".")[0] == "node"]
        return [self.point(choice).scenario.node for choice in crossed(of_node)]


def space_of(base: Scenario, plan: PlanSpec, vary: Sequence[str], *, whole: bool | None = None) -> Space:
    """What the scenario's ``plan:`` and ``--vary`` leave open; a flag replaces the plan's own values.

    ``whole``: make every point; none: if there are no more than :data:`MOST_WHOLE` combinations.

    Raises ``InputError`` naming field or flag.
    """
    flagged = [parse_axis(text) for text in vary]
    named = {axis.path for axis in flagged}
    counts = _counts(plan.nodes)
    for axis in flagged:
        if axis.path == NODES:
            counts = _checked(axis.values, axis.place)
    axes = [_axis(path, given) for path, given in plan.vary.items() if path not in named]
    axes += [axis for axis in flagged if axis.path != NODES]
    for axis in axes:
        if axis.path.split(".")[0] in _LOADS:
            raise InputError(
                "is what is asked, not a choice; a plan varies node, model and engine fields "
                "(engine.host_pool_gib)",
                where=axis.place,
            )
    size = math.prod(len(axis.values) for axis in axes) * len(counts)
    if whole is False or (whole is None and size > MOST_WHOLE):
        require_optuna(size, MOST_WHOLE)
        # No value is to fail when it is drawn first, a thousand estimates later.
        alone: list[Choice] = [{axis.path: value} for axis in axes for value in axis.values]
        make_points(base, alone, seeds=1, kind="estimate")
        return Space(base, tuple(axes), counts, ())
    choices: list[Choice] = crossed(axes) if axes else [{}]
    points = make_points(base, choices, seeds=1, kind="estimate")
    return Space(base, tuple(axes), counts, tuple(points))


def _axis(path: str, given: Any) -> Axis:
    values = given if isinstance(given, list) else [given]
    where = f"plan.vary.{path}"
    if not values or any(value is None for value in values):
        raise InputError("holds no value" if not values else "holds an empty value", where=where)
    found: list[Any] = []
    for value in values:
        each: Sequence[Any] = [value]
        if isinstance(value, str):
            try:
                each = parse_axis(f"{path}={value}").values
            except InputError as error:
                raise InputError(error.message, where=where) from None
        found += [v for v in each if v not in found]
    return Axis(path, tuple(found))


def _counts(given: int | str | tuple[int, ...]) -> tuple[int, ...]:
    values = given if isinstance(given, tuple) else (given,)
    if isinstance(given, str):
        values = parse_axis(f"{NODES}={given}").values
    return _checked(values, "plan.nodes")


def _checked(values: Sequence[Any], where: str) -> tuple[int, ...]:
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_NODES:
            raise InputError(f"{value!r} is no count of machines; 1 to {MOST_NODES:,}", where=where)
    if not values:
        raise InputError("holds no value", where=where)
    return tuple(sorted(set(values)))
