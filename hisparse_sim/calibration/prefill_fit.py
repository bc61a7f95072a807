"""The fit of a prefill module: which calls are bound by launches, and what the others' work costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hisparse_sim.calibration.fitting import solve
from hisparse_sim.cost.forms import Params, Variables
from hisparse_sim.cost.prefill_form import PREFILL_WORK, prefill_features

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

FLOOR_PAST_TOKENS = (0.0, 1.0, 98_304.0)
"""Launches differ with no past, some, and (in SGLang's rows from 131,072 on) a long one."""
FAR_TOKENS = 65_536.0
MANY_KEYS = (131_072.0, 786_432.0)
STEP_KEYS = (20_000.0, 65_536.0)
"""Where costs of long contexts set in, in the rows of H200: chosen on the rows that may be fitted."""
_SMALL_TOKENS = 512.0
_ABOVE = 1.15
_ROUNDS = 8


def fit_prefill(
    variables: Variables, seconds: Array, *, topk_rows: float, chunk_tokens: float, selects: bool = True
) -> Params:
    """Parameters of a ``prefill_module``. ``selects``: the layer has an indexer of its own."""
    import numpy as np

    sequences, new, past = (variables[n] for n in ("sequences", "new_tokens", "past_tokens"))
    shape: dict[str, float | tuple[float, ...]] = {
        "floor_past_tokens": FLOOR_PAST_TOKENS,
        "topk_rows": topk_rows,
        "far_tokens": FAR_TOKENS,
        "many_keys": MANY_KEYS,
        "step_keys": STEP_KEYS,
        "chunk_tokens": chunk_tokens,
    }
    features = prefill_features(
        sequences,
        new,
        past,
        topk_rows=topk_rows,
        far_tokens=FAR_TOKENS,
        many_keys=MANY_KEYS,
        step_keys=STEP_KEYS,
    )
    if not selects:
        features[:, [PREFILL_WORK.index(name) for name in _OF_SCORES]] = 0.0
    band = np.searchsorted(np.array(FLOOR_PAST_TOKENS), past, side="right") - 1
    floor = _first_floor(sequences * new, band, seconds)
    # Without scores the rows of several sequences differ by a third from one to the next: the law is
    # that of one sequence, and what several cost beside it is one median.
    lone = sequences == 1 if not selects else np.ones(len(seconds), dtype=bool)
    found = np.zeros(len(PREFILL_WORK))
    above = lone & (seconds > _ABOVE * floor[band])
    for _ in range(_ROUNDS):
        if above.sum() <= len(PREFILL_WORK):
            break
        found = solve(features[above], seconds[above])
        work = features @ found
        for i in range(len(floor)):
            idle = (band == i) & (work < floor[i]) & (seconds < 1.3 * floor[i])
            if idle.sum() >= 3:
                floor[i] = float(np.median(seconds[idle]))
        above = lone & ((work >= floor[band]) | (seconds > _ABOVE * floor[band]))
    if not selects:
        several = (sequences > 1) & (seconds > _ABOVE * floor[band])
        if several.any():
            together = features[several, _TOGETHER]
            extra = (seconds[several] - features[several] @ found) / together
            found[_TOGETHER] = max(0.0, float(np.median(extra)))
    rising = np.maximum.accumulate(floor)
    return {
        **dict(zip(PREFILL_WORK, found.tolist(), strict=True)),
        "floor_s": tuple(rising.tolist()),
        **shape,
    }


_OF_SCORES = (
    "key_s",
    "cross_pair_s",
    "many_keys_1_s",
    "many_keys_2_s",
    "token_keys_1_s",
    "token_keys_2_s",
    "token_past_2k_s",
)
"""Costs that a layer without an indexer does not have; its work is too noisy for a bend at 2,048 tokens."""
_TOGETHER = PREFILL_WORK.index("together_s")


def _first_floor(tokens: Array, band: npt.NDArray[np.intp], seconds: Array) -> Array:
    """Medians of the smallest calls in each band of past; a band without any takes its neighbour's."""
    import numpy as np

    floor = np.full(len(FLOOR_PAST_TOKENS), np.nan)
    for i in range(len(floor)):
        small = (band == i) & (tokens <= _SMALL_TOKENS)
        if small.any():
            floor[i] = np.median(seconds[small])
    if np.isnan(floor).all():
        return np.full(len(floor), float(seconds.min()))
    order = [1, 0, 2]  # the middle band has most rows
    known = next(floor[i] for i in order if not np.isnan(floor[i]))
    return np.where(np.isnan(floor), known, floor)
