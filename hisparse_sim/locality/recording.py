"""Recorded selections of one request: the top-k positions of each decode step, from a file.

``.npy``: integers [steps, top-k], [steps, layers, top-k] or [steps, layers, queries, top-k]; -1 is no
row. ``.parquet``: a row a step and layer with columns ``step``, ``layer``, ``positions`` (list of
integers), and where there are several a step ``query``; ``context_tokens`` is optional.
docs/explanation/locality.md shows how to write them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.errors import InputError
from hisparse_sim.locality.selection import Positions
from hisparse_sim.scenario.yaml_file import check_regular

SUFFIXES = (".npy", ".parquet")
_SHAPES = "[steps, top-k], [steps, layers, top-k] or [steps, layers, queries, top-k]"
_MOST_POSITION = 1 << 27
"""Positions must lie below: an index of them is kept in memory (128 times a context of a million)."""


@dataclass(frozen=True)
class Recording:
    """One request's selections. ``contexts`` [steps]: tokens in context, if they are known.

    ``layers``: numbers of the recorded layers. Positions are checked when a layer is asked for.
    """

    path: Path
    layers: tuple[int, ...]
    steps: int
    queries: int
    topk_rows: int
    contexts: NDArray[np.int64] | None
    _of_layer: Callable[[int], NDArray[Any]]

    def layer(self, index: int) -> Positions:
        """Positions [steps, queries, top-k] of the layer in place ``index``. Raises ``InputError``."""
        found = self._of_layer(index)
        self._check(found, self.layers[index])
        return found.astype(np.int32, copy=False)

    def each(self) -> Iterator[Positions]:
        """All layers, in order."""
        return (self.layer(i) for i in range(len(self.layers)))

    def _check(self, found: NDArray[Any], layer: int) -> None:
        def refuse(bad: NDArray[np.bool_], words: Callable[[int, tuple[Any, ...]], str]) -> None:
            if bad.any():
                at = tuple(int(i) for i in np.argwhere(bad)[0])
                where = f"step {at[0]}, layer {layer}" + (f", query {at[1]}" if self.queries > 1 else "")
                raise InputError(f"{where}: {words(int(found[at[:3]]), at)}", where=str(self.path))

        refuse(found < -1, lambda v, _: f"position {v} is negative; positions count from 0, and -1 is no row")
        refuse(
            found >= _MOST_POSITION, lambda v, _: f"position {v:,} is none; they are below {_MOST_POSITION:,}"
        )
        if self.contexts is not None:
            limit = self.contexts
            refuse(
                found >= limit[:, None, None],
                lambda v, at: (
                    f"position {v:,} is beyond the context of {int(limit[at[0]]):,} tokens; it must be below"
                ),
            )
        rows = np.sort(found, axis=-1)
        twice = (rows[..., 1:] == rows[..., :-1]) & (rows[..., 1:] >= 0)
        if twice.any():
            step, query, k = (int(i) for i in np.argwhere(twice)[0])
            count = int(twice[step, query].sum())
            raise InputError(
                f"step {step}, layer {layer}{f', query {query}' if self.queries > 1 else ''}: position "
                f"{int(rows[step, query, k]):,} is there twice ({count} such); a selection has each row once",
                where=str(self.path),
            )


def read_recording(
    path: Path, *, context_tokens: int | None = None, topk_rows: int | None = None
) -> Recording:
    """The recording in a file; ``context_tokens``: in context at the first step (one more each step).

    Raises ``InputError`` naming file, place and value; also where the model's ``topk_rows`` differs.
    """
    check_regular(path)
    if not path.exists():
        raise InputError("no such file", where=str(path))
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"ends in {path.suffix!r}; recordings are {' or '.join(SUFFIXES)}", where=str(path))
    found = (_read_npy if suffix == ".npy" else _read_parquet)(path, context_tokens)
    if topk_rows is not None and found.topk_rows != topk_rows:
        raise InputError(
            f"holds selections of {found.topk_rows:,} rows, the model selects {topk_rows:,}: "
            "recorded from another model?",
            where=str(path),
        )
    return found


def _contexts(steps: int, first: int | None, path: Path) -> NDArray[np.int64] | None:
    if first is None:
        return None
    if first < 1:
        raise InputError(f"{first:,} tokens is no context", where=str(path))
    return first + np.arange(steps, dtype=np.int64)


def _read_npy(path: Path, context_tokens: int | None) -> Recording:
    try:
        data = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        text = str(error)
        if "pickle" in text:
            raise InputError("is no .npy array of numbers (or was pickled)", where=str(path)) from None
        raise InputError(f"is truncated or no .npy file: {text}", where=str(path)) from None
    if data.dtype.kind not in "iu":
        raise InputError(f"holds {data.dtype}; positions are integers (int32)", where=str(path))
    if data.ndim not in (2, 3, 4):
        raise InputError(f"has shape {list(data.shape)}; right is {_SHAPES}", where=str(path))
    if 0 in data.shape:
        raise InputError(
            f"has shape {list(data.shape)}, which holds nothing; right is {_SHAPES}", where=str(path)
        )
    full = (
        data.reshape(data.shape[0], -1 if data.ndim > 2 else 1, *data.shape[2:])
        if data.ndim > 2
        else data[:, None]
    )
    if full.ndim == 3:
        full = full[:, :, None]
    steps, layers, queries, topk = full.shape
    return Recording(
        path,
        tuple(range(layers)),
        steps,
        queries,
        topk,
        _contexts(steps, context_tokens, path),
        lambda i: np.asarray(full[:, i]),
    )


def _read_parquet(path: Path, context_tokens: int | None) -> Recording:
    import pyarrow as pa
    import pyarrow.parquet as pq

    where = str(path)
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"is truncated or no Parquet file: {str(error).splitlines()[0]}", where=where
        ) from None
    names = set(table.column_names)
    for name in ("step", "layer", "positions"):
        if name not in names:
            known = "step, layer, positions, query (optional), context_tokens (optional)"
            raise InputError(f"has no column {name!r}; columns are {known}", where=where)
    if not table.num_rows:
        raise InputError("holds no rows", where=where)

    def integers(name: str) -> NDArray[np.int64]:
        column = table.column(name)
        if not pa.types.is_integer(column.type) or column.null_count:
            found = "has nulls" if column.null_count else f"holds {column.type}"
            raise InputError(f"column {name!r} {found}; it holds integers", where=where)
        return np.asarray(column.to_numpy(), dtype=np.int64)

    step, layer = integers("step"), integers("layer")
    query = integers("query") if "query" in names else np.zeros_like(step)
    lists = table.column("positions").combine_chunks()
    if not (pa.types.is_list(lists.type) or pa.types.is_large_list(lists.type)):
        raise InputError(f"column 'positions' holds {lists.type}; it holds lists of integers", where=where)
    if not pa.types.is_integer(lists.type.value_type):
        raise InputError(f"column 'positions' holds lists of {lists.type.value_type}; integers", where=where)
    if lists.null_count or lists.flatten().null_count:
        raise InputError("column 'positions' has nulls; no row is -1, or a shorter list", where=where)
    places = [np.unique(values, return_inverse=True) for values in (step, layer, query)]
    (steps, s), (layers, one), (queries, q) = places
    index = (s * len(layers) + one) * len(queries) + q
    rows = np.full(len(steps) * len(layers) * len(queries), -1, dtype=np.int64)
    rows[index] = np.arange(len(index))
    if len(np.unique(index)) < len(index):
        values, counts = np.unique(index, return_counts=True)
        twice = int(values[counts > 1][0])
        at = np.unravel_index(twice, (len(steps), len(layers), len(queries)))
        raise InputError(
            f"step {steps[at[0]]}, layer {layers[at[1]]} is there twice; one request a file", where=where
        )
    if (rows < 0).any():
        at = np.unravel_index(int(np.argmin(rows)), (len(steps), len(layers), len(queries)))
        raise InputError(
            f"lacks step {steps[at[0]]} of layer {layers[at[1]]}; each layer has all", where=where
        )
    lengths = np.diff(lists.offsets.to_numpy())
    flat = lists.flatten().to_numpy(zero_copy_only=False)
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    topk = int(lengths.max())
    if not topk:
        raise InputError("column 'positions' has empty lists only", where=where)
    table_rows = rows.reshape(len(steps), len(layers), len(queries))

    def of_layer(i: int) -> NDArray[Any]:
        wanted = table_rows[:, i]
        at = starts[wanted][..., None] + np.arange(topk)
        there = np.arange(topk) < lengths[wanted][..., None]
        return np.where(there, flat[np.minimum(at, len(flat) - 1)], -1)

    contexts = _contexts(len(steps), context_tokens, path)
    if contexts is None and "context_tokens" in names:
        contexts = integers("context_tokens")[table_rows[:, 0, 0]]
    return Recording(path, tuple(int(n) for n in layers), len(steps), len(queries), topk, contexts, of_layer)
