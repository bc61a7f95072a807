"""The fast lane: whole blocks of lines, read by Arrow.

A block goes this way only if all of it reads as the fields it should have; whatever is odd or wrong in it is
left to the slow lane, which reads line by line and names what it cannot use. Both give the same columns.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hisparse_sim.scenario.workload import MAX_COUNT, MAX_S
from hisparse_sim.workload.lengths import Floats, Ints
from hisparse_sim.workload.traces.batch import Batch, IdLists
from hisparse_sim.workload.traces.blocks import Block
from hisparse_sim.workload.traces.rows import KINDS, MAX_CLOCK, YEARS, clock, id_list, pause, text, whole

Lane = Callable[[Block], Batch | None]
"""The columns of a block, or none if it must be read line by line."""

_PIECE_BYTES = 2**20
_EVERY = ("arrival_s", "prompt_tokens", "output_tokens", "hash_ids")
_MAX_DATE_S = float(np.datetime64(str(YEARS[1] + 1), "s").astype(np.int64))


def json_lane(line: bytes, fields: Mapping[str, str]) -> Lane | None:
    """For lines that look like ``line``, with the (dotted) names of ``fields``; none if Arrow has no type."""
    import pyarrow as pa
    import pyarrow.json as pa_json

    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    types = {field: _type(field, _at(row, name)) for field, name in fields.items()}
    if not isinstance(row, dict) or None in types.values():
        return None
    schema = pa.schema(_nested({name.split(".")[0]: None for name in fields.values()}, fields, types))
    read = pa_json.ReadOptions(block_size=_PIECE_BYTES)
    parse = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")

    def lane(block: Block) -> Batch | None:
        if not _is_text(block.text):
            return None
        try:
            table = pa_json.read_json(pa.py_buffer(block.text), read_options=read, parse_options=parse)
            return _batch(block, {field: _column(table, name) for field, name in fields.items()}, fields)
        except (pa.ArrowException, ValueError):
            return None

    return lane


def table_lane(line: bytes, header: Sequence[str], fields: Mapping[str, str]) -> Lane | None:
    """For a table with ``header`` whose rows look like ``line``."""
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    row = dict(zip(header, line.decode(errors="replace").strip().split(","), strict=False))
    types = {field: _type(field, _number_or_text(row.get(name, ""))) for field, name in fields.items()}
    if None in types.values():
        return None
    convert = pa_csv.ConvertOptions(
        column_types={fields[field]: type_ for field, type_ in types.items()},
        include_columns=list(fields.values()),
        null_values=["", "null"],
        strings_can_be_null=True,
        quoted_strings_can_be_null=True,
    )
    read = pa_csv.ReadOptions(block_size=_PIECE_BYTES, column_names=list(header))

    def lane(block: Block) -> Batch | None:
        if not _is_text(block.text):
            return None
        try:
            table = pa_csv.read_csv(pa.py_buffer(block.text), read_options=read, convert_options=convert)
            return _batch(block, {field: table.column(name) for field, name in fields.items()}, fields)
        except (pa.ArrowException, ValueError):
            return None

    return lane


def _type(field: str, example: Any) -> Any:
    """The Arrow type of a field whose first value is ``example``; none if there is none."""
    import pyarrow as pa

    kind = KINDS[field]
    if kind is clock:
        return pa.string() if isinstance(example, str) else pa.float64()
    if kind is text:
        return pa.int64() if isinstance(example, int) else pa.string()
    if kind in (whole, pause):  # 7.0 is a whole number, too
        return pa.float64()
    return pa.list_(pa.int64()) if kind is id_list else None


def _nested(names: Mapping[str, None], fields: Mapping[str, str], types: Mapping[str, Any]) -> list[Any]:
    """Fields of a schema: ``usage.prompt_tokens`` is one within the struct ``usage``."""
    import pyarrow as pa

    found = []
    for name in names:
        inside = {f: n[len(name) + 1 :] for f, n in fields.items() if n.startswith(name + ".")}
        if inside:
            struct = _nested({n.split(".")[0]: None for n in inside.values()}, inside, types)
            found.append(pa.field(name, pa.struct(struct)))
        else:
            field = next(f for f, n in fields.items() if n == name)
            found.append(pa.field(name, types[field]))
    return found


def _column(table: Any, name: str) -> Any:
    import pyarrow.compute as pc

    first, *rest = name.split(".")
    column = table.column(first)
    for key in rest:
        column = pc.struct_field(column, key)
    return column


def _at(row: Any, name: str) -> Any:
    for key in name.split("."):
        row = row.get(key) if isinstance(row, dict) else None
    return row


def _batch(block: Block, columns: dict[str, Any], fields: Mapping[str, str]) -> Batch:
    """The block as columns. Raises ValueError if a line has no row."""
    count = block.text.count(b"\n") + (not block.text.endswith(b"\n"))
    if any(len(column) != count for column in columns.values()):
        raise ValueError("lines without a row")
    return batch_of(np.arange(block.line, block.line + count, dtype=np.int64), columns, fields)


def batch_of(lines: Ints, columns: dict[str, Any], fields: Mapping[str, str]) -> Batch:
    """Columns of Arrow as a batch; rows without a length are among its ``problems``.

    ``fields``: the name of each column in the file. Raises ValueError or ArrowException if there is
    anything in a column that the field cannot be, or that only the slow lane reads.
    """
    columns = {field: _joined(column) for field, column in columns.items()}
    if slow := [field for field in columns if field not in _EVERY and KINDS[field] not in _READ]:
        raise ValueError(f"{slow} are read row by row")
    prompts, outputs = (_wholes(columns.pop(field)) for field in ("prompt_tokens", "output_tokens"))
    arrivals, ids = columns.pop("arrival_s", None), columns.pop("hash_ids", None)
    batch = Batch(
        lines,
        np.full(len(lines), np.nan) if arrivals is None else _times(arrivals),
        prompts.fill_null(0).to_numpy(),
        outputs.fill_null(0).to_numpy(),
        None if ids is None else _id_lists(ids),
        {field: _READ[KINDS[field]](column) for field, column in columns.items()},
    )
    if not prompts.null_count and not outputs.null_count:
        return batch
    missing = [lengths.is_null().to_numpy(zero_copy_only=False) for lengths in (prompts, outputs)]
    problems = [
        (int(lines[i]), f"'{fields['prompt_tokens' if missing[0][i] else 'output_tokens']}' is missing")
        for i in np.flatnonzero(missing[0] | missing[1])
    ]
    batch = batch.take(np.flatnonzero(~(missing[0] | missing[1])))
    batch.problems = problems
    return batch


def _joined(column: Any) -> Any:
    """A column in one piece."""
    return column if not hasattr(column, "combine_chunks") else column.combine_chunks()


def _wholes(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise ValueError("no numbers")
    column = column.cast(pa.int64())  # refuses fractions
    ends = pc.min_max(column).as_py()
    if max(abs(ends["min"] or 0), abs(ends["max"] or 0)) > MAX_COUNT:
        raise ValueError("too large")
    return column


def _times(column: Any) -> Floats:
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ns", column.type.tz)).cast(pa.int64())
        times: Floats = column.to_numpy(zero_copy_only=False) / 1e9
        if np.any((times < 0) | (times >= _MAX_DATE_S)):
            raise ValueError("not of these times")
        return times
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        times = column.cast(pa.float64()).to_numpy(zero_copy_only=False).copy()
        if np.any(np.isinf(times) | (np.abs(times) >= MAX_CLOCK)):
            raise ValueError("infinite")
        return times
    if not pa.types.is_string(column.type):
        raise ValueError("no times")
    texts = column.to_pylist()
    try:  # dates all alike, as numpy reads them
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if min(len(at or "") for at in texts) < len("2023-11-16"):
                raise ValueError(texts)
            if not (str(YEARS[0]) <= min(texts) and max(texts) < str(YEARS[1] + 1)):
                raise ValueError(texts)
            return np.asarray(np.array(texts, dtype="datetime64[ns]").astype(np.int64) / 1e9)
    except (ValueError, UserWarning, DeprecationWarning):  # with a zone, for one
        return np.array([np.nan if at is None else clock(at) for at in texts], dtype=np.float64)


def _id_lists(column: Any) -> IdLists:
    import pyarrow as pa
    import pyarrow.compute as pc

    lists = column.cast(pa.list_(pa.int64()))
    flat = pc.list_flatten(lists)
    if flat.null_count:
        raise ValueError("an id is null")
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    return IdLists(flat.to_numpy(), np.cumsum(lengths, dtype=np.int64))


def _texts(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_integer(column.type) or pa.types.is_string(column.type)):
        raise ValueError("no text")
    column = column.cast(pa.string())
    empty = pc.equal(column, "")
    return pc.if_else(empty, None, column) if pc.any(empty).as_py() else column


def _pauses(column: Any) -> Any:
    import pyarrow as pa

    column = column.cast(pa.float64())
    values = column.drop_null().to_numpy()
    if not np.all((values >= 0) & (values <= MAX_S)):
        raise ValueError("no pauses")
    return column


_READ: dict[Callable[[Any], Any], Callable[[Any], Any]] = {whole: _wholes, text: _texts, pause: _pauses}
"""How a column of a kind is read, other than those of every batch."""


def _number_or_text(word: str) -> float | str:
    """A number if it is one. Text of a table is never a number to Arrow, whatever the first looks like."""
    try:
        return float(word)
    except ValueError:
        return word


def _is_text(block: bytes) -> bool:
    if b"\0" in block:
        return False
    if block.isascii():
        return True
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True
