"""Calibration profiles: where every second that this package prices comes from.

A profile is one JSON file, schema ``hisparse-sim/calibration/1``: terms (named forms with
coefficients, the domain they were fitted in, the errors of the fit) and the sources they cite.
"""

from __future__ import annotations

import json
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field, ValidationError, model_validator

from hisparse_sim.cost.forms import FORMS
from hisparse_sim.cost.hardware import Hardware
from hisparse_sim.errors import InputError
from hisparse_sim.scenario.base import Record
from hisparse_sim.scenario.node import NodeSpec
from hisparse_sim.scenario.yaml_file import check_regular

SCHEMA = "hisparse-sim/calibration/1"

Grade = Literal["measured", "published", "datasheet", "derived", "guess"]


class FitError(Record):
    """Relative errors of a fitted term on ``n`` rows, |predicted / measured - 1|."""

    n: int = Field(gt=0)
    median_abs_rel: float = Field(ge=0)
    p90_abs_rel: float = Field(ge=0)
    max_abs_rel: float = Field(ge=0)


class Term(Record):
    """One coefficient set.

    ``domain`` bounds the variables of the fit; ``residual`` is the error on the rows fitted,
    ``holdout`` on rows left out (a fifth at random, or each row in turn where rows are few).
    """

    id: str
    form: str
    unit: Literal["s", "B/s", "1"]
    params: dict[str, float | tuple[float, ...]]
    domain: dict[str, tuple[float, float]] = Field(default={})
    residual: FitError | None = None
    holdout: FitError | None = None
    source: str
    grade: Grade
    note: str = ""

    @model_validator(mode="after")
    def _whole(self) -> Term:
        if self.form not in FORMS:
            raise ValueError(f"{self.id}: unknown model form {self.form!r} (known: {', '.join(FORMS)})")
        want, got = set(FORMS[self.form]), set(self.params)
        if want != got:
            raise ValueError(f"{self.id}: form {self.form} takes {sorted(want)}, not {sorted(got)}")
        for name, value in self.params.items():
            if min(value if isinstance(value, tuple) else (value,), default=-1.0) < 0:
                raise ValueError(f"{self.id}: {name} is negative or empty: {value}")
        if self.form in ("piecewise_linear", "log_log"):
            self._knots()
        return self

    def _knots(self) -> None:
        x, y = self.series("x"), self.series("y")
        if len(x) != len(y) or len(x) < 2 or list(x) != sorted(set(x)):
            raise ValueError(f"{self.id}: x and y need equal length of at least 2, x rising")
        if self.form == "piecewise_linear" and list(y) != sorted(y):
            raise ValueError(f"{self.id}: y falls; more work must not cost less")

    def value(self, name: str = "value") -> float:
        """A scalar parameter."""
        found = self.params[name]
        if isinstance(found, tuple):
            raise TypeError(f"{self.id}.{name} is a series")
        return found

    def series(self, name: str) -> tuple[float, ...]:
        """A parameter that is a series."""
        found = self.params[name]
        return found if isinstance(found, tuple) else (found,)

    def covers(self, **values: float) -> bool:
        """Whether the given variables lie inside the fitted domain."""
        return all(low <= values[name] <= high for name, (low, high) in self.domain.items() if name in values)


class Source(Record):
    """Something public that terms cite."""

    text: str
    licence: str = ""


class Profile(Record):
    """A calibration profile; see the module's text."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, ignored_types=(cached_property,)
    )

    schema_: Literal["hisparse-sim/calibration/1"] = Field(alias="schema")
    id: str
    kind: Literal["measured", "published", "synthetic"]
    hardware: Hardware
    inputs: dict[str, str] = Field(default={})
    """SHA-256 of each table that terms were fitted from."""
    sources: dict[str, Source]
    terms: tuple[Term, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Profile:
        seen: set[str] = set()
        for term in self.terms:
            if term.id in seen:
                raise ValueError(f"term {term.id} is given twice")
            seen.add(term.id)
            if term.source not in self.sources:
                raise ValueError(f"term {term.id} cites the source {term.source!r}, which is not listed")
        return self

    @cached_property
    def _by_id(self) -> dict[str, Term]:
        return {term.id: term for term in self.terms}

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the profile as canonical JSON."""
        text = json.dumps(
            self.model_dump(mode="json", by_alias=True, exclude_defaults=True),
            sort_keys=True,
            separators=(",", ":"),
        )
        return sha256(text.encode()).hexdigest()

    def find(self, term_id: str) -> Term | None:
        """The term of that name, if there is one."""
        return self._by_id.get(term_id)

    def term(self, term_id: str) -> Term:
        """The term of that name. Raises ``InputError`` where the profile lacks it."""
        found = self._by_id.get(term_id)
        if found is None:
            raise InputError(f"has no term {term_id!r}, so that part of a step has no price", where=self.id)
        return found

    def nearest(self, prefix: str, suffix: str, size: int) -> tuple[Term, bool]:
        """The term ``{prefix}{n}{suffix}`` with the smallest n >= ``size``, else the largest n.

        Returns it and whether n equals ``size``.
        """
        sizes = []
        for term_id in self._by_id:
            middle = term_id[len(prefix) : len(term_id) - len(suffix)]
            if term_id.startswith(prefix) and term_id.endswith(suffix) and middle.isdigit():
                sizes.append(int(middle))
        if not sizes:
            raise InputError(f"has no term {prefix}*{suffix}, so that part has no price", where=self.id)
        best = min((n for n in sizes if n >= size), default=max(sizes))
        return self._by_id[f"{prefix}{best}{suffix}"], best == size


def load_profile(name_or_path: str | Path) -> Profile:
    """Read a profile: the name of a shipped one, or a path to a JSON file.

    Raises ``InputError`` naming the file and the field that cannot be used.
    """
    path = _locate(name_or_path)
    check_regular(path)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except ValueError as error:
        raise InputError(f"is not JSON (truncated?): {error}", where=str(path)) from error
    found = raw.get("schema") if isinstance(raw, dict) else None
    if found != SCHEMA:
        raise InputError(f"schema is {found!r}; this version reads {SCHEMA!r}", where=str(path))
    try:
        return Profile.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "profile"
        raise InputError(f"{field}: {first['msg']}", where=str(path)) from error


def profile_for(node: NodeSpec, calibration: str | None = None) -> Profile:
    """The profile that prices steps on ``node``: ``calibration`` if given, else the node's own.

    Raises ``InputError`` for a node that has none: it answers capacity only.
    """
    name = calibration or node.calibration
    if name is None:
        raise InputError(
            f"capacity only: no calibration profile prices a step on {node.name} ({node.gpu.name}); "
            "memory and concurrency can be asked, seconds cannot. Give `calibration:` a profile of that "
            "GPU to simulate time",
            where=f"node {node.name}",
        )
    return load_profile(name)


def _locate(name_or_path: str | Path) -> Path:
    path = Path(name_or_path)
    if path.suffix == ".json" or path.exists():
        return path
    from hisparse_sim.scenario.catalogue import configs_dir

    folder = configs_dir() / "calibrations"
    shipped = folder / f"{name_or_path}.json"
    if not shipped.exists():
        known = ", ".join(sorted(p.stem for p in folder.glob("*.json"))) or "none"
        raise InputError(f"no such calibration profile; shipped: {known}", where=str(name_or_path))
    return shipped
