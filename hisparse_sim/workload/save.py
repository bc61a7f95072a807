"""A workload as a file that plays again exactly: the plain format with all that a session holds.

Lines of JSON: the first says the format and the clients; each other is a request, those of a session one
after the other. Parquet: the same as columns, with the first line in the metadata. What is said is kept as
it is, in one of two ways. ``segments`` are [stream, first token, tokens]; two requests share what the same
streams say from the start on. ``hash_ids`` are one for each ``block_tokens`` of a prompt and all before them,
valid within ``scope``; the first ``kept_ids`` are those of the row above and not written again.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from hisparse_sim.errors import InputError
from hisparse_sim.workload.first import first_sessions
from hisparse_sim.workload.lengths import Ints
from hisparse_sim.workload.request import BlockHashes, Session, Workload
from hisparse_sim.workload.traces.formats import PLAIN_HEADER
from hisparse_sim.workload.traces.parquet import META

_ROWS = 8192


def save(
    workload: Workload,
    path: Path,
    *,
    about: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write ``workload`` to a .jsonl, .jsonl.gz or .parquet file; the number of requests.

    With a limit the file holds what may be among the first requests (``first_sessions``), and the limit.
    ``about``: what else the file should say of where it comes from. ``progress`` is told how many requests
    were written, now and then. The same workload gives the same bytes. The file appears when it is whole.
    Raises InputError.
    """
    head: dict[str, Any] = {"format": PLAIN_HEADER, "concurrency": workload.concurrency}
    if workload.limit is not None:
        head["limit"] = workload.limit
    head |= about or {}
    name = path.name.lower()
    if name.endswith((".jsonl", ".jsonl.gz")):
        write = _write_packed if name.endswith(".gz") else _write_lines
    elif name.endswith(".parquet"):
        write = _write_parquet
    else:
        raise InputError("is not a name that ends in .jsonl, .jsonl.gz or .parquet", where=f"--out {path}")
    try:
        return _whole(path, lambda file: write(file, head, _rows(workload, progress)))
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", where=f"--out {path}") from None


def _rows(workload: Workload, progress: Callable[[int], None] | None) -> Iterator[dict[str, Any]]:
    count = 0
    for session in first_sessions(workload):
        yield from _session_rows(session)
        before, count = count, count + len(session.requests)
        if progress is not None and count // _ROWS > before // _ROWS:
            progress(count)


def _session_rows(session: Session) -> Iterator[dict[str, Any]]:
    above: Ints = np.zeros(0, dtype=np.int64)
    for place, request in enumerate(session.requests):
        row: dict[str, Any] = {
            "session": session.id,
            "id": request.id,
            "arrival_s": session.start_s,
            "prompt_tokens": request.prompt_tokens,
            "output_tokens": request.output_tokens,
            "after": list(request.after),
            "delay_s": request.delay_s,
            "priority": request.priority,
        }
        if isinstance(request.content, BlockHashes):
            scope, ids, block_tokens = request.content
            kept = _in_common(above, ids)
            row |= {"scope": scope, "block_tokens": block_tokens, "kept_ids": kept}
            row["hash_ids"] = ids[kept:].tolist()
            above = ids
        else:
            row["segments"] = [list(segment) for segment in request.content]
        if session.tags and not place:
            row["tags"] = session.tags
        yield row


def _in_common(above: Ints, ids: Ints) -> int:
    count = min(len(above), len(ids))
    differing = np.flatnonzero(above[:count] != ids[:count])
    return int(differing[0]) if len(differing) else count


def _whole(path: Path, write: Callable[[IO[bytes]], int]) -> int:
    """Write beside ``path`` and move there, so that a file is all there or not at all."""
    handle, made = tempfile.mkstemp(prefix=".workload-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            count = write(file)
        umask = os.umask(0)
        os.umask(umask)
        Path(made).chmod(0o666 & ~umask)
        Path(made).replace(path)
    finally:
        Path(made).unlink(missing_ok=True)
    return count


def _write_lines(file: IO[bytes], head: Mapping[str, Any], rows: Iterator[dict[str, Any]]) -> int:
    count = 0
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    file.write((encode(head) + "\n").encode())
    for row in rows:
        file.write((encode(row) + "\n").encode())
        count += 1
    return count


def _write_packed(file: IO[bytes], head: Mapping[str, Any], rows: Iterator[dict[str, Any]]) -> int:
    # Without name and time, so that the same workload gives the same bytes.
    packed = gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=6)
    with packed, io.BufferedWriter(packed, 2**20) as lines:
        return _write_lines(lines, head, rows)


def _write_parquet(file: IO[bytes], head: Mapping[str, Any], rows: Iterator[dict[str, Any]]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    piece = pa.struct([("stream", pa.string()), ("start", pa.int64()), ("length", pa.int64())])
    schema = pa.schema(
        {
            "session": pa.string(),
            "id": pa.string(),
            "arrival_s": pa.float64(),
            "prompt_tokens": pa.int64(),
            "output_tokens": pa.int64(),
            "after": pa.list_(pa.string()),
            "delay_s": pa.float64(),
            "priority": pa.int64(),
            "segments": pa.list_(piece),
            "scope": pa.string(),
            "block_tokens": pa.int64(),
            "kept_ids": pa.int64(),
            "hash_ids": pa.list_(pa.int64()),
            "tags": pa.string(),
        },
        metadata={META: json.dumps(head)},
    )
    count = 0
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        while part := list(itertools.islice(rows, _ROWS)):
            for row in part:
                if row.get("segments"):
                    row["segments"] = [dict(zip(piece.names, s, strict=True)) for s in row["segments"]]
                if "tags" in row:
                    row["tags"] = json.dumps(row["tags"], ensure_ascii=False)
            columns = {name: [row.get(name) for row in part] for name in schema.names}
            writer.write_table(pa.table(columns, schema=schema))
            count += len(part)
    return count
