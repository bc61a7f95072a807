"""``hisparse-sim plan``: the cheapest deployment of a workload that holds its goals."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from hisparse_sim.errors import InputError

NONE_HOLDS = 1


def command(
    scenario: Annotated[str, typer.Argument(help="A YAML file, or a shipped name.")],
    slo: Annotated[
        list[str] | None,
        typer.Option(metavar="GOAL", help="ttft_p95<=30s, tpot_p99<=100ms, goodput>=95%; replaces plan.slo."),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH=VALUES", help="A choice, as of sweep; nodes=1..8 counts machines."),
    ] = None,
    objective: Annotated[
        str | None, typer.Option(help="cost, nodes or goodput.", show_default="cost")
    ] = None,
    runs: Annotated[int, typer.Option("--simulate", help="Simulations to find the best.")] = 12,
    bisect: Annotated[int, typer.Option(help="Simulations for each plan's largest load.")] = 4,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Any field of the scenario.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Choose the deployment of SCENARIO's workload: screened by estimate, then simulated, best first."""
    from hisparse_sim.planning.question import MOST_RUNS, question
    from hisparse_sim.report import plan_text
    from hisparse_sim.scenario.loader import load_scenario

    for flag, value in (("--simulate", runs), ("--bisect", bisect)):
        if not 0 <= value <= MOST_RUNS:
            raise InputError(f"{value} is no number of simulations; 0 to {MOST_RUNS:,}", where=flag)
    base = load_scenario(scenario, overrides=settings or ())
    about = question(base, slo=slo or (), objective=objective, vary=vary or ())
    with progress_of_plan() as progress:
        answer = about.answer(runs, bisect, progress)
    goals, asked, prices = about.goals, about.asked, about.prices
    if as_json:
        typer.echo(json.dumps(plan_text.as_json(answer, asked, prices), indent=2))
    else:
        typer.echo(plan_text.plan_text(answer, goals, asked, prices))
    return 0 if answer.best else NONE_HOLDS


@contextmanager
def progress_of_plan() -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar on a terminal; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
