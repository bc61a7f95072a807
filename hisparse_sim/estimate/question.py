"""What is asked of the estimate: a model on a node under engine settings, without a workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.base import Record
from hisparse_sim.scenario.catalogue import load_model, load_node
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec
from hisparse_sim.scenario.overrides import apply_overrides, parse_override
from hisparse_sim.scenario.overrides import place as place_of
from hisparse_sim.scenario.validate import build

Given = Mapping[tuple[str, ...], str]
"""Where a field came from (``--kv-dtype``), by its path (``("engine", "kv_cache_dtype")``)."""


class Deployment(Record):
    """One engine deployment."""

    model: ModelSpec
    node: NodeSpec
    engine: EngineSpec


def deployment(
    model: str,
    node: str,
    engine: Mapping[str, Any],
    *,
    settings: Sequence[str] = (),
    given: Given | None = None,
) -> tuple[Deployment, Given]:
    """The records of ``model`` and ``node`` (names or paths) and ``engine``, ``settings`` laid over them.

    ``settings`` are ``path=value`` of engine, model or node. Returns also where each field came from.
    Raises ``InputError`` or ``UnsupportedModel`` naming that place.
    """
    places = dict(given or {})
    for text in settings:
        path = parse_override(text)[0]
        if path[0] not in Deployment.model_fields or len(path) < 2:
            raise InputError(
                "is no field of engine, model or node, which an estimate has (engine.max_num_seqs=64)",
                where=place_of(text),
            )
        places[path] = place_of(text)
    roots = {parse_override(text)[0][0] for text in settings}
    data: dict[str, Any] = {"engine": dict(engine)}
    records: dict[str, ModelSpec | NodeSpec] = {"model": load_model(model), "node": load_node(node)}
    for name, record in records.items():
        # A record that nothing is laid over is valid already.
        data[name] = record.model_dump(exclude_defaults=True) if name in roots else record
    return build(Deployment, apply_overrides(data, settings), file="", given=places), places
