"""``hisparse-sim report``: a page about runs, or the calculator, as one HTML file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hisparse_sim.cli.flags import named_path
from hisparse_sim.errors import InputError


def command(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(parser=named_path, metavar="[RUN]...", help="What `run --out` wrote; up to 12."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", parser=named_path, metavar="FILE", help="The page.", show_default="report.html"
        ),
    ] = None,
    calculator: Annotated[
        bool, typer.Option("--calculator", help="Instead: a page that estimates capacity in the browser.")
    ] = False,
) -> int:
    """One self-contained page: question, answer, what limits, comparison, timelines. It loads nothing."""
    from hisparse_sim.report.page.html import write_page

    if calculator:
        from hisparse_sim.report.page.calculator import make_calculator

        if folders:
            raise InputError("needs no run; give runs or --calculator", where="--calculator")
        path = out or Path("calculator.html")
        write_page(path, make_calculator())
        print(path)
        return 0
    if not folders:
        raise InputError("names no run; give folders that `hisparse-sim run --out` wrote", where="RUN")
    from hisparse_sim.report.page.report import make_report

    path = out or Path("report.html")
    if path.is_dir():
        raise InputError("is a folder; name a file, such as page.html", where=f"--out {path}")
    made = make_report(folders)
    write_page(path, made.html)
    print(path)
    for problem in made.problems:
        print(f"error: {problem}", file=sys.stderr)
    return 2 if made.problems else 0
