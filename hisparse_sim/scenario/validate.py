"""Turns plain mappings into records, and what pydantic refuses into one sentence a person can use."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.units import parse_tokens
from hisparse_sim.scenario.yaml_file import line_of

R = TypeVar("R", bound=BaseModel)

_TOKEN_FIELDS = frozenset(
    {"max_model_len", "max_num_batched_tokens", "long_prefill_token_threshold", "hot_rows", "kv_tokens"}
)
_UNIT_OF_SUFFIX = {
    "_gib": ("GiB", {"kib": 2**-20, "mib": 2**-10, "gib": 1.0, "tib": 2.0**10, "b": 2.0**-30}),
    "_bytes": ("bytes", {"b": 1.0}),
    "_s": ("seconds", {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "h": 3600.0}),
}
_DECIMAL = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_BINARY = {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_SHOWN = 3
"""Further problems of one file are named up to this many."""


def build(record: type[R], data: Mapping[str, Any], *, file: str, prefix: str = "") -> R:
    """A ``record`` from ``data``, which stands in ``file`` under ``prefix`` (``engine.``).

    Raises InputError naming file, field, value and what would be right.
    """
    try:
        return record.model_validate(human_tokens(data, file=file, prefix=prefix))
    except ValidationError as error:
        raise explain(error, record, file=file, prefix=prefix) from None


def human_tokens(data: Any, *, file: str, prefix: str = "") -> Any:
    """``data`` with ``128k`` and ``1M`` turned to numbers in fields that count tokens."""
    if isinstance(data, Mapping):
        out: dict[str, Any] = {}
        for key, value in data.items():
            counts = isinstance(key, str) and (key.endswith("_tokens") or key in _TOKEN_FIELDS)
            if counts and isinstance(value, str) and value != "auto":
                value = parse_tokens(value, where=_where(file, f"{prefix}{key}", ()))
            out[key] = human_tokens(value, file=file, prefix=f"{prefix}{key}.")
        return out
    return data


def nearest(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def explain(error: ValidationError, record: type[BaseModel], *, file: str, prefix: str = "") -> InputError:
    """One error for all that pydantic found, the first with its place."""
    problems: dict[str, list[str]] = {}
    first: tuple[str | int, ...] = ()
    for detail in error.errors(include_url=False):
        path = _path(detail["loc"])
        first = first or path
        text = _sentence(detail, record, path)
        known = problems.setdefault(prefix + ".".join(map(str, path)), [])
        if text not in known:
            known.append(text)
    fields = list(problems)
    message = ", or ".join(problems[fields[0]])
    for field in fields[1 : 1 + _SHOWN]:
        message += f"; {field}: {', or '.join(problems[field])}"
    if len(fields) > 1 + _SHOWN:
        message += f"; and {len(fields) - 1 - _SHOWN} more"
    return InputError(message, where=_where(file, fields[0], (*_keys(prefix), *first)))


def _keys(prefix: str) -> tuple[str, ...]:
    return tuple(k for k in prefix.split(".") if k)


def _where(file: str, field: str, keys: Sequence[str | int]) -> str:
    line = line_of(Path(file), keys) if keys and file else None
    at = f"{file}:{line}" if line else file
    return f"{at}: {field}" if at and field else at or field


def _path(loc: Sequence[str | int]) -> tuple[str | int, ...]:
    """The place in the file: without the names pydantic adds for branches of a union."""
    branch = re.compile(r"(constrained-|literal\[|function-|nullable|tagged-union)|^(int|float|str|bool)$")
    kinds = ("conversations", "poisson", "stream", "trace")
    out = [p for p in loc if not (isinstance(p, str) and branch.search(p))]
    if len(out) > 1 and out[0] == "workload" and out[1] in kinds:
        del out[1]
    return tuple(out)


def _sentence(detail: ErrorDetails, record: type[BaseModel], path: Sequence[str | int]) -> str:
    kind, value, name = detail["type"], detail["input"], str(path[-1]) if path else ""
    context: dict[str, Any] = dict(detail.get("ctx") or {})
    if kind == "extra_forbidden":
        known = _field_names(record, path[:-1])
        near = nearest(name, known)
        return f"unknown field{near}" if near or not known else f"unknown field; known are {', '.join(known)}"
    if kind == "missing":
        return "missing; it has no default"
    if kind == "value_error":
        return str(context.get("error", detail["msg"]))
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tags = context.get("expected_tags", "")
        given = context.get("tag")
        return f"kind {given!r} is unknown; one of {tags}" if given else f"kind is missing; one of {tags}"
    shown = _shown(value)
    unit = _unit_hint(name, value)
    if unit:
        return unit
    rules: dict[str, Callable[[], str]] = {
        "greater_than": lambda: f"{shown} is not allowed, must be more than {context['gt']:g}",
        "greater_than_equal": lambda: f"{shown} is not allowed, must be at least {context['ge']:g}",
        "less_than": lambda: f"{shown} is not allowed, must be less than {context['lt']:g}",
        "less_than_equal": lambda: f"{shown} is not allowed, must be at most {context['le']:g}",
        "literal_error": lambda: (
            f"{shown} is not one of {context['expected']}{_near_literal(value, context)}"
        ),
        "int_parsing": lambda: f"{shown} is not a whole number",
        "int_type": lambda: f"{shown} is not a whole number",
        "int_from_float": lambda: f"{shown} is not a whole number",
        "float_parsing": lambda: f"{shown} is not a number",
        "float_type": lambda: f"{shown} is not a number",
        "finite_number": lambda: f"{shown} is not a finite number",
        "bool_parsing": lambda: f"{shown} is not true or false",
        "bool_type": lambda: f"{shown} is not true or false",
        "string_type": lambda: f"{shown} is not text",
        "model_type": lambda: f"{shown} is not a mapping of fields",
        "model_attributes_type": lambda: f"{shown} is not a mapping of fields",
        "tuple_type": lambda: f"{shown} is not a list",
    }
    if kind in rules:
        return rules[kind]()
    text = detail["msg"]
    return f"{shown}: {text[:1].lower()}{text[1:]}"


def _near_literal(value: Any, context: Mapping[str, Any]) -> str:
    return (
        nearest(value, re.findall(r"'([^']*)'", str(context["expected"]))) if isinstance(value, str) else ""
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _unit_hint(name: str, value: Any) -> str | None:
    """What to write when a number came with a unit of its own (``384GB`` in a field of GiB)."""
    match = (
        re.fullmatch(r"\s*([\d.]+(?:e[+-]?\d+)?)\s*([a-zA-Z]+)\s*", value) if isinstance(value, str) else None
    )
    suffix = next((s for s in _UNIT_OF_SUFFIX if name.endswith(s)), None)
    if match is None or suffix is None:
        return None
    unit, factors = _UNIT_OF_SUFFIX[suffix]
    try:
        number, word = float(match[1]), match[2].lower()
    except ValueError:
        return None
    size = factors.get(word)
    if size is None and suffix != "_s" and word in (_DECIMAL | _BINARY):
        size = (_DECIMAL | _BINARY)[word] / (2**30 if suffix == "_gib" else 1)
    if size is None:
        return f"{value!r} is not a number; this field is in {unit}, write the number alone"
    return f"{value!r} has a unit; this field is in {unit}, write {number * size:.12g}"


def _field_names(record: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """Names that the record at ``path`` inside ``record`` knows (of every branch of a union)."""
    schema: dict[str, Any] = TypeAdapter(record).json_schema()
    definitions = schema.get("$defs", {})

    def expand(nodes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        out = []
        for node in nodes:
            if "$ref" in node:
                node = definitions[node["$ref"].rsplit("/", 1)[-1]]
            branches = [*node.get("anyOf", ()), *node.get("oneOf", ())]
            out += expand(branches) if branches else [node]
        return out

    nodes = expand([schema])
    for key in path:
        nodes = expand(
            n["items"] if isinstance(key, int) and "items" in n else n.get("properties", {}).get(key, {})
            for n in nodes
        )
    return sorted({name for node in nodes for name in node.get("properties", {})})
