"""The phases of requests' lives, from the times in ``requests.parquet``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from hisparse_sim.report.series import Floats, TimeGrid

if TYPE_CHECKING:
    import pandas as pd

PHASES = ("queue", "load", "prefill", "decode", "preempted")
"""Where prefill is apart, ``prefill`` contains the wait for a decoding engine's memory, and ``load`` is KV
that comes over the network."""


class Spans(NamedTuple):
    """Intervals of one phase: the number of the request, and when it began and ended."""

    request: npt.NDArray[np.int64]
    start_s: Floats
    end_s: Floats


def phases(requests: pd.DataFrame, end_s: float) -> dict[str, Spans]:
    """When each request queued, loaded from an offload tier, prefilled, decoded or was preempted.

    A phase that did not end goes on to ``end_s``. Requests that were refused, or never scheduled and
    failed, have none. What is computed again after a preemption counts as the phase it happened in.
    """
    count = len(requests)

    def times(name: str) -> Floats:
        if name not in requests:
            return np.full(count, np.nan)
        return np.asarray(requests[name], dtype=np.float64)

    arrival, scheduled = times("arrival_s"), times("first_scheduled_s")
    token, finish = times("first_token_s"), times("finish_s")
    load, loaded = times("load_start_s"), times("load_end_s")
    if "status" in requests:
        gone = np.asarray(requests["status"] == "failed", dtype=bool) & np.isnan(scheduled)
        arrival, load = np.where(gone, np.nan, arrival), np.where(gone, np.nan, load)
    loading = np.isfinite(load)
    # Prefill apart: KV is loaded after the prefill. From an offload tier it comes before.
    apart = loading & (load > scheduled)
    loaded = np.where(loading & ~apart & np.isnan(loaded), np.fmin(scheduled, end_s), loaded)
    found: dict[str, list[Spans]] = {name: [] for name in PHASES}

    def add(name: str, start: Floats, end: Floats) -> None:
        end = np.where(np.isnan(end), end_s, end)
        there = np.flatnonzero(np.isfinite(start) & (end > start))
        found[name].append(Spans(there, start[there], end[there]))

    before = loading & ~apart
    first = np.where(np.isnan(token), finish, token)
    add("queue", arrival, np.where(before, load, scheduled))
    add("load", load, loaded)
    add("queue", np.where(before, loaded, np.nan), scheduled)
    add("prefill", scheduled, np.where(apart, load, first))
    add("prefill", np.where(apart, loaded, np.nan), first)
    add("decode", token, finish)
    joined = {name: _joined(parts) for name, parts in found.items()}
    if "preempted_s" in requests:
        cuts = _preempted(requests["preempted_s"], np.where(np.isnan(finish), end_s, finish))
        joined["preempted"] = cuts
        for name in ("prefill", "decode"):
            joined[name] = _without(joined[name], cuts)
    return joined


def at_a_time(spans: Spans, grid: TimeGrid) -> Floats:
    """Mean number of spans under way in each interval of ``grid``, exactly."""

    def since(times: Floats) -> Floats:
        """Seconds, up to each edge, since each of ``times`` that is before it, added up."""
        ordered = np.sort(times)
        sums = np.concatenate(([0.0], np.cumsum(ordered)))
        before = np.searchsorted(ordered, grid.edges_s, side="right")
        return np.asarray(before * grid.edges_s - sums[before], dtype=np.float64)

    return np.maximum(np.diff(since(spans.start_s) - since(spans.end_s)) / grid.width_s, 0.0)


def packed(arrival_s: Floats, over_s: Floats) -> npt.NDArray[np.int64]:
    """A row for each request such that those of a row do not overlap: the lowest that is free.

    Requests are in order of arrival; there are as many rows as requests alive at once.
    """
    from heapq import heappop, heappush

    rows = np.zeros(len(arrival_s), dtype=np.int64)
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    made = 0
    for i, (start, end) in enumerate(zip(arrival_s.tolist(), over_s.tolist(), strict=True)):
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        if free:
            row = heappop(free)
        else:
            row, made = made, made + 1
        rows[i] = row
        heappush(busy, (end, row))
    return rows


def _joined(parts: list[Spans]) -> Spans:
    if not parts:
        return Spans(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))
    return Spans(
        np.concatenate([part.request for part in parts]),
        np.concatenate([part.start_s for part in parts]),
        np.concatenate([part.end_s for part in parts]),
    )


def _preempted(column: pd.Series, over_s: Floats) -> Spans:
    """From lists of times, out and in again in turn; the last may lack its end."""
    request: list[int] = []
    times: list[float] = []
    for i, values in enumerate(column):
        if values is not None and len(values):
            times += [*values, *([over_s[i]] if len(values) % 2 else [])]
            request += [i] * ((len(values) + 1) // 2)
    return Spans(np.array(request, dtype=np.int64), np.array(times[::2]), np.array(times[1::2]))


def _without(spans: Spans, cuts: Spans) -> Spans:
    """The spans, less the parts that the cuts of the same request take."""
    by_request: dict[int, list[tuple[float, float]]] = {}
    for i, start, end in zip(*(column.tolist() for column in cuts), strict=True):
        by_request.setdefault(i, []).append((start, end))
    whole = ~np.isin(spans.request, cuts.request)
    kept = [Spans(spans.request[whole], spans.start_s[whole], spans.end_s[whole])]
    pieces: list[tuple[int, float, float]] = []
    for i, start, end in zip(*(column[~whole].tolist() for column in spans), strict=True):
        for out, back in by_request[i]:
            if start < min(out, end):
                pieces.append((i, start, min(out, end)))
            start = max(start, min(back, end))
        if start < end:
            pieces.append((i, start, end))
    if pieces:
        request, starts, ends = zip(*pieces, strict=True)
        kept.append(Spans(np.array(request, dtype=np.int64), np.array(starts), np.array(ends)))
    return _joined(kept)
