"""Human units at the edge: counts of tokens such as ``128k`` and ``1M``."""

from __future__ import annotations

import re

from hisparse_sim.errors import InputError

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
_TOKENS = re.compile(r"(?P<number>\d[\d_,]*(?:\.\d+)?)\s*(?P<unit>[kKmM]?)")
_FACTOR = {"": 1, "k": 2**10, "m": 2**20}


def parse_tokens(value: str | int, *, where: str | None = None) -> int:
    """A positive number of tokens; ``k`` is 1,024 and ``M`` 1,048,576 (``128k``, ``1M``, ``81,920``).

    Raises InputError naming ``where``.
    """
    match = _TOKENS.fullmatch(str(value).strip())
    if match:
        digits = match["number"].replace(",", "").replace("_", "")
        tokens = float(digits) * _FACTOR[match["unit"].lower()]
        if tokens > 0 and tokens.is_integer():
            return int(tokens)
    raise InputError(
        f"{value!r} is not a number of tokens; write 8192, 8k (k = 1,024) or 1M (M = 1,048,576)", where=where
    )


def human_bytes(value: float) -> str:
    """Bytes as a person reads them, binary: ``140.4 GiB``."""
    for unit, size in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(value) >= size:
            return f"{value / size:,.1f} {unit}"
    return f"{value:,.0f} B"
