"""``hisparse-sim sensitivity``: which inputs an answer hangs on."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hisparse_sim.cli.flags import named_path


def command(
    scenario: Annotated[str, typer.Argument(help="A YAML file, or a shipped name.")],
    of: Annotated[
        str | None,
        typer.Option(
            metavar="ANSWER",
            help="output_tokens_per_s, largest_load, or a metric such as tpot_mean or ttft_p95.",
            show_default="largest_load with goals, else output_tokens_per_s",
        ),
    ] = None,
    slo: Annotated[
        list[str] | None, typer.Option(metavar="GOAL", help="For the largest load; replaces plan.slo.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Any field of the scenario.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(parser=named_path, metavar="FOLDER", help="Draw the tornado, PNG and SVG, here."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> int:
    """Move each input of SCENARIO alone within what is known of it, and see what the estimate answers."""
    from hisparse_sim.planning.sensitivity import LARGEST, TOKENS, sensitivity
    from hisparse_sim.planning.slo import parse_goals
    from hisparse_sim.report.tornado import save_tornado, tornado_table
    from hisparse_sim.scenario.loader import load_scenario
    from hisparse_sim.workload.make import make_workload

    base = load_scenario(scenario, overrides=settings or ())
    own = base.plan.slo if base.plan else ()
    goals = parse_goals(slo) if slo else parse_goals(own, where="plan.slo")
    make_workload(base.workload, base.seed)
    found = sensitivity(base, of or (LARGEST if goals else TOKENS), goals)
    typer.echo(json.dumps(asdict(found), indent=1) if as_json else tornado_table(found))
    if out is not None:
        for path in save_tornado(found, out):
            print(path, file=sys.stderr)
    return 0
