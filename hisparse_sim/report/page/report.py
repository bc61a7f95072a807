"""``hisparse-sim report``: one page about one run or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hisparse_sim import __version__
from hisparse_sim.errors import InputError
from hisparse_sim.report.page.answer import answer, comparison, groups, limits, slowest
from hisparse_sim.report.page.html import page, text
from hisparse_sim.report.page.over_time import latencies, over_time
from hisparse_sim.report.page.question import heading, question, read_asked
from hisparse_sim.report.run_files import RunFolder
from hisparse_sim.report.run_picture import RunPicture, names
from hisparse_sim.simulation.schema import SCHEMA

MOST_RUNS = 12
"""Lines and columns of more cannot be told apart."""


@dataclass(frozen=True, slots=True)
class Report:
    """The page, and what of the folders could not be used: each with its reason."""

    html: str
    problems: tuple[InputError, ...]


def make_report(folders: Sequence[Path]) -> Report:
    """A page of all folders that hold a run. Raises ``InputError`` if none does.

    A run in which nothing ran is on the page, with what its summary says of it, and among the problems.
    """
    if len(folders) > MOST_RUNS:
        raise InputError(f"{len(folders)} runs; a page shows at most {MOST_RUNS}", where="RUN")
    runs: list[RunPicture] = []
    problems: list[InputError] = []
    refused: list[InputError] = []
    for folder in folders:
        try:
            run = _read(folder)
        except InputError as error:
            problems.append(error)
            refused.append(error)
            continue
        runs.append(run)
        if not len(run.steps):
            why = run.summary.get("limit")
            problems.append(InputError(f"nothing ran{f': {why}' if why else ''}", where=str(folder)))
    if not runs:
        first, *others = problems
        more = f" (nor {', '.join(str(e.where) for e in others)})" if others else ""
        raise InputError(f"{first.message}{more}; so there is nothing to report", where=first.where)
    return Report(_page(runs, refused), tuple(problems))


def _read(folder: Path) -> RunPicture:
    of = RunFolder(folder)
    summary = of.summary()
    schema = summary.get("schema")
    if schema != SCHEMA:
        what = "no summary that `hisparse-sim run` wrote" if schema is None else str(schema)
        raise InputError(
            f"is {what}, and this version reads {SCHEMA}; simulate its scenario.yaml again",
            where=str(folder / "summary.json"),
        )
    return RunPicture.read(of)


def _page(runs: Sequence[RunPicture], refused: Sequence[InputError]) -> str:
    summaries = [run.summary for run in runs]
    asked = [read_asked(Path(run.folder)) for run in runs]
    labels = names(runs)[1]
    title = heading(asked, summaries)
    banner = ""
    if refused:
        items = "".join(f"<li>{text(error)}</li>" for error in refused)
        banner = f'<aside class="refused" role="note"><h2>Not on this page</h2><ul>{items}</ul></aside>'
    versions = ", ".join(dict.fromkeys(str(s.get("version", "unknown")) for s in summaries))
    parts = {
        "title": text(title),
        "banner": banner,
        "question": question(asked, summaries, labels),
        "answer": answer(summaries, labels),
        "limits": limits(summaries, labels),
        "comparison": comparison(runs, labels),
        "groups": groups(summaries, labels),
        "slowest": slowest(runs, labels),
        "folders": "".join(f"<li><code>{text(run.folder)}</code></li>" for run in runs),
        "versions": text(versions),
        "version": text(__version__),
    }
    data = {**over_time(runs, labels), "latencies": latencies(runs, labels)}
    return page("report", f"{title} · hisparse-sim", parts, data, ["charts.js", "report.js"])
