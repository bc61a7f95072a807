"""One point of a sweep: a scenario, what was chosen for it, and the key under which its result lies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hisparse_sim.errors import HiSparseError, InputError
from hisparse_sim.planning.axes import Choice
from hisparse_sim.scenario.catalogue import load_model, load_node
from hisparse_sim.scenario.check import check_scenario
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec
from hisparse_sim.scenario.scenario import Scenario
from hisparse_sim.scenario.validate import build

Kind = Literal["run", "estimate"]

_READERS: Mapping[str, Callable[[str], ModelSpec | NodeSpec]] = {"model": load_model, "node": load_node}


@dataclass(frozen=True, slots=True)
class Point:
    """``refused``: why no engine would start with it; it is not computed then."""

    scenario: Scenario
    choice: Choice
    key: str
    refused: str = field(default="")


def make_points(base: Scenario, choices: Sequence[Choice], *, seeds: int, kind: Kind) -> list[Point]:
    """Every choice laid over ``base``, with ``seeds`` seeds from the base's own on; equal ones once.

    Raises ``InputError`` naming the field for a value that no scenario takes. What vLLM would not
    start with is a point that says so.
    """
    # What nobody set stays open: another engine.kind refuses settings of this one.
    whole = base.model_dump(mode="json", exclude_unset=True)
    # A part that nothing is laid over is valid already.
    parts = {name: getattr(base, name) for name in type(base).model_fields}
    found: dict[str, Point] = {}
    records: dict[tuple[str, str], dict[str, Any]] = {}
    for choice in choices:
        data = {**parts, **{name: whole.get(name) for name in {path.split(".")[0] for path in choice}}}
        for path, value in choice.items():
            if path in _READERS and isinstance(value, str):
                value = _record(records, path, value)
            data = _laid(data, path.split("."), value, path)
        given = {tuple(path.split(".")): f"--vary {path}={value}" for path, value in choice.items()}
        scenario = build(Scenario, data, file="", given=given)
        refused = ""
        try:
            check_scenario(scenario)
        except HiSparseError as error:
            refused = str(error)
        first = scenario.seed
        for seed in range(first, first + seeds):
            each = scenario if seed == first else scenario.model_copy(update={"seed": seed})
            key = key_of(each, kind)
            found.setdefault(key, Point(each, choice, key, refused))
    return list(found.values())


def _record(known: dict[tuple[str, str], dict[str, Any]], section: str, name: str) -> dict[str, Any]:
    """The model or node of a name, as plain data."""
    if (section, name) not in known:
        try:
            known[section, name] = _READERS[section](name).model_dump(mode="json")
        except InputError as error:
            where = f"--vary {section}={name}" if error.where == section else error.where
            raise type(error)(error.message, where=where) from None
    return known[section, name]


def _laid(data: dict[str, Any], keys: Sequence[str], value: Any, path: str) -> dict[str, Any]:
    if len(keys) == 1:
        return {**data, keys[0]: value}
    inner = data.get(keys[0])
    if inner is not None and not isinstance(inner, dict):
        raise InputError(f"{keys[0]} holds {inner!r}, which has no fields", where=f"--vary {path}")
    return {**data, keys[0]: _laid(inner or {}, keys[1:], value, path)}


def key_of(scenario: Scenario, kind: Kind) -> str:
    """Hash of all that the result depends on: the scenario, but not what it is called."""
    data = scenario.model_dump(mode="json", exclude={"name", "description", "plan"})
    text = json.dumps([kind, data], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:24]
