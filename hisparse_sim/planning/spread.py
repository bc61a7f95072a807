"""Several seeds of one point as a mean with its confidence interval."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.95
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Student's t, two-sided 95 %, for 1 to 30 degrees of freedom (any table of it)."""


def t_95(degrees: int) -> float:
    """Two-sided 95 % quantile; beyond the table by the usual expansion around the normal's 1.960."""
    if degrees <= len(_T):
        return _T[degrees - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def intervals(frame: pd.DataFrame, varied: list[str], numbers: list[str]) -> pd.DataFrame:
    """A row a point and metric: ``n`` seeds that have a value, ``mean``, ``low`` and ``high``.

    The interval is of the mean, 95 %, Student's t over the seeds; NaN with one seed.
    """
    import pandas as pd

    done = frame[frame["status"] == "done"]
    # A column that no point lacks stands for "no field varied but the seed".
    by = varied or ["status"]
    if done.empty:
        return pd.DataFrame(columns=[*varied, "metric", "n", "mean", "low", "high"])
    each = done.groupby(by, sort=False, dropna=False)[numbers].agg(["count", "mean", "std"])
    long = each.stack(level=0, future_stack=True).reset_index()
    long = long.rename(columns={f"level_{len(by)}": "metric", "count": "n"})
    long = long[long["n"] > 0]
    quantiles = {n: t_95(n - 1) if n > 1 else math.nan for n in long["n"].unique()}
    half = long["n"].map(quantiles) * long["std"] / long["n"] ** 0.5
    long = long.assign(low=long["mean"] - half, high=long["mean"] + half)
    return long[[*varied, "metric", "n", "mean", "low", "high"]].reset_index(drop=True)
