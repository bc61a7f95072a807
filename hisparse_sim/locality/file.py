"""Locality files: how one model's layers select, fitted to something that was measured.

YAML, schema ``hisparse-sim/locality/1``; shipped ones are in ``configs/localities``.
"""

from __future__ import annotations

import json
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal

import yaml
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from hisparse_sim.errors import InputError
from hisparse_sim.locality.reuse import Process
from hisparse_sim.scenario.base import Record
from hisparse_sim.scenario.catalogue import configs_dir
from hisparse_sim.scenario.validate import build, nearest
from hisparse_sim.scenario.yaml_file import read_mapping

SCHEMA = "hisparse-sim/locality/1"
FALLBACK = "glm-5.1"
"""For models without a locality of their own: the one with most figures behind it."""
_SPREAD_OVER = 5
"""Layers of a class that differ are averaged over so many quantiles of their overlap."""


class LayerClass(Record):
    """Layers that select alike: parameters of :class:`~hisparse_sim.locality.reuse.Process`.

    ``overlap_spread``: standard deviation of the step overlap between the layers (normal).
    """

    name: str
    layers: PositiveInt
    step_overlap: float = Field(ge=0, lt=1)
    overlap_spread: float = Field(default=0.0, ge=0, lt=0.5)
    tail_exponent: float = Field(ge=0, le=10)

    def processes(self, count: int = _SPREAD_OVER) -> list[Process]:
        """Equally weighted processes that stand for the layers, lowest overlap first."""
        if not self.overlap_spread:
            return [Process(self.step_overlap, self.tail_exponent)]
        normal = NormalDist(self.step_overlap, self.overlap_spread)
        overlaps = (normal.inv_cdf((i + 0.5) / count) for i in range(count))
        return [Process(min(0.999, max(0.0, p)), self.tail_exponent) for p in overlaps]


class FitRow(Record):
    """A figure beside the fit: with it, and with this figure left out."""

    figure: str
    given: float
    fitted: float
    left_out: float | None = None
    """What the other figures predict; none where nothing else determines it."""


class Locality(Record):
    """One locality file.

    ``context_rows`` and ``buffer_rows``: what was measured (rows; smallest and largest buffer).
    ``miss_error``: the largest relative error of a miss share that the fit did not see.
    """

    schema_: Literal["hisparse-sim/locality/1"] = Field(alias="schema")
    id: str = Field(min_length=1)
    model: str
    topk_rows: PositiveInt
    context_rows: PositiveInt
    buffer_rows: tuple[PositiveInt, PositiveInt] | None = None
    classes: tuple[LayerClass, ...] = Field(min_length=1)
    source: str
    grade: Literal["measured", "published", "assumed"]
    miss_error: PositiveFloat | None = None
    notes: str = ""
    fit: tuple[FitRow, ...] = ()
    inputs: dict[str, str] = Field(default={})
    """SHA-256 of each file that was fitted."""

    @model_validator(mode="after")
    def _names_differ(self) -> Locality:
        names = [c.name for c in self.classes]
        if len(set(names)) < len(names):
            raise ValueError(f"two classes have one name: {', '.join(names)}")
        return self

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical content."""
        data = self.model_dump(mode="json", by_alias=True)
        return sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()

    def spread_over(self, layers: int) -> list[Process]:
        """Processes of so many layers, in proportion to those of the classes, one of each class at least."""
        whole = sum(c.layers for c in self.classes)
        counts = [max(1, round(layers * c.layers / whole)) for c in self.classes]
        counts[counts.index(max(counts))] += layers - sum(counts)
        return [p for c, n in zip(self.classes, counts, strict=True) for p in _each(c, n)]

    def text(self) -> str:
        """The file's content."""
        data = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return yaml.safe_dump(_rounded(data), sort_keys=False, width=110, allow_unicode=True)


def _each(layer_class: LayerClass, count: int) -> list[Process]:
    processes = layer_class.processes(max(1, count))
    return (processes * count)[:count]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return [_rounded(v) for v in value] if isinstance(value, list) else value


def list_localities() -> list[str]:
    """Names of the shipped localities."""
    return sorted(p.stem for p in (configs_dir() / "localities").glob("*.yaml"))


def locality_path(name_or_path: str | Path) -> Path:
    """Where a locality of that shipped name, or that file, lies. Raises ``InputError`` for another name."""
    given = str(name_or_path)
    shipped = configs_dir() / "localities" / f"{given.strip().lower()}.yaml"
    if "/" not in given and shipped.name in _shipped():
        return shipped
    if Path(given).suffix.lower() in (".yaml", ".yml", ".json") or "/" in given:
        return Path(given)
    names = list_localities()
    near = nearest(given.lower(), names) or "; known are " + ", ".join(names)
    raise InputError(f"unknown locality {given!r}{near}; or give the path of a file", where="locality")


@lru_cache(maxsize=1)
def _shipped() -> frozenset[str]:
    return frozenset(f"{name}.yaml" for name in list_localities())


def load_locality(name_or_path: str | Path) -> Locality:
    """A locality by shipped name or by file. Raises ``InputError`` naming file and field."""
    path = locality_path(name_or_path)
    data = read_mapping(path)
    if data.get("schema") != SCHEMA:
        raise InputError(f"schema is {data.get('schema')!r}; this version reads {SCHEMA!r}", where=str(path))
    return build(Locality, data, file=str(path))
