"""Arrow arrays, made from buffers.

pyarrow's own converters import pandas, which takes longer than a short run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa


def numbers(values: Sequence[Any] | npt.NDArray[Any], kind: type[np.int64] | type[np.float64]) -> pa.Array:
    """An int64 or float64 array; None is null."""
    import pyarrow as pa

    of = pa.int64() if kind is np.int64 else pa.float64()
    if isinstance(values, np.ndarray):
        return pa.Array.from_buffers(of, len(values), [None, _buffer(values.astype(kind))])
    here = np.array([v is not None for v in values], dtype=bool)
    plain = np.array([0 if v is None else v for v in values], dtype=kind)
    valid = None if here.all() else _buffer(np.packbits(here, bitorder="little"))
    return pa.Array.from_buffers(of, len(plain), [valid, _buffer(plain)])


def strings(values: Sequence[str | None]) -> pa.Array:
    """A string array; None is null. What is no Unicode, as a file's name need not be, is escaped."""
    import pyarrow as pa

    builder = pa.lib.StringBuilder()
    try:
        builder.append_values(values)
    except UnicodeEncodeError:
        return strings([v and v.encode(errors="backslashreplace").decode() for v in values])
    return builder.finish()


def lists(values: Sequence[Sequence[float]]) -> pa.Array:
    """An array of lists of float64."""
    import pyarrow as pa

    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    flat = numbers(np.array([v for each in values for v in each]), np.float64)
    return pa.Array.from_buffers(pa.list_(pa.float64()), len(values), [None, _buffer(ends)], children=[flat])


def _buffer(values: npt.NDArray[Any]) -> pa.Buffer:
    import pyarrow as pa

    return pa.py_buffer(np.ascontiguousarray(values))
