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


@app.command("measured")
def measured(
    scenario: Annotated[str, typer.Option(metavar="NAME|FILE", help="What was run, as a scenario.")],
    bench: Annotated[
        Path | None,
        typer.Option(
            parser=named_path,
            metavar="FILE",
            help="Of `vllm bench serve`: the JSON of --save-result or what it printed; or a line a request.",
        ),
    ] = None,
    metrics: Annotated[
        list[Path] | None,
        typer.Option(
            parser=named_path,
            metavar="FILE",
            help="A scrape of /metrics (twice: before and after), a range query's JSON, or CSV of gauges.",
        ),
    ] = None,
    log: Annotated[
        Path | None, typer.Option(parser=named_path, metavar="FILE", help="What the engine logged.")
    ] = None,
    result: Annotated[int | None, typer.Option(help="Which of several results in --bench, from 1.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Any field of the scenario.")
    ] = None,
    corrected: Annotated[
        Path | None,
        typer.Option(
            parser=named_path,
            metavar="FILE",
            help="Write the scenario set right by the inputs here, as YAML.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> int:
    """Your own measurements beside the simulation of the same case.

    Exit code 2 if an input could not be used, wholly or in part; the others are compared all the same.
    """
    from hisparse_sim.cli.progress import progress_bar
    from hisparse_sim.scenario.loader import load_scenario
    from hisparse_sim.validation.measured.compare import Inputs, check_inputs, measure

    inputs = Inputs(bench, metrics or (), log, result)
    check_inputs(inputs, corrected)
    asked = load_scenario(scenario, overrides=settings or [])
    with progress_bar() as progress:
        found = measure(asked, inputs, corrected=corrected, progress=progress)
    if as_json:
        print(json.dumps(found.as_json(), indent=1))
    elif found.evidence:
        from hisparse_sim.validation.measured.text import table

        print(table(found))
    for path in found.written:
        print(path, file=sys.stderr)
    if corrected is not None and not found.written and not found.problems:
        print("note: nothing to set right; no file is written", file=sys.stderr)
    for problem in found.problems:
        print(f"error: {problem}", file=sys.stderr)
    return 2 if found.problems else 0
