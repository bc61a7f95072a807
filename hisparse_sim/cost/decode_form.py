"""The form of a sparse-attention module in decode: seconds of one layer by batch and context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

DECODE_WORK = ("selected_s", "reach_s", "topk_s", "context_s", "depth_s")
DECODE_PARAMETERS = ("rows", "rows_s", *DECODE_WORK, "topk_rows")


def decode_features(batch: Array, context_tokens: Array, *, topk_rows: float) -> Array:
    """What work costs beside the batch itself: (n, 5) in the order of ``DECODE_WORK``.

    ``batch`` requests of ``context_tokens`` each. The rows that attention reads, up to the top-k of
    each request; how far one request reaches, up to the top-k (few rows fill few thread blocks); a
    step once a context exceeds the top-k and the selection kernel runs; batch x context, the keys
    that the indexer scores; and a cost of context that a batch shares (a single-row selection
    kernel).
    """
    import numpy as np

    total = batch * context_tokens
    return np.stack(
        [
            np.minimum(total, batch * topk_rows),
            np.minimum(context_tokens, topk_rows),
            (context_tokens > topk_rows).astype(float),
            total,
            context_tokens,
        ],
        axis=1,
    )


def batch_features(batch: Array, rows: Sequence[float]) -> Array:
    """(n, len(rows)): 1, and how much of each stretch between two of ``rows`` the batch covers.

    Non-negative coefficients of these make a rising broken line. ``rows`` begin at the smallest batch.
    """
    import numpy as np

    stretches = [np.clip(batch, low, high) - low for low, high in zip(rows, (*rows[1:], np.inf), strict=True)]
    return np.stack([np.ones_like(batch), *stretches[:-1]], axis=1)


def decode_s(params: Mapping[str, float | tuple[float, ...]], variables: Mapping[str, Array]) -> Array:
    """Seconds of one layer for ``batch`` requests of ``context_tokens`` each.

    Above the last of ``rows`` the batch's line goes on with its last slope.
    """
    import numpy as np

    batch, context = variables["batch"], variables["context_tokens"]
    rows, rows_s = np.array(params["rows"]), np.array(params["rows_s"])
    slope = (rows_s[-1] - rows_s[-2]) / (rows[-1] - rows[-2])
    line = np.interp(batch, rows, rows_s) + np.maximum(0.0, batch - rows[-1]) * slope
    work = decode_features(batch, context, topk_rows=float(np.asarray(params["topk_rows"])))
    return np.asarray(line + work @ np.array([params[name] for name in DECODE_WORK]))
