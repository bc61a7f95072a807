"""The likely cause of the largest error, from what else was measured: a rule a kind of figure.

What is testable is tested: if the scenario set right comes closer by half, its contradictions are the
cause. Else the first of the other measured figures that is off and would bring this about is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hisparse_sim.validation.measured.contradictions import Contradiction
from hisparse_sim.validation.measured.rows import Row, apart, largest

_OFF = 0.1
"""Another figure is off if its logarithm of the ratio is beyond this."""
_FULL = 0.95
_WAITS = ("queue_s", "ttft_s", "e2e_s", "waiting", "in_flight")
_SPEEDS = ("tpot_s", "itl_s", "per_s")
_TIMES = ("_s_", "per_s")
_OTHERS = "other requests than simulated: their number, lengths or times, which --bench would tell"
_FIRST, _TOKEN = ("ttft_s_p50", "ttft_s_mean"), ("tpot_s_p50", "tpot_s_mean")
_BATCH = ("running_mean", "in_flight_max")
_Figures = Mapping[str, tuple[float, float | None]]
"""Measured and simulated, by metric."""


def likely_cause(
    rows: Sequence[Row], found: Sequence[Contradiction], summary: Mapping[str, Any]
) -> list[str]:
    """Sentences about the largest error; empty if there is none. ``summary``: of the simulated run."""
    worst = largest(rows)
    if worst is None:
        return []
    said = [f"largest error: {worst.metric} ({worst.source}), {_error(worst.rel_error)}"]
    curable = ", ".join(one.what for one in found if one.settings)
    if curable and worst.corrected is not None:
        left = apart(worst.metric, worst.measured, worst.corrected)
        error = _error(worst.corrected_error)
        if left > worst.size / 2:
            said.append(f"not what the inputs contradict ({curable}): set right, it is still {error}")
        else:
            said.append(f"likely cause: what the inputs contradict ({curable}); set right, it is {error}")
            if left <= _OFF:
                return said
            rest = _by_other_figures(worst, rows, summary, set_right=True) or _by_prices(summary)
            return [*said, f"likely cause of what is left: {rest}"]
    uncurable = [one for one in found if not one.settings]
    cause = _by_other_figures(worst, rows, summary, set_right=bool(curable))
    if cause is None and uncurable:
        names = "; ".join(f"{one.what}: {one.assumed} here, {one.found} there" for one in uncurable[:2])
        cause = f"what no field of a scenario sets ({names})"
    return [*said, f"likely cause: {cause or (_by_prices(summary) if _is_time(rows) else _OTHERS)}"]


def _by_other_figures(
    worst: Row, rows: Sequence[Row], summary: Mapping[str, Any], *, set_right: bool
) -> str | None:
    off: dict[str, tuple[float, float | None]] = {}
    right: dict[str, tuple[float, float | None]] = {}
    for row in rows:
        value = row.corrected if set_right and row.corrected is not None else row.simulated
        found = off if apart(row.metric, row.measured, value) > _OFF else right
        if value is not None:
            found.setdefault(row.metric, (row.measured, value))

    def named(*metrics: str) -> str | None:
        return next((m for m in metrics if m in off), None)

    if hit := named("prefix_hit_rate", "external_hit_rate"):
        return f"prompts share other beginnings than simulated ({hit}: {_pair(off[hit])})"
    if accepted := named("draft_acceptance", "acceptance_length"):
        return f"drafts are accepted otherwise; engine.mtp_acceptance sets it ({_pair(off[accepted])})"
    if hot := named("hot_hit_rate"):
        return f"selected rows repeat otherwise; locality sets it ({hot}: {_pair(off[hot])})"
    wrong = dict(off)
    off.pop(worst.metric, None)  # what follows is what brings it about
    waits = any(mark in worst.metric for mark in _WAITS)
    full = off.get("gpu_kv_usage_max")
    if waits and full is not None and full[0] > _FULL > (full[1] or 0):
        return (
            f"KV memory was full ({full[0]:.0%}) and is not when simulated ({full[1] or 0:.0%}): the "
            "engine's pool is smaller; its log says how small (--log), or set engine.kv_tokens"
        )
    if one := _one_of_both(worst, wrong, right, summary):
        return one
    if waits and (speed := named("tpot_s_mean", "itl_s_mean", "output_tokens_per_s")):
        return (
            f"the engine's speed, which makes requests wait ({speed}: {_pair(off[speed])}); "
            f"{_by_prices(summary)}"
        )
    if any(mark in worst.metric for mark in _SPEEDS) and (batch := named(*_BATCH)):
        return f"another number of requests at a time ({batch}: {_pair(off[batch])})"
    if usage := named("gpu_kv_usage_max", "gpu_kv_usage_mean", "preemptions"):
        return f"KV memory is filled otherwise ({usage}: {_pair(off[usage])})"
    return None


def _one_of_both(worst: Row, off: _Figures, right: _Figures, summary: Mapping[str, Any]) -> str | None:
    """Prefill or decode, where the first token is as measured and the others are not, or the other way round.

    Nothing else that was measured tells them apart: throughput and E2E hang on both.
    """
    if not any(mark in worst.metric for mark in (*_WAITS, *_SPEEDS)):
        return None
    first, token = _first_of(_FIRST, off), _first_of(_TOKEN, right)
    if first and token and not any(name in off for name in _TOKEN):
        prices = "" if _far(summary) is None else f"; {_by_prices(summary)}"
        return (
            f"prefill, not decode: the first token is off ({first}: {_pair(off[first])}), the others are not "
            f"({token}: {_pair(right[token])}): what a prefill costs, when prompts arrive, or what the "
            f"server does before the engine{prices}"
        )
    first, token = _first_of(_FIRST, right), _first_of(_TOKEN, off)
    if first and token and not any(name in off for name in (*_FIRST, *_BATCH)):
        return (
            f"decode, not prefill: tokens are off ({token}: {_pair(off[token])}), the first one is not "
            f"({first}: {_pair(right[first])}); {_by_prices(summary)}"
        )
    return None


def _is_time(rows: Sequence[Row]) -> bool:
    """Whether a time or a rate is off: the price of a step explains nothing else."""
    return any(row.size > _OFF and any(mark in row.metric for mark in _TIMES) for row in rows)


def _first_of(names: Sequence[str], among: _Figures) -> str | None:
    return next((name for name in names if name in among), None)


def _by_prices(summary: Mapping[str, Any]) -> str:
    return _far(summary) or (
        f"the price of steps (profile {summary.get('calibration')}): another GPU, other kernels, or the "
        "host's time between steps"
    )


def _far(summary: Mapping[str, Any]) -> str | None:
    """In words, if many steps were priced by extrapolation."""
    outside = summary.get("out_of_domain") or {}
    steps, of = outside.get("steps", 0), summary.get("engine_steps", 0)
    if of and steps > of / 10:
        far = ", ".join(f["variable"] for f in outside.get("furthest", [])[:2])
        profile = summary.get("calibration")
        return f"steps priced beyond what profile {profile} was fitted to ({steps} of {of}; {far})"
    return None


def _pair(values: tuple[float, float | None]) -> str:
    measured, simulated = values
    return f"{measured:,.4g} measured, {simulated or 0:,.4g} simulated"


def _error(error: float | None) -> str:
    return "undefined, as nothing was measured" if error is None else f"{error:+.1%}"
