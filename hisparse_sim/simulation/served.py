"""What requests got: latencies, tokens and goodput, of all of a run or of one tenant or priority."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from hisparse_sim.scenario.scenario import SloSpec
from hisparse_sim.simulation.gaps import Gaps
from hisparse_sim.simulation.record import RequestRecord

_POINTS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
MOST_GROUPS = 100
"""Tenants or priorities that a summary lists: of more, those with the most requests."""

Key = TypeVar("Key", str, int)


def ttft_s(r: RequestRecord) -> float | None:
    """Arrival to first token."""
    return None if r.first_token_s is None else r.first_token_s - r.arrival_s


def e2e_s(r: RequestRecord) -> float | None:
    """Arrival to last token."""
    return None if r.finish_s is None else r.finish_s - r.arrival_s


def tpot_s(r: RequestRecord) -> float | None:
    """(E2E - TTFT) / (output tokens - 1), as ``vllm bench serve`` defines it."""
    if r.finish_s is None or r.first_token_s is None or r.sampled < 2:
        return None
    return (r.finish_s - r.first_token_s) / (r.sampled - 1)


def served(done: Sequence[RequestRecord], slo: SloSpec, span_s: float) -> dict[str, Any]:
    """Rates and latencies of completed requests; ``span_s``: the busy period of the run."""
    output = sum(r.sampled for r in done)
    total = sum(r.prompt_tokens + r.sampled for r in done)
    return {
        "output_tokens_per_s": ratio(output, span_s),
        "total_tokens_per_s": ratio(total, span_s),
        "ttft_s": spread(ttft_s(r) for r in done),
        "tpot_s": spread(tpot_s(r) for r in done),
        "e2e_s": spread(e2e_s(r) for r in done),
        "goodput": goodput(slo, done, span_s),
    }


def counts(requests: Iterable[RequestRecord]) -> dict[str, int]:
    """How many requests ended how."""
    found = Counter(r.status for r in requests)
    return {f"requests_{status}": found[status] for status in ("completed", "failed", "incomplete")}


def by_group(
    requests: Iterable[RequestRecord], of: Callable[[RequestRecord], Key], slo: SloSpec, span_s: float
) -> dict[str, dict[str, Any]] | None:
    """The same of each tenant or priority (``of``), in their order; None if there is only one.

    Beside what ``served`` and ``counts`` give: tokens of completed requests, and of all requests the
    preemptions and the share of prompt tokens that were cached at first admission.
    """
    if len({of(r) for r in requests}) < 2:
        return None
    groups: dict[Key, list[RequestRecord]] = {}
    for r in requests:
        groups.setdefault(of(r), []).append(r)
    # The sort keeps the order of arrival among equals.
    listed = sorted(groups, key=lambda key: -len(groups[key]))[:MOST_GROUPS]
    return {str(key): _group(groups[key], slo, span_s) for key in sorted(listed)}


def _group(requests: Sequence[RequestRecord], slo: SloSpec, span_s: float) -> dict[str, Any]:
    done = [r for r in requests if r.status == "completed"]
    admitted = [r for r in requests if r.hit_tokens is not None]
    return {
        **counts(requests),
        "prompt_tokens": sum(r.prompt_tokens for r in done),
        "output_tokens": sum(r.sampled for r in done),
        **served(done, slo, span_s),
        "preemptions": sum(r.preemptions for r in requests),
        "prefix_hit_rate": ratio(
            sum(r.hit_tokens or 0 for r in admitted), sum(r.prompt_tokens for r in admitted)
        ),
    }


def spread(values: Iterable[float | None]) -> dict[str, float | None]:
    """Mean and percentiles (linear interpolation) of what is defined."""
    found = np.array([v for v in values if v is not None])
    if not len(found):
        return dict.fromkeys(("mean", *_POINTS))
    mean, last = float(found.mean()), len(found) - 1
    found.sort()
    # numpy's percentile does the same, but takes 0.03 s to import what it needs.
    points = np.interp([q * last for q in _POINTS.values()], np.arange(last + 1), found)
    return {"mean": mean, **dict(zip(_POINTS, points.tolist(), strict=True))}


def spread_of_gaps(gaps: Gaps) -> dict[str, float | None]:
    """The same of latencies that came several times each.

    A percentile is the smallest value with that share at or below it.
    """
    us, counts = gaps.counted()
    if not len(us):
        return spread(())
    below = np.cumsum(counts)
    result: dict[str, float | None] = {"mean": gaps.total_s / int(below[-1])}
    for name, q in _POINTS.items():
        result[name] = float(us[np.searchsorted(below, q * below[-1])]) / 1e6
    return result


def goodput(slo: SloSpec, done: Iterable[RequestRecord], span_s: float) -> float | None:
    """Completed requests per second that met every given goal; None if no goal is given."""
    goals = [(slo.ttft_s, ttft_s), (slo.tpot_s, tpot_s), (slo.e2e_s, e2e_s)]
    given = [(bound, of) for bound, of in goals if bound is not None]
    if not given:
        return None
    good = 0
    for r in done:
        values = [(bound, of(r)) for bound, of in given]
        good += all(value is None or value <= bound for bound, value in values)
    return ratio(good, span_s)


def ratio(part: float, whole: float) -> float | None:
    """None of nothing."""
    return part / whole if whole > 0 else None
