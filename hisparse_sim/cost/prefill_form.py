"""The form of an attention module in prefill: seconds of one layer for chunks of new tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

PREFILL_WORK = (
    "base_s",
    "token_s",
    "token_past_2k_s",
    "token_past_4k_s",
    "key_s",
    "selected_s",
    "pair_s",
    "cross_pair_s",
    "far_pair_s",
    "many_keys_1_s",
    "many_keys_2_s",
    "token_keys_1_s",
    "token_keys_2_s",
    "scattered_s",
    "together_s",
)
PREFILL_PARAMETERS = (
    *PREFILL_WORK,
    "floor_s",
    "floor_past_tokens",
    "topk_rows",
    "far_tokens",
    "many_keys",
    "step_keys",
    "chunk_tokens",
)
"""``floor_s``: launches, of a module whose longest past reaches each of ``floor_past_tokens``."""


def prefill_features(
    sequences: Array,
    new_tokens: Array,
    past_tokens: Array,
    *,
    topk_rows: float,
    far_tokens: float,
    many_keys: tuple[float, ...],
    step_keys: tuple[float, ...],
) -> Array:
    """What a call's work is made of: (n, 15) in the order of ``PREFILL_WORK``.

    ``sequences`` of ``new_tokens`` each after ``past_tokens``. A pair is a new token and a token
    before it in its own sequence; a cross pair one and any key of the call, whose scores are computed
    for all sequences at once and masked; pairs beyond ``far_tokens`` cost extra. Above ``many_keys``
    keys in a call each cross pair costs more (scores no longer fit one pass), above ``step_keys``
    each token does. Rows are scattered as far as a past allows, up to the top-k; tokens of several
    sequences together cost more than those of one.
    """
    import numpy as np

    tokens = sequences * new_tokens
    keys = sequences * (past_tokens + new_tokens)
    middle = past_tokens + new_tokens / 2.0
    return np.stack(
        [
            np.ones_like(tokens),
            tokens,
            np.maximum(0.0, tokens - 2048.0),
            np.maximum(0.0, tokens - 4096.0),
            keys,
            tokens * selected_rows(past_tokens, new_tokens, topk_rows) / topk_rows,
            tokens * middle,
            tokens * keys,
            tokens * np.maximum(0.0, middle - far_tokens),
            *(tokens * np.maximum(0.0, keys - limit) for limit in many_keys),
            *(tokens * (keys > limit) for limit in step_keys),
            tokens * np.minimum(past_tokens, topk_rows) / topk_rows,
            tokens * (1.0 - 1.0 / sequences),
        ],
        axis=1,
    )


def selected_rows(past_tokens: Array, new_tokens: Array, topk_rows: float) -> Array:
    """Mean rows that a new token attends to: those before it, up to the top-k."""
    import numpy as np

    ramp = np.clip(topk_rows - past_tokens, 0.0, new_tokens)
    start = np.minimum(past_tokens, topk_rows)
    return np.asarray((ramp * (start + ramp / 2.0) + (new_tokens - ramp) * topk_rows) / new_tokens)


def floor_s(params: Mapping[str, float | tuple[float, ...]], past_tokens: Array) -> Array:
    """Seconds of the launches, by the longest past of the call."""
    import numpy as np

    steps = np.array(params["floor_past_tokens"])
    index = np.searchsorted(steps, past_tokens, side="right") - 1
    return np.asarray(np.array(params["floor_s"])[np.maximum(index, 0)])


def prefill_s(params: Mapping[str, float | tuple[float, ...]], variables: Mapping[str, Array]) -> Array:
    """Seconds of one layer: the longer of launches and work. Variables as of ``prefill_features``.

    What exceeds ``chunk_tokens`` in one call is consecutive calls with growing past.
    """
    import numpy as np

    sequences = np.asarray(variables["sequences"], dtype=float)
    new, past = (np.array(variables[name], dtype=float) for name in ("new_tokens", "past_tokens"))
    most = np.maximum(1.0, np.floor(float(np.asarray(params["chunk_tokens"])) / sequences))
    total = np.zeros_like(new)
    while (left := new > 0).any():
        part = np.minimum(new, most)
        total[left] += _one_call_s(params, sequences[left], part[left], past[left])
        new, past = new - part, past + part
    return total


def _one_call_s(
    params: Mapping[str, float | tuple[float, ...]], sequences: Array, new: Array, past: Array
) -> Array:
    import numpy as np

    features = prefill_features(sequences, new, past, **thresholds(params))
    work = features @ np.array([params[name] for name in PREFILL_WORK])
    return np.asarray(np.maximum(floor_s(params, past), work))


def thresholds(params: Mapping[str, float | tuple[float, ...]]) -> Thresholds:
    """The parameters that features depend on."""

    def several(name: str) -> tuple[float, ...]:
        value = params[name]
        return value if isinstance(value, tuple) else (value,)

    return {
        "topk_rows": several("topk_rows")[0],
        "far_tokens": several("far_tokens")[0],
        "many_keys": several("many_keys"),
        "step_keys": several("step_keys"),
    }


class Thresholds(TypedDict):
    """Where features of a prefill module begin to count."""

    topk_rows: float
    far_tokens: float
    many_keys: tuple[float, ...]
    step_keys: tuple[float, ...]
