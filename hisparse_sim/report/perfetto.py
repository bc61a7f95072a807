"""A run as a timeline that Perfetto (ui.perfetto.dev) and chrome://tracing open.

Form: "Trace Event Format" (Google, 2016): complete events (``X``), counters (``C``) and names (``M``), times
in microseconds of simulated time. A long run is drawn coarser: so many steps as one event, so many samples
of a counter, and the requests that lived longest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hisparse_sim.errors import InputError
from hisparse_sim.report.phases import PHASES, packed, phases
from hisparse_sim.report.run_picture import RunPicture

MOST_STEPS, MOST_SAMPLES, MOST_SPANS = 100_000, 25_000, 150_000
"""Events of each kind: together below 60 MB."""
FILE = "timeline.json"
_ENGINES, _REQUESTS = (1, 2), 2
"""Process ids: the first engine is 1, the others come after the requests."""
_COUNTERS = {
    "requests": ("running", "waiting"),
    "GPU blocks free": ("gpu_free_blocks",),
    "host blocks free": ("host_free_blocks",),
    "pages of running requests": ("resident_pages", "host_only_pages"),
}

Event = dict[str, Any]


def write_timeline(run: RunPicture, folder: Path) -> Path:
    """Write ``timeline.json`` into ``folder``. Raises InputError."""
    path = folder / FILE
    beside = path.with_name(f".{FILE}.part")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
            first = True
            for event in events(run):
                file.write("" if first else ",\n")
                file.write(json.dumps(event, separators=(",", ":")))
                first = False
            file.write("\n]}\n")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise InputError(f"cannot be written ({error.strerror or error})", where=str(path)) from None
    return path


def events(run: RunPicture) -> Iterator[Event]:
    """All events, names first."""
    parts = run.parts()
    for number, part in enumerate(parts):
        process = _ENGINES[0] if not number else _ENGINES[1] + number
        which = f" {number}" if len(parts) > 1 else ""
        which += " (prefill only)" if part.prefilling is not None else ""
        yield _name("process_name", process, 0, f"engine{which}: {run.summary.get('scenario', 'run')}")
        yield _name("thread_name", process, 1, "steps")
        for event in chain(_steps(part, len(parts)), _counters(part, len(parts))):
            yield event | {"pid": process}
    yield from _requests(run)


def _name(what: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _us(seconds: float) -> float:
    return round(1e6 * seconds, 1)


def _groups(rows: int, most: int) -> npt.NDArray[np.int64]:
    """The first row of each of at most ``most`` groups of rows that follow each other."""
    each = max(1, -(-rows // most))
    return np.arange(0, rows, each)


def _steps(run: RunPicture, of: int) -> Iterator[Event]:
    count = len(run.steps)
    if not count:
        return
    first = _groups(count, MOST_STEPS // of)
    last = np.append(first[1:], count) - 1
    start, end = run.column("start_s")[first], run.column("end_s")[last]
    sums = {
        name: np.add.reduceat(run.column(name), first)
        for name in ("steps", "prefill_tokens", "h2d_bytes", "d2h_bytes", "preemptions")
    }
    decodes = np.maximum.reduceat(run.column("decodes"), first)
    for i in range(len(first)):
        prefill, steps = int(sums["prefill_tokens"][i]), int(sums["steps"][i])
        kind = "prefill" if prefill and not decodes[i] else "mixed" if prefill else "decode"
        yield {
            "ph": "X",
            "name": kind,
            "cat": "step",
            "tid": 1,
            "ts": _us(start[i]),
            "dur": _us(end[i] - start[i]),
            "args": {
                "steps": steps,
                "decodes": int(decodes[i]),
                "prefill_tokens": prefill,
                "preemptions": int(sums["preemptions"][i]),
                "h2d_MB": round(sums["h2d_bytes"][i] / 1e6, 3),
                "d2h_MB": round(sums["d2h_bytes"][i] / 1e6, 3),
            },
        }


def _counters(run: RunPicture, of: int) -> Iterator[Event]:
    count = len(run.steps)
    if not count:
        return
    first = _groups(count, MOST_SAMPLES // of)
    start = run.column("start_s")
    for name, columns in _COUNTERS.items():
        values = [run.column(column)[first] for column in columns]
        if not any(v.any() for v in values):
            continue
        for i, row in enumerate(first):
            found = {c: float(v[i]) for c, v in zip(columns, values, strict=True)}
            yield _counter(name, start[row], found)
    seconds = np.add.reduceat(run.column("end_s") - start, first)
    for name, column in (("link in, GB/s", "h2d_bytes"), ("link out, GB/s", "d2h_bytes")):
        rate = np.add.reduceat(run.column(column), first) / np.maximum(seconds, 1e-9) / 1e9
        if rate.any():
            for row, value in zip(first, rate, strict=True):
                yield _counter(name, start[row], {"GB/s": round(float(value), 3)})
            yield _counter(name, run.end_s, {"GB/s": 0.0})


def _counter(name: str, time_s: float, values: dict[str, float]) -> Event:
    return {"ph": "C", "name": name, "tid": 0, "ts": _us(time_s), "args": values}


def _requests(run: RunPicture) -> Iterator[Event]:
    """Each request's phases; requests that do not overlap share a line."""
    if not len(run.requests):
        return
    found = phases(run.requests, run.end_s)
    spans = [(name, *columns) for name in PHASES for columns in zip(*found[name], strict=True)]
    over = np.full(len(run.requests), np.nan)
    arrival = np.asarray(run.requests["arrival_s"], dtype=np.float64)
    for _, request, _, end in spans:
        over[request] = np.fmax(over[request], end)
    lived = np.flatnonzero(np.isfinite(over))
    longest = lived[np.argsort(arrival[lived] - over[lived], kind="stable")]
    kept = np.sort(longest[: max(1, MOST_SPANS * len(lived) // max(1, len(spans)))])
    left_out = len(lived) - len(kept)
    title = "requests" + (f" (the {len(kept):,} that lived longest of {len(lived):,})" if left_out else "")
    yield _name("process_name", _REQUESTS, 0, title)
    order = kept[np.argsort(arrival[kept], kind="stable")]
    lines = dict(zip(order.tolist(), packed(arrival[order], over[order]).tolist(), strict=True))
    for line in range(max(lines.values(), default=-1) + 1):
        yield _name("thread_name", _REQUESTS, line + 1, f"line {line + 1}")
    names = run.requests["request_id"].tolist() if "request_id" in run.requests else None
    for name, request, start, end in spans:
        if request not in lines:
            continue
        yield {
            "ph": "X",
            "name": name,
            "cat": "request",
            "pid": _REQUESTS,
            "tid": lines[request] + 1,
            "ts": _us(start),
            "dur": _us(end - start),
            "args": {"request": str(names[request]) if names else int(request)},
        }
