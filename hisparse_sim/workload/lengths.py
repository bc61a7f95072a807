"""How long prompts and outputs are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def jittered_tokens(
    rng: np.random.Generator, mean_tokens: int, jitter: float, count: int
) -> npt.NDArray[np.int64]:
    """``count`` lengths in tokens, uniform within ``mean_tokens`` x (1 +- ``jitter``), at least 1.

    A jitter of 0.2 is what vLLM's benchmark calls ``--random-range-ratio 0.2``.
    """
    if not jitter:
        return np.full(count, mean_tokens, dtype=np.int64)
    low = max(1, round(mean_tokens * (1 - jitter)))
    return rng.integers(low, round(mean_tokens * (1 + jitter)), size=count, endpoint=True, dtype=np.int64)
