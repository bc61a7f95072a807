"""The named shapes that a profile's terms may have, and how to evaluate them.

Every shape is a sum of non-negative coefficients times features that never fall when work grows, so
that more tokens, more context or more rows never cost less. The array functions here serve the fit
and the checks of tables; the step model unrolls the same sums into scalar code.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import exp, log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

DECODE_COEFFICIENTS = (
    "base_s",
    "row_to_8_s",
    "row_to_64_s",
    "row_past_64_s",
    "selected_s",
    "topk_s",
    "context_s",
    "depth_s",
)
PREFILL_COEFFICIENTS = ("base_s", "token_s", "token_selected_s", "pair_s", "far_pair_s")

FORMS: dict[str, tuple[str, ...]] = {
    "constant": ("value",),
    "linear": ("base_s", "per_unit_s"),
    "decode_module": (*DECODE_COEFFICIENTS, "topk_rows"),
    "prefill_module": (*PREFILL_COEFFICIENTS, "topk_rows", "far_tokens", "chunk_tokens"),
    "piecewise_linear": ("x", "y", "tail_slope"),
    "log_log": ("x", "y"),
    "moe_roofline": ("base_s", "hbm_share", "flops_share"),
    "wave": ("base_s", "slots"),
}
"""Parameters that a term of each form has, no more and no fewer."""


def decode_features(batch: Array, context_tokens: Array, *, topk_rows: float) -> Array:
    """Features (n, 8) of one layer's decode module, in the order of ``DECODE_COEFFICIENTS``.

    ``batch``: requests, all alike; ``context_tokens``: of each. The module law
    ``c0 + c1 min(B, 64) + c2 max(0, B - 64) + k B L`` with three additions: a knee at 8 requests,
    the rows that attention reads up to the top-k, and a step once a context exceeds the top-k and
    the selection kernel runs. ``depth_s`` is a cost of context that a batch shares (a single-row
    selection kernel).
    """
    import numpy as np

    total = batch * context_tokens
    return np.stack(
        [
            np.ones_like(batch),
            np.minimum(batch, 8.0),
            np.minimum(batch, 64.0),
            np.maximum(0.0, batch - 64.0),
            np.minimum(total, batch * topk_rows),
            (context_tokens > topk_rows).astype(float),
            total,
            context_tokens,
        ],
        axis=1,
    )


def prefill_features(
    sequences: Array, new_tokens: Array, past_tokens: Array, *, topk_rows: float, far_tokens: float
) -> Array:
    """Features (n, 5) of one layer's prefill module, in the order of ``PREFILL_COEFFICIENTS``.

    ``sequences`` of ``new_tokens`` each after ``past_tokens``. A pair is a new token and a token
    before it; pairs beyond ``far_tokens`` cost extra (the scores no longer fit one pass).
    """
    import numpy as np

    tokens = sequences * new_tokens
    middle = past_tokens + new_tokens / 2.0
    return np.stack(
        [
            np.ones_like(tokens),
            tokens,
            tokens * np.minimum(past_tokens, topk_rows) / topk_rows,
            tokens * middle,
            tokens * np.maximum(0.0, middle - far_tokens),
        ],
        axis=1,
    )


class PiecewiseLinear:
    """A monotone broken line through ``(x, y)``; beyond the last knot it goes on with ``tail_slope``."""

    __slots__ = ("_bases", "_slopes", "_x")

    def __init__(self, x: Sequence[float], y: Sequence[float], tail_slope: float) -> None:
        self._x = tuple(x)
        self._bases = tuple(y)
        rises = [(y[i + 1] - y[i]) / (x[i + 1] - x[i]) for i in range(len(x) - 1)]
        self._slopes = (*rises, tail_slope)

    def __call__(self, value: float) -> float:
        i = max(0, bisect_right(self._x, value) - 1)
        return self._bases[i] + self._slopes[i] * (value - self._x[i])


class LogLog:
    """Straight lines between ``(x, y)`` on logarithmic axes, the end lines prolonged."""

    __slots__ = ("_x", "_y")

    def __init__(self, x: Sequence[float], y: Sequence[float]) -> None:
        self._x = [log(v) for v in x]
        self._y = [log(v) for v in y]

    def __call__(self, value: float) -> float:
        at = log(value)
        i = min(max(bisect_right(self._x, at) - 1, 0), len(self._x) - 2)
        slope = (self._y[i + 1] - self._y[i]) / (self._x[i + 1] - self._x[i])
        return exp(self._y[i] + slope * (at - self._x[i]))
