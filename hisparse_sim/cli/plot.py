"""``hisparse-sim plot``: pictures of runs that are done, or lines of text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hisparse_sim.cli.flags import named_path
from hisparse_sim.errors import InputError


def command(
    folders: Annotated[
        list[Path], typer.Argument(parser=named_path, metavar="DIR...", help="What `run --out` wrote.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            parser=named_path, metavar="FOLDER", help="For the pictures; else DIR, or ./plots for several."
        ),
    ] = None,
    formats: Annotated[str, typer.Option("--format", help="png, svg or both.")] = "png,svg",
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="timeline, gantt, latency or overlay; may be repeated."),
    ] = None,
    as_text: Annotated[bool, typer.Option("--text", help="Print sparklines and draw nothing.")] = False,
) -> int:
    """Draw one run, or several with the same scales: over time, request by request, latencies."""
    from hisparse_sim.report.plots import FORMATS, PICTURES, save_plots
    from hisparse_sim.report.run_files import RunFolder
    from hisparse_sim.report.run_picture import RunPicture

    suffixes = _chosen([formats], list(FORMATS), "--format")
    chosen = _chosen(only or [], list(PICTURES), "--only")
    runs: list[RunPicture] = []
    problems: list[InputError] = []
    for folder in folders:
        try:
            runs.append(RunPicture.read(RunFolder(folder)))
        except InputError as error:
            problems.append(error)
    if not runs:
        raise problems[0]
    if not any(len(run.steps) for run in runs):
        limit = runs[0].summary.get("limit")
        raise InputError(
            f"nothing ran, so there is nothing to draw{f': {limit}' if limit else ''}", where=runs[0].folder
        )
    if as_text:
        from hisparse_sim.report.sparklines import sparklines

        print(sparklines(runs, encoding=sys.stdout.encoding))
        return _told(problems)
    into = out or (folders[0] if len(folders) == 1 else Path("plots"))
    try:
        written = save_plots(runs, into, only=chosen, formats=suffixes)
    except OSError as error:
        raise InputError(
            f"pictures cannot be written here ({error.strerror or error}); name another folder with --out",
            where=str(into),
        ) from None
    for path in written:
        print(path)
    return _told(problems)


def _told(problems: list[InputError]) -> int:
    """The exit code; runs that could not be read are named."""
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 2 if problems else 0


def _chosen(given: list[str], known: list[str], flag: str) -> list[str]:
    """The names given, comma-separated or one by one, each once and in the order of ``known``."""
    asked = [name.strip() for text in given for name in text.split(",")]
    for name in asked:
        if name not in known:
            raise InputError(f"{name!r} is none of {', '.join(known)}", where=flag)
    return [name for name in known if name in asked]
