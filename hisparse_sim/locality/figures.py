"""Tables of published locality figures: miss rates, hit rates and overlaps, a row each.

CSV with columns ``model, quantity, policy, buffer_rows, layers, value``, and optionally ``topk_rows`` and
``context_rows``; lines that begin with ``#`` are text.
"""

from __future__ import annotations

import csv
from pathlib import Path

from pydantic import Field, PositiveInt

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.base import Record
from hisparse_sim.scenario.validate import build
from hisparse_sim.scenario.yaml_file import read_text

QUANTITIES = ("miss_rate", "hit_rate", "step_overlap_mean", "step_overlap_min", "step_overlap_max")
COLUMNS = ("model", "quantity", "policy", "buffer_rows", "layers", "value")
OPTIONAL = ("topk_rows", "context_rows")

CONTEXT_TOKENS = 131_072
"""Taken where a source gives none: LongBench-v2, on which GLM-5.1 and DeepSeek-V4-Flash were measured,
has contexts of 8k to 2M words, most under 128k (arXiv 2412.15204)."""

SETUPS = {
    "GLM-5.1": (2048, CONTEXT_TOKENS),
    # arXiv 2604.22312: a prompt of 68,665 tokens and 2,025 decode steps; their middle.
    "DeepSeek-V3.2": (2048, 69_677),
    # Its C4 layers keep a row for four tokens.
    "DeepSeek-V4-Flash": (512, CONTEXT_TOKENS // 4),
}
"""Top-k and context, in rows, of sources whose tables do not say."""


class Figure(Record):
    """One published figure. ``buffer_rows`` of an overlap is the top-k."""

    model: str = Field(min_length=1)
    quantity: str
    policy: str = ""
    buffer_rows: PositiveInt
    layers: str = "all"
    value: float = Field(ge=0, le=1)
    topk_rows: PositiveInt
    context_rows: PositiveInt

    @property
    def miss_share(self) -> float:
        """The figure as a share of rows that miss; of an overlap, what a buffer of the top-k misses."""
        return self.value if self.quantity == "miss_rate" else 1.0 - self.value

    def of(self, miss_share: float) -> float:
        """A share of misses in the figure's own terms."""
        return miss_share if self.quantity == "miss_rate" else 1.0 - miss_share

    @property
    def words(self) -> str:
        """``miss_rate LRU 4096 rows, layers all``."""
        how = f"{self.policy} " if self.policy else ""
        return f"{self.quantity} {how}{self.buffer_rows} rows, layers {self.layers}"


def read_figures(path: Path) -> list[Figure]:
    """The figures of a table. Raises ``InputError`` naming file, line and column."""
    lines = read_text(path).splitlines()
    numbered = [(n, line) for n, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    if not numbered:
        raise InputError("holds no rows", where=str(path))
    names = [name.strip() for name in numbered[0][1].split(",")]
    for name in names:
        if name not in COLUMNS + OPTIONAL:
            raise InputError(
                f"column {name!r} is unknown; columns are {', '.join(COLUMNS + OPTIONAL)}",
                where=f"{path}:{numbered[0][0]}",
            )
    if missing := [name for name in COLUMNS if name not in names]:
        raise InputError(f"lacks the column {', '.join(missing)}", where=f"{path}:{numbered[0][0]}")
    figures = []
    for number, line in numbered[1:]:
        where = f"{path}:{number}"
        values = next(csv.reader([line]))
        if len(values) != len(names):
            raise InputError(f"has {len(values)} values for {len(names)} columns", where=where)
        given = dict(zip(names, (value.strip() for value in values), strict=True))
        model = given["model"]
        data: dict[str, str | int] = {name: value for name, value in given.items() if value}
        if model in SETUPS:
            topk, context = SETUPS[model]
            data = {"topk_rows": topk, "context_rows": context, **data}
        elif "topk_rows" not in data:
            raise InputError(
                f"the top-k of {model!r} is not known here; add a column topk_rows (known are "
                f"{', '.join(SETUPS)})",
                where=where,
            )
        data.setdefault("context_rows", CONTEXT_TOKENS)
        figure = build(Figure, data, file=where)
        _check(figure, where)
        figures.append(figure)
    return figures


def _check(figure: Figure, where: str) -> None:
    from hisparse_sim.locality.policies import POLICIES

    if figure.quantity not in QUANTITIES:
        raise InputError(f"quantity {figure.quantity!r} is none of {', '.join(QUANTITIES)}", where=where)
    if figure.quantity.endswith("_rate") and figure.policy.lower() not in POLICIES:
        raise InputError(f"policy {figure.policy!r} is none of {', '.join(POLICIES)}", where=where)
    if figure.buffer_rows < figure.topk_rows:
        raise InputError(
            f"buffer_rows {figure.buffer_rows:,} is smaller than the top-k, {figure.topk_rows:,}", where=where
        )
