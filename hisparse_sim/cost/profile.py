"""Calibration profiles: where every second that this package prices comes from.

A profile is one JSON file, schema ``hisparse-sim/calibration/1``: the machine, how it was measured,
samples, terms (named forms with coefficients, the domain they were fitted in, the errors of the fit)
and the sources they cite. Profiles lie over each other: what was measured here hides what a user
states, and that hides what was published.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Literal

import msgspec
from pydantic import ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from hisparse_sim.cost.hardware import Build, Hardware
from hisparse_sim.cost.roles import misfit
from hisparse_sim.cost.sample import Sample
from hisparse_sim.cost.term import FitError, Grade, Term
from hisparse_sim.errors import InputError
from hisparse_sim.scenario.base import Record
from hisparse_sim.scenario.node import NodeSpec
from hisparse_sim.scenario.validate import explain
from hisparse_sim.scenario.yaml_file import check_regular

__all__ = ["SCHEMA", "FitError", "Grade", "Profile", "Source", "Term", "load_profile", "profile_for"]

SCHEMA = "hisparse-sim/calibration/1"

ORDER = ("measured", "user", "published", "synthetic")
"""Kinds of profile, the first hiding the later ones' terms of the same name."""


class Source(Record):
    """Something public that terms cite."""

    text: str
    licence: str = ""


class Profile(Record):
    """A calibration profile; see the module's text.

    ``inputs``: SHA-256 of each table that terms were fitted from. ``over``: names or paths of the
    profiles below, whose terms stand where this one has none.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, ignored_types=(cached_property,)
    )

    schema_: Literal["hisparse-sim/calibration/1"] = Field(alias="schema")
    id: str = Field(min_length=1)
    kind: Literal["measured", "user", "published", "synthetic"]
    created: str = ""
    hardware: Hardware
    build: Build = Build()
    over: tuple[str, ...] = ()
    inputs: dict[str, str] = Field(default={})
    sources: dict[str, Source]
    samples: tuple[Sample, ...] = ()
    terms: tuple[Term, ...]
    _layers: tuple[tuple[str, str], ...] = PrivateAttr(default=())

    @property
    def layers(self) -> tuple[tuple[str, str], ...]:
        """(id, GPU) of this profile and of those below that have terms in it."""
        return self._layers or ((self.id, self.hardware.gpu),)

    @model_validator(mode="after")
    def _consistent(self) -> Profile:
        seen: set[str] = set()
        for term in self.terms:
            if term.id in seen:
                raise ValueError(f"term {term.id} is given twice")
            seen.add(term.id)
            if term.source not in self.sources:
                raise ValueError(f"term {term.id} cites the source {term.source!r}, which is not listed")
            if wrong := misfit(term):
                raise ValueError(wrong)
        return self

    @cached_property
    def _by_id(self) -> dict[str, Term]:
        return {term.id: term for term in self.terms}

    @cached_property
    def hash(self) -> str:
        """SHA-256 of what the profile states, as JSON with sorted keys; fields left out count as defaults."""
        data = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return sha256(msgspec.json.encode(data, order="sorted")).hexdigest()

    @cached_property
    def _known_sizes(self) -> dict[tuple[str, str], list[int]]:
        return {}

    def find(self, term_id: str) -> Term | None:
        """The term of that name, if there is one."""
        return self._by_id.get(term_id)

    def term(self, term_id: str) -> Term:
        """The term of that name. Raises ``InputError`` where the profile lacks it."""
        found = self._by_id.get(term_id)
        if found is None:
            raise InputError(f"has no term {term_id!r}, so that part of a step has no price", where=self.id)
        return found

    def nearest(self, prefix: str, suffixes: Sequence[str], size: int) -> tuple[Term, bool]:
        """The term ``{prefix}{n}{suffix}`` with the smallest n >= ``size``, else the largest n.

        Of the first of ``suffixes`` that any term has. Returns it and whether n equals ``size``. Raises
        ``InputError`` where there is none.
        """
        for suffix in suffixes:
            if sizes := self._sizes(prefix, suffix):
                best = min((n for n in sizes if n >= size), default=max(sizes))
                return self._by_id[f"{prefix}{best}{suffix}"], best == size
        raise InputError(f"has no term {prefix}*{suffixes[0]}, so that part has no price", where=self.id)

    def _sizes(self, prefix: str, suffix: str) -> list[int]:
        """Every n of terms named ``{prefix}{n}{suffix}``; terms are looked through once."""
        found = self._known_sizes.get((prefix, suffix))
        if found is None:
            middles = (
                term_id[len(prefix) : len(term_id) - len(suffix)]
                for term_id in self._by_id
                if term_id.startswith(prefix) and term_id.endswith(suffix)
            )
            found = self._known_sizes[prefix, suffix] = [int(n) for n in middles if n.isdigit()]
        return found

    def laid_over(self, below: Sequence[Profile]) -> Profile:
        """One profile of this and those ``below``: each term from the highest that has it.

        Measured profiles are above user's ones, those above published ones; among equals the first
        given. The result keeps this profile's id, hardware and samples; sources of the same name and
        another text are refused.
        """
        if not below:
            return self
        terms: dict[str, Term] = {}
        sources: dict[str, Source] = {}
        layers = dict.fromkeys(self.layers)
        for profile in sorted((self, *below), key=lambda p: ORDER.index(p.kind)):
            for name, source in profile.sources.items():
                if sources.setdefault(name, source) != source:
                    raise InputError(
                        f"source {name!r} means something else in {profile.id}; rename one", where=self.id
                    )
            before = len(terms)
            for term in profile.terms:
                terms.setdefault(term.id, term)
            if len(terms) > before:
                layers.update(dict.fromkeys(profile.layers))
        inputs = {name: digest for p in (*reversed(below), self) for name, digest in p.inputs.items()}
        found = self.model_copy(
            update={"terms": tuple(terms.values()), "sources": sources, "inputs": inputs, "over": ()}
        )
        # A copy takes along what was computed from the old terms.
        for name in ("_by_id", "_known_sizes", "hash"):
            found.__dict__.pop(name, None)
        found._layers = tuple(layers)
        return found


def load_profile(name_or_path: str | Path) -> Profile:
    """Read a profile with those it lies over: the name of a shipped one, or a path to a JSON file.

    Several, separated by commas, lie over each other. Raises ``InputError`` naming the file and the
    field that cannot be used.
    """
    names = [part.strip() for part in str(name_or_path).split(",")] if not _exists(name_or_path) else []
    if len(names) > 1:
        first, *rest = (_resolved(name, ()) for name in names)
        return first.laid_over(rest)
    return _resolved(name_or_path, ())


def read_profile(name_or_path: str | Path) -> Profile:
    """One profile file alone, without those it lies over."""
    path = _locate(name_or_path)
    try:
        stamp = path.stat().st_mtime_ns
    except OSError:
        stamp = 0
    return _read(path, stamp)


@lru_cache(maxsize=16)
def _read(path: Path, _stamp: int) -> Profile:
    raw = read_json(path, SCHEMA)
    try:
        return Profile.model_validate(raw)
    except ValidationError as error:
        raise explain(error, Profile, file=str(path)) from None


def _resolved(name_or_path: str | Path, above: tuple[Path, ...]) -> Profile:
    path = _locate(name_or_path).resolve()
    if path in above:
        raise InputError("lies over itself", where=str(path))
    profile = read_profile(name_or_path)
    below = []
    for name in profile.over:
        beside = path.parent / name
        below.append(_resolved(beside if beside.suffix == ".json" else name, (*above, path)))
    return profile.laid_over(below)


def read_json(path: Path, schema: str) -> dict[str, object]:
    """The object in a JSON file that says it follows ``schema``. Raises ``InputError``."""
    check_regular(path)
    try:
        data = path.read_bytes()
        try:
            raw = msgspec.json.decode(data)
        except ValueError:  # slower, but it names the line, and takes NaN to the field that has it
            raw = json.loads(data.decode())
            # Refuses half an emoji, which has no bytes: the profile could not be hashed.
            json.dumps(raw, ensure_ascii=False).encode()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not JSON (truncated?): {error}", where=str(path)) from None
    if not isinstance(raw, dict):
        raise InputError(f"holds a {type(raw).__name__}, not an object with a schema", where=str(path))
    found = raw.get("schema")
    if found != schema:
        raise InputError(f"schema is {found!r}; this version reads {schema!r}", where=str(path))
    return raw


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


def list_profiles() -> list[str]:
    """Names of the shipped profiles."""
    from hisparse_sim.scenario.catalogue import configs_dir

    return sorted(p.stem for p in (configs_dir() / "calibrations").glob("*.json"))


def _exists(name_or_path: str | Path) -> bool:
    try:
        return Path(name_or_path).exists()
    except OSError:  # too long, a null character
        return False


def _locate(name_or_path: str | Path) -> Path:
    path = Path(name_or_path)
    if path.suffix == ".json" or _exists(path):
        return path
    from hisparse_sim.scenario.catalogue import configs_dir

    shipped = configs_dir() / "calibrations" / f"{name_or_path}.json"
    if not _exists(shipped):
        known = ", ".join(list_profiles()) or "none"
        raise InputError(f"no such calibration profile; shipped: {known}", where=str(name_or_path))
    return shipped
