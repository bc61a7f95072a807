"""The answer of Prometheus to ``/api/v1/query_range`` (or ``query``): series of vLLM's metrics over time.

One answer, or several in a list, or by names in an object: a file may hold the answers to several queries.
Format: prometheus.io/docs/prometheus/latest/querying/api.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from hisparse_sim.errors import InputError
from hisparse_sim.validation.measured.evidence import Evidence
from hisparse_sim.validation.measured.samples import Sample, add_samples
from hisparse_sim.workload.traces.rows import MAX_CLOCK

Points = list[tuple[float, float]]


def read_range(document: Any, found: Evidence) -> None:
    """Add what the series say: gauges as samples, counters by what they grew. Raises InputError."""
    from hisparse_sim.validation.measured import metrics

    series: dict[str, list[Points]] = defaultdict(list)
    nameless = 0
    for result in _results(document, found.path):
        labels = result.get("metric")
        name = labels.get("__name__", "") if isinstance(labels, Mapping) else ""
        points = _points(result)
        nameless += not name
        if name and points:
            series[name].append(points)
    if nameless:
        found.problems.append(
            f"{found.path}: {nameless} series have no name, as those of rate() and sum() have; query the "
            "metric itself"
        )
    if not series:
        raise InputError("holds no samples: the query found no series of that name", where=found.path)

    def grown(names: Sequence[str]) -> float | None:
        for name in names:
            for written in (name, f"{name}_total"):
                if written in series:
                    return sum(_growth(points) for points in series[written])
        return None

    def over_time(names: Sequence[str], *, mean: bool = False) -> dict[float, float]:
        many = next((series[name] for name in names if name in series), [])
        at: dict[float, list[float]] = defaultdict(list)
        for points in many:
            for time_s, value in points:
                at[time_s].append(value)
        return {t: sum(v) / (len(v) if mean else 1) for t, v in sorted(at.items())}

    running, waiting = over_time(metrics.RUNNING), over_time(metrics.WAITING)
    usage = over_time(metrics.KV_USAGE, mean=True)
    times = sorted(running | waiting | usage)
    samples = [
        Sample(time_s=t, running=running.get(t), waiting=waiting.get(t), kv_usage=usage.get(t)) for t in times
    ]
    if samples:
        add_samples(found, samples)
    for name, names in metrics.COUNTERS.items():
        if (value := grown(names)) is not None:
            found.figures[name] = value
    found.figures |= metrics.ratios(grown)
    for name, written in metrics.HISTOGRAMS.items():
        count = grown([f"{one}_count" for one in written])
        total = grown([f"{one}_sum" for one in written])
        if count and total is not None:
            found.figures[f"{name}_mean"] = total / count
    for counter in ("output_tokens", "prompt_tokens"):
        (name,) = metrics.COUNTERS[counter]
        span_s = _span_s(series.get(name) or series.get(f"{name}_total") or [])
        if span_s and found.figures.get(counter):
            found.figures[f"{counter}_per_s"] = found.figures[counter] / span_s
    if usage := over_time(metrics.HOST_USAGE, mean=True):
        most = max(usage.values())
        found.figures["host_usage_max"] = most / 100 if most > 1 else most
    found.notes.append("counters are by how much they grew within the range")


def _results(document: Any, where: str) -> Iterator[Mapping[str, Any]]:
    if isinstance(document, list):
        for part in document:
            yield from _results(part, where)
        return
    if not isinstance(document, Mapping):
        raise InputError("is no answer of Prometheus (status, data)", where=where)
    if document.get("status") == "error":
        raise InputError(f"is an error of Prometheus: {document.get('error', '')!s:.200}", where=where)
    data = document.get("data", document)
    if isinstance(data, Mapping) and isinstance(data.get("result"), list):
        yield from (r for r in data["result"] if isinstance(r, Mapping))
    elif document and all(isinstance(part, Mapping) and "data" in part for part in document.values()):
        for part in document.values():
            yield from _results(part, where)
    else:
        raise InputError(
            "is no answer of Prometheus (status, data.result); it has "
            f"{', '.join(map(str, list(document)[:6]))}",
            where=where,
        )


def _points(result: Mapping[str, Any]) -> Points:
    values = result.get("values") or [result.get("value")]
    found = []
    for pair in values if isinstance(values, list) else ():
        try:
            time_s, value = float(pair[0]), float(pair[1])
        except (TypeError, ValueError, IndexError):
            continue
        if 0 <= value < MAX_CLOCK:
            found.append((time_s, value))
    return found


def _growth(points: Points) -> float:
    """Of a counter, over restarts, too: a fall is a start from 0. One point alone is all that was counted."""
    if len(points) == 1:
        return points[0][1]
    pairs = pairwise(points)
    return sum(b - a if b >= a else b for (_, a), (_, b) in pairs)


def _span_s(many: Sequence[Points]) -> float:
    """From the last time before a counter first grew to when it last did."""
    begins, ends = [], []
    for points in many:
        rising = [(a, b) for (a, x), (b, y) in pairwise(points) if y > x]
        if rising:
            begins.append(rising[0][0])
            ends.append(rising[-1][1])
    return max(ends) - min(begins) if begins else 0.0
