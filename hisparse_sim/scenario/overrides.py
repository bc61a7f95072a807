"""``path=value`` settings laid over a scenario's mapping (``--set engine.max_num_seqs=64``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.yaml_file import parse_yaml


def parse_override(text: str) -> tuple[tuple[str, ...], Any]:
    """``("engine", "hot_rows")`` and the value, read as YAML, of ``engine.hot_rows=4096``."""
    where = place(text)
    path, equals, value = text.partition("=")
    keys = tuple(k.strip() for k in path.split("."))
    if not equals or not all(keys):
        raise InputError("is not path=value, as in engine.max_num_seqs=64", where=where)
    return keys, parse_yaml(value, where=where)


def apply_overrides(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy of ``data`` with each ``path=value`` set, in order. Names are checked by the records."""
    for text in overrides:
        keys, value = parse_override(text)
        data = _set(data, keys, value, where=place(text))
    return data


def place(text: str) -> str:
    """How an error names the override ``text``."""
    return f"--set {text}"


def _set(data: dict[str, Any], keys: tuple[str, ...], value: Any, *, where: str) -> dict[str, Any]:
    if len(keys) == 1:
        return {**data, keys[0]: value}
    inner = data.get(keys[0])
    if inner is not None and not isinstance(inner, dict):
        raise InputError(f"{keys[0]} holds {inner!r}, which has no fields", where=where)
    return {**data, keys[0]: _set(inner or {}, keys[1:], value, where=where)}
