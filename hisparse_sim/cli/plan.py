"""``hisparse-sim plan``: the cheapest deployment of a workload that holds its goals."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from hisparse_sim.cli import serve_flags
from hisparse_sim.errors import InputError

NONE_HOLDS = LOST = 1
MOST_JOBS = 4096


def command(
    scenario: Annotated[
        str | None, typer.Argument(help="A YAML file, or a shipped name; with --serve its workload and node.")
    ] = None,
    serve: serve_flags.Serve = None,
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
    jobs: Annotated[int, typer.Option(help="Simulations at a time, in processes of their own.")] = 1,
    trials: Annotated[
        int | None,
        typer.Option(help="Choices drawn (Optuna) and estimated; none: all, or 2,000 of over 50,000."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Any field of the scenario.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Choose the deployment of SCENARIO's workload: screened by estimate, then simulated, best first."""
    from hisparse_sim.planning.backend import LostBackend
    from hisparse_sim.planning.question import MOST_RUNS, MOST_TRIALS, question
    from hisparse_sim.report import plan_text

    for flag, value in (("--simulate", runs), ("--bisect", bisect)):
        if not 0 <= value <= MOST_RUNS:
            raise InputError(f"{value} is no number of simulations; 0 to {MOST_RUNS:,}", where=flag)
    if not 1 <= jobs <= MOST_JOBS:
        raise InputError(f"{jobs} is no number of processes; 1 to {MOST_JOBS:,}", where="--jobs")
    if trials is not None and not 1 <= trials <= MOST_TRIALS:
        raise InputError(f"{trials} is no number of draws; 1 to {MOST_TRIALS:,}", where="--trials")
    base = serve_flags.load_over(scenario, serve, settings or ())
    drawn = trials is not None
    about = question(base, slo=slo or (), objective=objective, vary=vary or (), drawn=drawn)
    try:
        with progress_of_plan() as progress:
            answer = about.answer(runs, bisect, progress, jobs=jobs, trials=trials)
    except LostBackend as error:
        print(f"error: --jobs: processes were lost ({error}); fewer take less memory", file=sys.stderr)
        return LOST
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
