"""Turns plain mappings into records, and what pydantic refuses into one sentence a person can use."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.units import parse_tokens
from hisparse_sim.scenario.yaml_file import line_of

R = TypeVar("R", bound=BaseModel)
Keys = tuple[str | int, ...]

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
_KINDS = ("conversations", "poisson", "stream", "trace", "open", "agentic-coding", "documents")
_BRANCHES = ("number", "distribution")
"""Names that pydantic adds to a place: of a field that is a number or a distribution of one."""
_TAGGED = ("workload", "arrivals", "distribution")
"""Fields after which it adds the kind that was given."""
_NOTHING: Mapping[tuple[str, ...], str] = MappingProxyType({})
_SHOWN = 3
"""Further problems of one file are named up to this many."""


def build(
    record: type[R], data: Mapping[str, Any], *, file: str, given: Mapping[tuple[str, ...], str] = _NOTHING
) -> R:
    """A ``record`` from ``data``, which stands in ``file``.

    ``given`` says which fields came from elsewhere, and from where (``--set a.b=1``). Raises InputError
    naming the place, field, value and what would be right.
    """
    try:
        return record.model_validate(_human_tokens(data, (), file, given))
    except ValidationError as error:
        raise explain(error, record, file=file, given=given) from None


def _human_tokens(data: Any, at: Keys, file: str, given: Mapping[tuple[str, ...], str]) -> Any:
    """``data`` with ``128k`` and ``1M`` turned to numbers in fields that count tokens."""
    if not isinstance(data, Mapping):
        return data
    out: dict[Any, Any] = {}
    for key, value in data.items():
        here = (*at, key)
        # What is inside a field of tokens is tokens, too: {kind: uniform, low: 8k, high: 128k}.
        counts = key != "kind" and any(
            isinstance(k, str) and (k.endswith("_tokens") or k in _TOKEN_FIELDS) for k in here
        )
        if counts and isinstance(value, str) and value != "auto":
            value = parse_tokens(value, where=locate(file, here, given))
        out[key] = _human_tokens(value, here, file, given)
    return out


def nearest(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'`` or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}" if close else ""


def explain(
    error: ValidationError,
    record: type[BaseModel],
    *,
    file: str,
    given: Mapping[tuple[str, ...], str] = _NOTHING,
) -> InputError:
    """One error for all that pydantic found: the first with its place, a few more by field."""
    problems: dict[Keys, list[str]] = {}
    # A misspelt field is also a missing one: name the misspelling first.
    order = {"extra_forbidden": 0, "missing": 2}
    for detail in sorted(error.errors(include_url=False), key=lambda d: order.get(d["type"], 1)):
        keys = _path(detail["loc"])
        text = _sentence(detail, record, keys)
        known = problems.setdefault(keys, [])
        if text not in known:
            known.append(text)
    (first, texts), *others = problems.items()
    message = ", and ".join(texts)
    for keys, more in others[:_SHOWN]:
        message += f"; {'.'.join(map(str, keys))}: {', and '.join(more)}"
    if len(others) > _SHOWN:
        message += f"; and {len(others) - _SHOWN} more"
    return InputError(message, where=locate(file, first, given))


def locate(file: str, keys: Keys, given: Mapping[tuple[str, ...], str] = _NOTHING) -> str:
    """``file:line: engine.tp``, or the override that set it; overrides inside it are named too."""
    field = ".".join(map(str, keys))
    if holders := [path for path in given if path == keys[: len(path)]]:
        path = max(holders, key=len)  # of --set a={...} and --set a.b=1, the latter set a.b
        return given[path] if len(path) == len(keys) else f"{given[path]}: {field}"
    line = line_of(Path(file), keys) if keys and file else None
    at = f"{file}:{line}" if line else file
    where = f"{at}: {field}" if at and field else at or field
    inside = [place for path, place in given.items() if path[: len(keys)] == keys]
    return f"{where} (with {', '.join(inside)})" if inside else where


def _path(loc: Sequence[str | int]) -> Keys:
    """The place in the file: without the names pydantic adds for branches of a union."""
    branch = re.compile(r"(constrained-|literal\[|function-|nullable|tagged-union)|^(int|float|str|bool)$")
    return tuple(
        p
        for before, p in zip(("", *loc), loc, strict=False)
        if not (isinstance(p, str) and (branch.search(p) or p in _BRANCHES or before in _TAGGED))
    )


def _sentence(detail: ErrorDetails, record: type[BaseModel], path: Sequence[str | int]) -> str:
    kind, value, name = detail["type"], detail["input"], str(path[-1]) if path else ""
    context: dict[str, Any] = dict(detail.get("ctx") or {})
    if kind == "extra_forbidden":
        known = _field_names(record, detail["loc"][:-1])
        near = nearest(name, known)
        return f"unknown field{near}" if near or not known else f"unknown field; known are {', '.join(known)}"
    if kind == "missing":
        return "missing; it has no default"
    if kind == "value_error":
        return str(context.get("error", detail["msg"]))
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        given = context.get("tag")
        known = str(context.get("expected_tags", "")).replace("'", "").split(", ")
        tags = ", ".join(_KINDS if name == "workload" else known)
        if not given:
            return f"kind is missing; one of {tags}" if name == "workload" else "kind is missing"
        return f"kind {given!r} is unknown; one of {tags}"
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
    return f"{value!r} has a unit; this field is in {unit}, write {number * size:.15g}"


def _field_names(record: type[BaseModel], loc: Sequence[str | int]) -> list[str]:
    """Names that the record at ``loc`` (as pydantic gives it) inside ``record`` knows."""
    schema: dict[str, Any] = TypeAdapter(record).json_schema()
    definitions = schema.get("$defs", {})

    def follow(node: dict[str, Any]) -> list[dict[str, Any]]:
        """The records that ``node`` can be; a union told apart by a tag stays one node."""
        if "$ref" in node:
            return follow(definitions[node["$ref"].rsplit("/", 1)[-1]])
        if branches := node.get("anyOf") or (node.get("oneOf") if "discriminator" not in node else None):
            return [leaf for branch in branches for leaf in follow(branch)]
        return [node]

    nodes = follow(schema)
    for key in loc:
        if key in _BRANCHES:
            continue
        steps = []
        for node in nodes:
            tags = node.get("discriminator", {}).get("mapping", {})
            if key in tags:
                steps.append({"$ref": tags[key]})
            else:
                steps.append(node.get("items" if isinstance(key, int) else "properties", {}))
                steps[-1] = steps[-1] if isinstance(key, int) else steps[-1].get(key, {})
        nodes = [leaf for step in steps for leaf in follow(step)]
    return sorted({name for node in nodes for name in node.get("properties", {})})
