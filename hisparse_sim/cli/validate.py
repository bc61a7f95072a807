"""``hisparse-sim validate``: simulated figures beside measured ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from hisparse_sim.cli.flags import named_path
from hisparse_sim.cli.progress import counted_bar

app = typer.Typer(
    help="Simulated figures beside measured ones.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _root() -> None:
    pass


@app.command("published")
def published(
    data: Annotated[
        Path | None,
        typer.Option(
            parser=named_path,
            metavar="DIR",
            help="Tables of your own, named and with columns as in configs/validation; else those.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=named_path, metavar="FOLDER", help="Write rows.csv and a plot, PNG and SVG, here."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON and nothing else.")] = False,
) -> int:
    """Published results beside simulated ones, with errors; nothing was fitted to them.

    Exit code 2 if a file could not be used; the others are compared all the same.
    """
    from hisparse_sim.validation.published.compare import as_json as rows_as_json
    from hisparse_sim.validation.published.compare import compare

    with counted_bar("simulating") as progress:
        found = compare(data, progress=progress)
    for path in found.skipped:
        print(f"note: {path}: no kind of table that is known, skipped", file=sys.stderr)
    if as_json:
        print(json.dumps(rows_as_json(found), indent=1))
    else:
        from hisparse_sim.validation.published.text import table

        print(table(found))
    if out is not None and found.rows:
        from hisparse_sim.report.agreement import save

        for written in save([row.as_json() for row in found.rows], out):
            print(written, file=sys.stderr)
    for problem in found.problems:
        print(f"error: {problem}", file=sys.stderr)
    return 2 if found.problems else 0
