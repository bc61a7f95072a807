"""``hisparse-sim explain``: where the time of one step goes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from hisparse_sim.cli.flags import named_path


def command(
    scenario: Annotated[str, typer.Argument(help="A YAML file, or a shipped name.")],
    mode: Annotated[str | None, typer.Option(help="resident, offload or hisparse.")] = None,
    batch: Annotated[
        int | None,
        typer.Option(help="Requests that decode.", show_default="the workload's, as far as they fit"),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(metavar="TOKENS", help="Of each of them.", show_default="the workload's median"),
    ] = None,
    chunk: Annotated[
        str | None,
        typer.Option(metavar="TOKENS", help="New tokens of the prefill.", show_default="a step's budget"),
    ] = None,
    past: Annotated[
        str | None,
        typer.Option(metavar="TOKENS", help="Before them; 0 is allowed.", show_default="what is left"),
    ] = None,
    resident_share: Annotated[
        float | None,
        typer.Option(
            help="HiSparse: share of pages still on the GPU, 0 to 1.", show_default="what the pool leaves"
        ),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Any field of the scenario.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(parser=named_path, metavar="FOLDER", help="Draw the steps as bars, PNG and SVG, here."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> int:
    """The parts of a decode step and of a prefill chunk, at one operating point."""
    from hisparse_sim.estimate.anatomy import table
    from hisparse_sim.estimate.operating_point import explained
    from hisparse_sim.scenario.loader import load_scenario
    from hisparse_sim.scenario.units import parse_tokens

    def tokens(flag: str, given: str | None) -> int | None:
        return None if given is None else parse_tokens(given, where=flag)

    overrides = [*(settings or []), *([f"engine.mode={mode}"] if mode is not None else [])]
    asked = load_scenario(scenario, overrides=overrides)
    told = explained(
        asked,
        batch=batch,
        context_tokens=tokens("--context", context),
        chunk_tokens=tokens("--chunk", chunk),
        past_tokens=0 if past is not None and past.strip() == "0" else tokens("--past", past),
        resident_share=resident_share,
    )
    for kind, texts in (("note", told.notes), ("warning", told.warnings)):
        for text in texts:
            print(f"{kind}: {text}", file=sys.stderr)
    steps = told.steps
    found = [step.as_json() for step in steps]
    if as_json:
        print(json.dumps({"scenario": asked.name, "mode": asked.engine.mode, "steps": found}, indent=1))
    else:
        print(table(steps))
    if out is not None:
        from hisparse_sim.report.anatomy_plot import save_anatomy

        for path in save_anatomy(found, out):
            print(path, file=sys.stderr)
    return 0
