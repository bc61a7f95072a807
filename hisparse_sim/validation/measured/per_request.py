"""A benchmark as a file with a line a request: JSON objects or a CSV table with lengths and times."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hisparse_sim.errors import InputError
from hisparse_sim.validation.measured.bench import Bench, Sent
from hisparse_sim.validation.measured.evidence import spread
from hisparse_sim.workload.traces.formats import FORMATS
from hisparse_sim.workload.traces.rows import MAX_CLOCK

_LENGTHS = FORMATS[-1].names
"""The names of the plain format of traces."""
_STARTS = ("queued_ts", *_LENGTHS["arrival_s"])
_FIRST = ("first_token_ts", "first_token_time", "first_token_s")
_LAST = ("last_token_ts", "finish_time", "finish_s", "end_time", "last_token_s")
_TTFT = {"ttft_s": 1.0, "ttft": 1.0, "ttft_ms": 1e-3}
_E2E = {"e2e_s": 1.0, "latency_s": 1.0, "latency": 1.0, "latency_ms": 1e-3, "e2e_ms": 1e-3}
_MOST_NAMED = 3
_LONGEST_S = 1e6

Row = Mapping[str, Any]


def is_per_request(text: str) -> bool:
    """Whether the first line is of a request, or a header of such lines."""
    first = text.lstrip().split("\n", 1)[0].strip()
    if first.startswith("{"):
        try:
            row = json.loads(first)
        except (ValueError, RecursionError):
            return False
        names = set(row) if isinstance(row, dict) else set()
    else:
        names = {name.strip().strip('"') for name in first.split(",")}
    return bool(names & set(_LENGTHS["prompt_tokens"])) and bool(names & set(_LENGTHS["output_tokens"]))


def per_request(text: str, where: str) -> Bench:
    """The figures and requests of such a file. Raises InputError if no line can be used."""
    bench, rows, bad = Bench("bench", where), [], []
    for line, row in _rows(text):
        if row is not None and _number(row, _LENGTHS["prompt_tokens"]):
            rows.append(row)
        else:
            bad.append(line)
    if not rows:
        raise InputError("holds no line with the lengths of a request", where=where)
    if bad:
        named = ", ".join(map(str, bad[:_MOST_NAMED])) + (" …" if len(bad) > _MOST_NAMED else "")
        one = "line" if len(bad) == 1 else "lines"
        bench.problems.append(f"{where}: {one} {named}: cut or no request; left out, {len(rows):,} are used")
    arrivals = [_number(row, _LENGTHS["arrival_s"]) for row in rows]
    timed = all(t is not None for t in arrivals)
    for row, arrival_s in zip(rows, arrivals, strict=True):
        prompt, output = (_number(row, _LENGTHS[f"{name}_tokens"]) or 0 for name in ("prompt", "output"))
        bench.sent.append(Sent(int(prompt), max(1, int(output)), arrival_s if timed else None))
    _figures(bench, rows)
    return bench


def _rows(text: str) -> Iterator[tuple[int, Row | None]]:
    """Line numbers, and the row or none."""
    lines = text.split("\n")
    if not text.lstrip().startswith("{"):
        table = csv.DictReader(lines)
        for row in table:
            cells = {str(k).strip(): v for k, v in row.items() if v not in (None, "")}
            yield table.line_num, cells if None not in row.values() else None
        return
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        yield number, found if isinstance(found, dict) else None


def _number(row: Row, names: Sequence[str]) -> float | None:
    for name in names:
        try:
            value = float(row[name])
        except (KeyError, TypeError, ValueError):
            continue
        if abs(value) < MAX_CLOCK:
            return value
    return None


def _scaled(row: Row, names: Mapping[str, float]) -> float | None:
    return next((v * s for name, s in names.items() if (v := _number(row, (name,))) is not None), None)


def _figures(bench: Bench, rows: Sequence[Row]) -> None:
    firsts, lasts = ([_number(row, names) for row in rows] for names in (_FIRST, _LAST))
    starts = _starts(rows, firsts)
    ttfts = [_scaled(row, _TTFT) for row in rows]
    e2es = [_scaled(row, _E2E) for row in rows]
    if starts is not None:
        ttfts = [t if t is not None else _minus(f, s) for t, f, s in zip(ttfts, firsts, starts, strict=True)]
        e2es = [e if e is not None else _minus(x, s) for e, x, s in zip(e2es, lasts, starts, strict=True)]
    outputs = [_number(row, _LENGTHS["output_tokens"]) or 0.0 for row in rows]
    tpots = [
        (e - t) / (o - 1) if e is not None and t is not None and o > 1 else None
        for e, t, o in zip(e2es, ttfts, outputs, strict=True)
    ]
    figures = bench.figures
    figures |= spread("ttft_s", ttfts) | spread("tpot_s", tpots) | spread("e2e_s", e2es)
    done = [o > 0 for o in outputs]
    figures["requests_completed"] = sum(done)
    figures["requests_failed"] = len(rows) - sum(done)
    figures["prompt_tokens"] = sum(s.prompt_tokens for s, ok in zip(bench.sent, done, strict=True) if ok)
    figures["output_tokens"] = sum(outputs)
    begins = starts if starts is not None else [s.arrival_s for s in bench.sent]
    known = [b for b in begins if b is not None]
    ends = [x if starts is not None else _plus(b, e) for x, b, e in zip(lasts, begins, e2es, strict=True)]
    if known and (over := [x for x in ends if x is not None]) and max(over) > min(known):
        span_s = max(over) - min(known)
        figures["duration_s"] = span_s
        figures["requests_per_s"] = figures["requests_completed"] / span_s
        figures["output_tokens_per_s"] = figures["output_tokens"] / span_s
        figures["total_tokens_per_s"] = (figures["output_tokens"] + figures["prompt_tokens"]) / span_s


def _starts(rows: Sequence[Row], firsts: Sequence[float | None]) -> list[float | None] | None:
    """Times on the clock of the first tokens: a file may hold two clocks."""
    for name in _STARTS:
        found = [_number(row, (name,)) for row in rows]
        waits = [f - s for f, s in zip(firsts, found, strict=True) if f is not None and s is not None]
        if waits and all(-1e-3 <= wait < _LONGEST_S for wait in waits):
            return found
    return None


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _plus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b
