"""A scenario from YAML: names resolved, settings laid over, validated once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hisparse_sim.errors import HiSparseError, InputError
from hisparse_sim.scenario.catalogue import (
    configs_dir,
    find,
    list_models,
    list_nodes,
    list_scenarios,
    load_model,
    load_node,
)
from hisparse_sim.scenario.check import check_scenario
from hisparse_sim.scenario.overrides import apply_overrides, parse_override, place
from hisparse_sim.scenario.scenario import Scenario
from hisparse_sim.scenario.validate import build, locate
from hisparse_sim.scenario.yaml_file import read_mapping

__all__ = [
    "configs_dir",
    "list_models",
    "list_nodes",
    "list_scenarios",
    "load_model",
    "load_node",
    "load_scenario",
    "scenario_from_mapping",
]


def load_scenario(name_or_path: str | Path, *, overrides: Sequence[str] = ()) -> Scenario:
    """The scenario of a shipped name or a YAML file, with ``overrides`` (``path=value``) laid over it.

    ``model`` and ``node`` hold a catalogue name, a path (seen from the scenario's folder first) or an
    inline mapping; ``model.x=…`` over a name changes that one field of the named model. Raises
    InputError, UnsupportedModel, or Infeasible for what check.py refuses.
    """
    path = find("scenario", name_or_path)
    data = read_mapping(path)
    if isinstance(data.get("scenario"), dict):  # what a run left behind
        data = data["scenario"]
    data.setdefault("name", path.stem)
    return scenario_from_mapping(data, file=str(path), overrides=overrides)


def scenario_from_mapping(data: dict[str, Any], *, file: str = "", overrides: Sequence[str] = ()) -> Scenario:
    """The same from a mapping that is read already; ``file`` names it in errors."""
    folder = Path(file).parent
    given = {parse_override(text)[0]: place(text) for text in overrides}
    # A name must be resolved before fields of what it names are set: whole sections first.
    whole = [text for text in overrides if parse_override(text)[0] in (("model",), ("node",))]
    data = apply_overrides(data, whole)
    for section, load in (("model", load_model), ("node", load_node)):
        if isinstance(data.get(section), str):
            try:
                record = load(_beside(folder, data[section]))
            except InputError as error:
                if error.where != section:  # inside a file of its own
                    raise
                raise InputError(error.message, where=locate(file, (section,), given)) from None
            data[section] = record.model_dump(exclude_defaults=True)
    data = apply_overrides(data, [text for text in overrides if text not in whole])
    if isinstance(data.get("locality"), str):
        data["locality"] = _beside(folder, data["locality"])
    workload = data.get("workload")
    if isinstance(workload, dict) and isinstance(workload.get("path"), str) and workload["path"].strip():
        data["workload"] = {**workload, "path": _beside(folder, workload["path"])}
    scenario = build(Scenario, data, file=file, given=given)
    try:
        check_scenario(scenario)
    except HiSparseError as error:
        keys = tuple((error.where or "").split("."))
        raise type(error)(error.message, where=locate(file, keys, given)) from None
    return scenario


def _beside(folder: Path, given: str) -> str:
    """``given`` as a path seen from the scenario's folder, if such a file is there."""
    beside = folder / given
    return str(beside) if not Path(given).is_absolute() and beside.exists() else given
