"""The answer of a page, what limits it, and the runs beside each other: HTML from summaries and tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hisparse_sim.report.differences import Difference, run_differences
from hisparse_sim.report.page.html import Cell, table, text
from hisparse_sim.report.tables import LINES, NOTHING, number

if TYPE_CHECKING:
    from hisparse_sim.report.run_picture import RunPicture

Summary = Mapping[str, Any]

_VERDICTS = {
    "stable": "It keeps up",
    "backlogged": "It works through a backlog",
    "overloaded": "It does not keep up: the queue grew until arrivals ended",
    "infeasible": "Not all of it can be served",
}
_MOST_PARTS = 7
_MOST_GROUPS = 100
SLOWEST = 100
"""Requests of a run that the page lists."""


def key(*path: str, scale: float = 1.0) -> Callable[[Summary], float | None]:
    """The number at ``path`` of a summary, times ``scale``."""

    def value(summary: Summary) -> float | None:
        found: Any = summary
        for name in path:
            found = found.get(name) if isinstance(found, Mapping) else None
        usable = isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found)
        return found * scale if usable else None

    return value


TILES: tuple[tuple[str, str, str, Callable[[Summary], float | None]], ...] = (
    ("Throughput", "tokens/s", "per GPU, cached prompt tokens included", key("total_tokens_per_s_per_gpu")),
    ("Output", "tokens/s", "of completed requests", key("output_tokens_per_s")),
    ("Running at once", "", "requests, mean", key("running_mean")),
    ("Prompt found in caches", "%", "prefix hits", key("prefix_hit_rate", scale=100)),
    ("First token, typical", "s", "TTFT p50", key("ttft_s", "p50")),
    ("First token, slowest 5 %", "s", "TTFT p95", key("ttft_s", "p95")),
    ("A token every", "ms", "TPOT p50", key("tpot_s", "p50", scale=1e3)),
    ("Whole answer, slowest 5 %", "s", "E2E p95", key("e2e_s", "p95")),
    ("Goodput", "requests/s", "within all goals", key("goodput")),
)
"""Title, unit, what it is, and value."""


def answer(summaries: Sequence[Summary], labels: Sequence[str]) -> str:
    """A sentence a run, then tiles with a bar a run."""
    html = ""
    if len(summaries) > 1:
        html += "".join(f'<p class="lead">{sentence}</p>' for sentence in _best(summaries, labels))
    html += '<ul class="verdicts">'
    for index, (summary, label) in enumerate(zip(summaries, labels, strict=True)):
        verdict = str(summary.get("verdict") or "")
        short = _VERDICTS.get(verdict, verdict or "No verdict")
        name = f"{_dot(index)}<b>{text(label)}</b>: " if len(summaries) > 1 else ""
        state = (
            ""
            if summary.get("complete", True)
            else ' <em class="bad">The run is not complete: figures so far.</em>'
        )
        html += (
            f'<li class="{text(verdict)}">{name}<strong>{text(short)}</strong>. '
            f"{text(_load(summary))}{state}</li>"
        )
    html += '</ul><div class="tiles">'
    for title, unit, note, of in TILES:
        values = [of(summary) for summary in summaries]
        if all(value is None for value in values):
            continue
        most = max((value for value in values if value is not None), default=0.0) or 1.0
        pairs = list(zip(labels, values, strict=True))
        rows = "".join(
            _figure(
                f"{number(value)} <small>{text(unit)}</small>",
                "" if len(pairs) == 1 else label,
                f'<i class="c{i % 7 + 1}" style="width:{100 * max(value or 0.0, 0.0) / most:.1f}%"></i>',
            )
            for i, (label, value) in enumerate(pairs)
        )
        html += f'<section class="tile"><h3>{text(title)}</h3>{rows}<p>{text(note)}</p></section>'
    return html + "</div>"


def _figure(shown: str, label: str, bar: str) -> str:
    """A number; with a label, beside it and over its bar."""
    if not label:
        return f'<div class="figure"><b>{shown}</b></div>'
    who = f'<span class="who">{text(label)}</span>'
    return f'<div class="figure">{who}<b>{shown}</b><span class="bar">{bar}</span></div>'


def _best(summaries: Sequence[Summary], labels: Sequence[str]) -> list[str]:
    """Who is ahead in throughput and in waiting, against the first and as measured, in words."""
    found = []
    for title, of, more in (
        ("Most tokens per second and GPU", key("total_tokens_per_s_per_gpu"), True),
        ("Shortest time to first token at p95", key("ttft_s", "p95"), False),
    ):
        known = [
            (value, label) for s, label in zip(summaries, labels, strict=True) if (value := of(s)) is not None
        ]
        if len(known) < 2:
            continue
        ordered = sorted(known, key=lambda pair: pair[0], reverse=more)
        (best, name), (worst, last) = ordered[0], ordered[-1]
        if best == worst:
            continue
        low, high = min(best, worst), max(best, worst)
        times = (
            f", {number(high / low)} times {'that of' if more else 'less than'} {text(last)}"
            if low > 0
            else ""
        )
        unit = "" if more else " s"
        found.append(f"{title}: <b>{text(name)}</b>, {number(best)}{unit}{times} ({number(worst)}{unit}).")
    return found


def _load(summary: Summary) -> str:
    done, failed = summary.get("requests_completed"), summary.get("requests_failed")
    parts = [
        f"{number(done)} requests done" if done is not None else "",
        f"{number(failed)} failed" if failed else "",
    ]
    waiting, share = summary.get("waiting_mean"), summary.get("waiting_share")
    time_s = summary.get("sim_time_s")
    if time_s:
        parts.append(f"{number(time_s)} s simulated")
    if waiting is not None:
        often = "" if share is None else f" (some in {100 * share:.0f} % of samples)"
        parts.append(f"{number(waiting)} waiting on average{often}")
    return ", ".join(part for part in parts if part) + "."


def limits(summaries: Sequence[Summary], labels: Sequence[str]) -> str:
    """What binds each run in words, where step time went and what waiting requests lacked."""
    parts = _ordered([_seconds(s, "step_time_s") for s in summaries])
    lacks = _ordered([_seconds(s, "waiting_for_s") for s in summaries])
    html = ""
    for index, (summary, label) in enumerate(zip(summaries, labels, strict=True)):
        named = f"<h3>{_dot(index)}{text(label)}</h3>" if len(summaries) > 1 else ""
        html += f'<section class="limit">{named}<p class="lead">{_limit(summary)}</p>'
        steps, waits = _seconds(summary, "step_time_s"), _seconds(summary, "waiting_for_s")
        total = sum(steps.values())
        if total > 0:
            html += _bar("Where the time of engine steps went", steps, parts, total, rest="")
        span = summary.get("sim_time_s") or 0.0
        if waits and span > 0:
            html += _bar(
                "What the first waiting request lacked, of the whole time",
                waits,
                lacks,
                # Requests may wait for prefill and for decode at once.
                max(span, sum(waits.values())),
                rest="nobody waited",
            )
        html += _endings(summary) + "</section>"
    return html


def _ordered(found: Sequence[Mapping[str, float]]) -> list[str]:
    """Names by their largest share in any run, so that a part has the same colour in all."""
    shares: dict[str, float] = {}
    for each in found:
        total = sum(each.values()) or 1.0
        for name, value in each.items():
            shares[name] = max(shares.get(name, 0.0), value / total)
    return sorted(shares, key=lambda name: -shares[name])


def _bar(title: str, values: Mapping[str, float], order: Sequence[str], total: float, *, rest: str) -> str:
    """Shares of ``total`` as a bar and a key with their numbers."""
    shown = [
        (name, values[name], f"c{order.index(name) + 1}") for name in order[:_MOST_PARTS] if values.get(name)
    ]
    others = sum(values.get(name, 0.0) for name in order[_MOST_PARTS:])
    if others:
        shown.append(("others", others, "c0"))
    if rest and (left := total - sum(values.values())) > 0.001 * total:
        shown.append((rest, left, "none"))
    bar = "".join(
        f'<i class="{c}" style="width:{100 * v / total:.2f}%" title="{text(n)}"></i>' for n, v, c in shown
    )
    items = "".join(
        f'<li><i class="{c}"></i>{text(n)} <b>{100 * v / total:.1f} %</b> <span>{number(v)} s</span></li>'
        for n, v, c in shown
    )
    shares = f'<div class="shares" aria-hidden="true">{bar}</div>'
    return f'<h4>{text(title)}</h4>{shares}<ul class="key">{items}</ul>'


def _endings(summary: Summary) -> str:
    found = []
    for name in ("engine_death", "live_lock", "standstill"):
        ending = summary.get(name)
        if isinstance(ending, Mapping):
            words = [str(ending[k]) for k in ("words", "remedy") if ending.get(k)]
            found.append(f"<b>{text(name.replace('_', ' '))}</b>: {text(' '.join(words) or ending)}")
    found += [text(warning) for warning in summary.get("warnings") or []]
    return f'<ul class="warnings">{"".join(f"<li>{each}</li>" for each in found)}</ul>' if found else ""


def _limit(summary: Summary) -> str:
    """In words; with a capital, unless it begins with a name such as ``max_num_seqs``."""
    words = str(summary.get("limit") or "not said")
    return text(words if "_" in words.split(" ")[0] else words[:1].upper() + words[1:])


def _seconds(summary: Summary, name: str) -> dict[str, float]:
    """A mapping of a summary to seconds, without what is none."""
    found = summary.get(name)
    if not isinstance(found, Mapping):
        return {}
    return {str(k): float(v) for k, v in found.items() if isinstance(v, int | float) and v > 0}


def _dot(index: int) -> str:
    return f'<i class="dot c{index % 7 + 1}" aria-hidden="true"></i>'


# -- beside each other --------------------------------------------------------------------------


def comparison(runs: Sequence[RunPicture], labels: Sequence[str]) -> str:
    """All figures, a column a run; with several also the differences from the first and chance's part."""
    rows = [(title, [of(run.summary) for run in runs]) for title, of in LINES]
    shown = [[title, *cells] for title, cells in rows if any(cell != NOTHING for cell in cells)]
    heads = ["figure", *(label or "value" for label in labels)]
    html = table("All figures", heads, shown, sorts=False)
    if len(runs) < 2:
        return html
    first = runs[0]
    cells: list[list[Cell | str]] = []
    for run, label in zip(runs[1:], labels[1:], strict=True):
        cells += [_difference(label, d) for d in run_differences(first.requests, run.requests)]
    if cells:
        names = [
            "run",
            "metric of completed requests",
            str(labels[0]),
            "this run",
            "difference",
            "%",
            "95 % interval",
        ]
        html += table(f"Against {labels[0]}", [*names, "beyond chance"], cells)
        html += '<p class="note">Intervals: bootstrap over sessions. “Beyond chance”: 0 is not within it.</p>'
    return html


def _difference(label: str, d: Difference) -> list[Cell | str]:
    share = 100 * d.difference / d.first if d.first else math.nan
    known = d.clear is not None
    return [
        label,
        d.metric,
        _num(d.first),
        _num(d.other),
        Cell(f"{'+' if d.difference > 0 else ''}{number(d.difference)}", d.difference),
        Cell(f"{share:+.1f}" if math.isfinite(share) else NOTHING, share if math.isfinite(share) else None),
        Cell(f"{number(d.low)} to {number(d.high)}" if known else NOTHING, d.low if known else None),
        {True: "yes", False: "no", None: NOTHING}[d.clear],
    ]


_GROUP: tuple[tuple[str, Callable[[Summary], float | None]], ...] = (
    ("done", key("requests_completed")),
    ("failed", key("requests_failed")),
    ("output tokens/s", key("output_tokens_per_s")),
    ("TTFT p50, s", key("ttft_s", "p50")),
    ("TTFT p95, s", key("ttft_s", "p95")),
    ("TPOT p50, ms", key("tpot_s", "p50", scale=1e3)),
    ("TPOT p95, ms", key("tpot_s", "p95", scale=1e3)),
    ("E2E p95, s", key("e2e_s", "p95")),
    ("prefix hits, %", key("prefix_hit_rate", scale=100)),
    ("preemptions", key("preemptions")),
    ("goodput, 1/s", key("goodput")),
)


def groups(summaries: Sequence[Summary], labels: Sequence[str]) -> str:
    """Figures by tenant, by priority and by replica; empty where no run has several."""
    html = ""
    for name in ("tenant", "priority", "replica"):
        rows: list[list[Cell | str]] = []
        for summary, label in zip(summaries, labels, strict=True):
            for group, found in list((summary.get(f"by_{name}") or {}).items())[:_MOST_GROUPS]:
                head: list[Cell | str] = [str(group) or "(none)", *([label] if len(labels) > 1 else [])]
                rows.append(head + [_num(of(found)) for _, of in _GROUP])
        if rows:
            heads = [name, *(["run"] if len(labels) > 1 else []), *(title for title, _ in _GROUP)]
            html += table(f"By {name}", heads, rows)
    return html


_REQUEST: tuple[tuple[str, str, float], ...] = (
    ("arrival_s", "arrival, s", 1.0),
    ("ttft_s", "TTFT, s", 1.0),
    ("tpot_s", "TPOT, ms", 1e3),
    ("e2e_s", "E2E, s", 1.0),
)


def slowest(runs: Sequence[RunPicture], labels: Sequence[str]) -> str:
    """The requests that took longest end to end, those of each run apart."""
    rows: list[list[Cell | str]] = []
    several = any(run.replicas > 1 for run in runs)
    for run, label in zip(runs, labels, strict=True):
        frame = run.requests.nlargest(SLOWEST, "e2e_s")
        for record in frame.to_dict("records"):
            head: list[Cell | str] = [str(record.get("request_id", ""))]
            if len(runs) > 1:
                head.append(label)
            if several:
                head.append(_num(record.get("replica")))
            cells = [_num(float(record[column]) * scale) for column, _, scale in _REQUEST]
            rows.append([*head, *cells, str(record.get("status") or NOTHING)])
    if not rows:
        return "<p>No request was completed.</p>"
    more = [*(["run"] if len(runs) > 1 else []), *(["replica"] if several else [])]
    heads = ["request", *more, *(title for _, title, _ in _REQUEST), "status"]
    return table(f"The {SLOWEST} requests of each run that took longest", heads, rows, name="slowest")


def _num(value: float | None) -> Cell:
    known = value is not None and math.isfinite(value)
    return Cell(number(value if known else None), value if known else None)
