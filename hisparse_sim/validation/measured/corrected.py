"""A scenario with what the inputs contradict set right, as a record and as a file."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.catalogue import list_models, list_nodes, load_model, load_node
from hisparse_sim.scenario.loader import load_scenario, scenario_from_mapping
from hisparse_sim.scenario.scenario import Scenario
from hisparse_sim.scenario.yaml_file import as_yaml
from hisparse_sim.validation.measured.contradictions import Contradiction


def settings_of(found: Sequence[Contradiction]) -> dict[str, Any]:
    """What sets them right; the first to name a field decides."""
    settings: dict[str, Any] = {}
    for one in found:
        for path, value in one.settings.items():
            settings.setdefault(path, value)
    return settings


def set_right(scenario: Scenario, settings: Mapping[str, Any]) -> Scenario:
    """Raises InputError, or what a scenario with them would be refused for."""
    return scenario_from_mapping(_mapping(scenario, settings))


def write(
    scenario: Scenario,
    settings: Mapping[str, Any],
    path: Path,
    found: Sequence[Contradiction],
    *,
    requests: Path | None = None,
) -> list[Path]:
    """Write the scenario with ``settings``; ``requests``, its trace, is copied beside it.

    The file is loaded before it takes its name. Raises InputError.
    """
    data, written = _mapping(scenario, settings), [path]
    made = path.with_name(f".{path.name}.part")
    head = [f"# {scenario.name}, set right by what was measured:", *(f"#   {one.sentence}" for one in found)]
    try:
        if requests is not None:
            beside = path.with_name(f"{path.stem}-requests.jsonl")
            shutil.copyfile(requests, beside)
            data["workload"]["path"] = beside.name
            written.append(beside)
        made.write_text("\n".join([*head, as_yaml(data)]), encoding="utf-8")
        load_scenario(made)
        made.replace(path)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", where=str(path)) from None
    finally:
        made.unlink(missing_ok=True)
    return written


def _mapping(scenario: Scenario, settings: Mapping[str, Any]) -> dict[str, Any]:
    """As YAML would have it: names for what the catalogue has, no defaults of the engine."""
    data = scenario.model_dump(mode="json", exclude={"plan"}, exclude_defaults=True)
    data["workload"] = scenario.workload.model_dump(mode="json", exclude_none=True)
    model, node = scenario.model.name, scenario.node.name
    if model in list_models() and load_model(model) == scenario.model:
        data["model"] = model
    if node in list_nodes() and load_node(node) == scenario.node:
        data["node"] = node
    engine = data.setdefault("engine", {})
    for path, value in settings.items():
        section, _, name = path.partition(".")
        if not name:
            data[section] = value
        elif value is None:
            engine.pop(name, None)
        else:
            engine[name] = value
    if data["workload"].get("kind") == "trace":
        data["workload"]["path"] = str(Path(data["workload"]["path"]).absolute())
    for name in ("calibration", "locality"):
        if isinstance(given := data.get(name), str) and Path(given).exists():
            data[name] = str(Path(given).absolute())
    return data
