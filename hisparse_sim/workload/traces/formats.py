"""Formats of single requests: what each calls its fields, and how a file is told to be of one.

=============  =====================================================================================
mooncake       github.com/kvcache-ai/Mooncake FAST25-release: ``timestamp`` (ms), ids of blocks of 512
bailian        github.com/alibaba-edu/qwen-bailian-usagetraces-anon: ``chat_id``, ids of blocks of 16
azure          github.com/Azure/AzurePublicDataset LLM traces: TIMESTAMP,ContextTokens,GeneratedTokens
openai         logs of OpenAI-style servers: a time and ``usage``, at the top or in ``response(.body)``
plain          this package's own, and all that names its columns alike; see README
=============  =====================================================================================

Ids of blocks stand for all of the prompt up to the end of their block.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.validate import nearest
from hisparse_sim.scenario.workload import MAX_COUNT
from hisparse_sim.workload.traces.blocks import cells_of, read_head, text_of
from hisparse_sim.workload.traces.rows import KINDS

PLAIN_HEADER = "hisparse-sim/workload/1"
"""``format`` of the first line (or the metadata) of a saved workload."""


class Format(Struct, frozen=True):
    """``names``: of each field, what it may be called; the first that is there counts.

    ``unit_s``: seconds a tick of its clock; none: told from the first value. ``marks``: names (in lower
    case) that together tell this format from the others.
    """

    name: str
    names: Mapping[str, tuple[str, ...]]
    marks: tuple[str, ...] = ()
    unit_s: float | None = 1.0
    block_tokens: int | None = None


_OPENAI = ("usage", "response.usage", "response.body.usage", "body.usage")

FORMATS = (
    Format(
        "bailian",
        {
            "arrival_s": ("timestamp",),
            "prompt_tokens": ("input_length",),
            "output_tokens": ("output_length",),
            "hash_ids": ("hash_ids",),
        },
        marks=("chat_id", "input_length", "hash_ids"),
        block_tokens=16,
    ),
    Format(
        "mooncake",
        {
            "arrival_s": ("timestamp",),
            "prompt_tokens": ("input_length",),
            "output_tokens": ("output_length",),
            "hash_ids": ("hash_ids",),
        },
        marks=("timestamp", "input_length", "hash_ids"),
        unit_s=1e-3,
        block_tokens=512,
    ),
    Format(
        "azure",
        {
            "arrival_s": ("timestamp",),
            "prompt_tokens": ("contexttokens",),
            "output_tokens": ("generatedtokens",),
        },
        marks=("timestamp", "contexttokens", "generatedtokens"),
    ),
    Format(
        "openai",
        {
            "arrival_s": tuple(
                f"{place}{key}"
                for place in ("", "response.", "response.body.", "body.")
                for key in ("timestamp", "created", "created_at", "time", "start_time")
            ),
            "prompt_tokens": tuple(
                f"{u}.{key}" for u in _OPENAI for key in ("prompt_tokens", "input_tokens")
            ),
            "output_tokens": tuple(
                f"{u}.{key}" for u in _OPENAI for key in ("completion_tokens", "output_tokens")
            ),
            "id": ("id", "request_id", "response.id", "response.body.id", "body.id"),
        },
        marks=("usage",),
        unit_s=None,
    ),
    Format(
        "plain",
        {field: (field,) for field in KINDS}
        | {
            "arrival_s": ("arrival_s", "arrival_time", "timestamp", "start_time"),
            "prompt_tokens": (
                *("prompt_tokens", "input_tokens", "input_length", "input_len", "prompt_len"),
                *("input_toks", "request tokens"),
            ),
            "output_tokens": (
                *("output_tokens", "completion_tokens", "generated_tokens", "output_length", "output_len"),
                *("output_toks", "response tokens"),
            ),
            "id": ("id", "request_id"),
            "session": ("session", "session_id", "session id", "conversation_id"),
            "delay_s": ("delay_s", "think_time_s"),
        },
        unit_s=None,
    ),
)


class Layout(Struct, frozen=True):
    """How to read a file: its format, and the name in the file of each field it has.

    ``header``: the columns of a table, none for lines of JSON. ``first_line`` of the requests.
    ``meta``: what a saved workload says about itself.
    """

    format: Format
    fields: Mapping[str, str]
    first_line: int
    header: tuple[str, ...] | None
    meta: Mapping[str, Any]
    unused: tuple[str, ...]

    @property
    def from_first(self) -> bool:
        """Whether the first arrival is time 0; ``arrival_s`` says a time of the workload itself."""
        return self.fields.get("arrival_s") != "arrival_s"

    @property
    def played(self) -> bool:
        """Whether requests wait for those before them in their session."""
        return "delay_s" in self.fields or "after" in self.fields


def find_layout(path: Path, asked: str | None) -> Layout:
    """From the first lines of a file. Raises InputError naming the file and line."""
    head = read_head(path)
    if not head.strip():
        raise InputError("is empty", where=str(path))
    start = head.lstrip()[:1]
    if start == b"{":
        return _json_layout(path, head, asked)
    if start == b"[":
        raise InputError("is a JSON array; write one JSON object a line instead", where=f"{path}:1")
    return _table_layout(path, head, asked)


def layout_of(
    path: Path,
    names: Mapping[str, None],
    asked: str | None,
    *,
    first_line: int = 1,
    header: tuple[str, ...] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Layout:
    """The layout of a file whose requests have ``names``. Raises InputError if those needed are missing."""
    where = f"{path}:{max(1, first_line - 1 if header else first_line)}"
    _check_head(path, meta or {})
    known = {name.lower(): name for name in names}
    format_ = next(
        (f for f in FORMATS if f.name == asked or (not asked and _has_marks(f, known))), FORMATS[-1]
    )
    fields = {
        field: known[found]
        for field, candidates in format_.names.items()
        if (found := next((name for name in candidates if name in known), None))
    }
    for field in ("prompt_tokens", "output_tokens"):
        if field not in fields:
            wanted = format_.names[field]
            near = nearest(wanted[0], known)
            raise InputError(
                f"no {field.replace('_', ' ')} among {', '.join(list(names)[:12])}; a file of format"
                f" {format_.name} calls them {' or '.join(wanted[:3])}{near}",
                where=where,
            )
    if "hash_ids" in fields and not format_.block_tokens and "block_tokens" not in fields:
        raise InputError("has hash_ids and no block_tokens, the tokens that each stands for", where=where)
    for name in names:
        if name.lower() in map(str.lower, fields.values()) and name not in fields.values():
            other = known[name.lower()]
            raise InputError(f"{name!r} and {other!r} differ in case alone; keep one of them", where=where)
    used = {name.split(".")[0] for name in fields.values()} | set(fields.values())
    unused = tuple(name for name in names if "." not in name and name not in used)
    return Layout(format_, fields, first_line, header, meta or {}, unused)


def _check_head(path: Path, meta: Mapping[str, Any]) -> None:
    """Refuse counts of a saved workload that are none."""
    for name in ("concurrency", "limit"):
        value = meta.get(name)
        if value is not None and (type(value) is not int or not 0 < value <= MAX_COUNT):
            raise InputError(
                f"'{name}' is {value!r}; it must be a whole number above 0, or null", where=f"{path}:1"
            )


def _has_marks(format_: Format, known: Mapping[str, str]) -> bool:
    roots = {name.split(".")[-2] for name in known if "." in name} | set(known)
    return bool(format_.marks) and all(mark in roots for mark in format_.marks)


def _json_layout(path: Path, head: bytes, asked: str | None) -> Layout:
    names: dict[str, None] = {}
    first_line, meta = 1, {}
    for line in head.split(b"\n"):
        try:
            row = json.loads(text_of(line))
        except (ValueError, RecursionError):
            continue
        if not isinstance(row, dict):
            continue
        if not names and str(row.get("format", "")).startswith("hisparse-sim/"):
            if row["format"] != PLAIN_HEADER:
                raise InputError(
                    f"format is {row['format']!r}; this version reads {PLAIN_HEADER}", where=f"{path}:1"
                )
            first_line, meta = 2, row
            continue
        names |= dict.fromkeys(_names(row))
    if not names and not meta:
        raise InputError(
            "the first lines hold no JSON object with the fields of a request", where=f"{path}:1"
        )
    if not names:
        names = dict.fromkeys(("arrival_s", "prompt_tokens", "output_tokens"))
    return layout_of(path, names, asked, first_line=first_line, meta=meta)


def _names(row: Mapping[str, Any], place: str = "") -> Iterator[str]:
    for key, value in row.items():
        yield place + key
        if isinstance(value, dict) and place.count(".") < 3:
            yield from _names(value, f"{place}{key}.")


def _table_layout(path: Path, head: bytes, asked: str | None) -> Layout:
    where = f"{path}:1"
    line = ""
    try:
        line = text_of(head.split(b"\n")[0])
        header = tuple(name.strip() for name in cells_of(line))
    except ValueError as error:
        _check_separator(line, where)
        raise InputError(f"neither lines of JSON nor a table: {error}", where=where) from None
    if len(header) == 1:
        _check_separator(line, where)
    if all(_is_number(name) for name in header):
        raise InputError("the first line must name the columns", where=where)
    if twice := next((name for name in header if header.count(name) > 1), None):
        raise InputError(f"two columns have the name {twice!r}", where=where)
    return layout_of(path, dict.fromkeys(header), asked, first_line=2, header=header)


def _check_separator(line: str, where: str) -> None:
    """Refuse a header whose columns are apart by something else than commas."""
    other = next((mark for mark in (";", "\t", "|", " ") if mark in line.strip()), None)
    if other:
        raise InputError(f"columns are separated by {other!r}; they must be by a comma", where=where)


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True
