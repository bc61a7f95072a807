"""``hisparse-sim sweep``: a scenario at many points, as one dataset."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from hisparse_sim.cli import flags, serve_flags
from hisparse_sim.cli.progress import counted_bar
from hisparse_sim.errors import InputError

if TYPE_CHECKING:
    from hisparse_sim.planning.axes import Choice
    from hisparse_sim.planning.backend import Name
    from hisparse_sim.planning.sweep import Outcome

BACKENDS = ("local", "dask", "ray")
MOST_SEEDS, MOST_JOBS = 10_000, 4096
LOST, INTERRUPTED = 1, 130


def command(
    out: Annotated[
        Path,
        typer.Option(
            parser=flags.named_path,
            metavar="DIR",
            help="Folder of the dataset; a sweep in it goes on.",
        ),
    ],
    scenario: Annotated[
        str | None, typer.Argument(help="A YAML file, or a shipped name; with --serve its workload and node.")
    ] = None,
    serve: serve_flags.Serve = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH=VALUES",
            help="A field and its values: 128,256 or 1..8 or 1..64:log (doubling) or 0..1:5 or 1..100:log5.",
        ),
    ] = None,
    paired: Annotated[
        bool, typer.Option("--paired", help="First values of all fields together, then second, ...")
    ] = False,
    csv: Annotated[
        Path | None,
        typer.Option(
            "--csv",
            "--points",
            parser=flags.named_path,
            metavar="FILE",
            help="A point a row; the header names fields.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Seeds a point, from the scenario's own on.")] = 1,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="The closed-form estimate instead of a simulation.")
    ] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Any field of the scenario.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes on this machine.")] = 1,
    backend: Annotated[str, typer.Option(help="local, dask or ray.")] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            "--scheduler",
            help="Of the Dask scheduler or Ray head; none: on this machine.",
        ),
    ] = None,
) -> int:
    """Run or estimate SCENARIO at every point and leave a row a point and seed in DIR."""
    from hisparse_sim.planning.axes import combined, crossed, parse_axis, read_csv
    from hisparse_sim.planning.axes import paired as paired_of
    from hisparse_sim.planning.point import make_points
    from hisparse_sim.planning.sweep import Sweep, run_sweep

    _check(seeds, jobs, backend, address)
    axes = [parse_axis(text) for text in vary or ()]
    if not axes and csv is None:
        raise InputError("missing; give --vary workload.concurrency=1..64:log, or --csv FILE", where="--vary")
    grid: list[Choice] = (paired_of(axes) if paired else crossed(axes)) if axes else []
    choices = combined(grid, read_csv(csv) if csv is not None else [])
    if seeds > 1 and "seed" in choices[0]:
        raise InputError("seed is varied, too; give one of them", where="--seeds")
    base = serve_flags.load_over(scenario, serve, settings or ())
    points = make_points(base, choices, seeds=seeds, kind="estimate" if estimate else "run")
    asked = Sweep(
        base,
        points,
        "estimate" if estimate else "run",
        out,
        jobs=jobs,
        backend=cast("Name", backend),
        address=address,
    )
    with counted_bar("points") as progress:
        outcome = run_sweep(asked, progress)
    return _told(outcome, out, list(choices[0]), estimate)


def _check(seeds: int, jobs: int, backend: str, address: str | None) -> None:
    if not 1 <= seeds <= MOST_SEEDS:
        raise InputError(f"{seeds} is no number of seeds; 1 to {MOST_SEEDS:,}", where="--seeds")
    if not 1 <= jobs <= MOST_JOBS:
        raise InputError(f"{jobs} is no number of processes; 1 to {MOST_JOBS:,}", where="--jobs")
    if backend not in BACKENDS:
        raise InputError(f"{backend!r} is not known; one of {', '.join(BACKENDS)}", where="--backend")
    if address is not None and backend == "local":
        raise InputError("is of a cluster; give --backend dask or ray", where="--address")


def _told(outcome: Outcome, out: Path, varied: Sequence[str], estimate: bool) -> int:
    """Print what was found; the exit code."""
    from hisparse_sim.report.sweep_table import sweep_table

    for name in outcome.broken:
        print(f"warning: {out / name} was not whole; put aside as _broken-{name}", file=sys.stderr)
    if len(outcome.frame):
        typer.echo(sweep_table(outcome.frame, varied, estimate=estimate))
    refused = outcome.frame[outcome.frame["status"] == "refused"] if len(outcome.frame) else outcome.frame
    if len(refused):
        first = refused["error"].iloc[0]
        print(f"note: {len(refused):,} of the points would not start; one: {first}", file=sys.stderr)
    over = outcome.computed + outcome.found
    before = f" ({outcome.found:,} were there)" if outcome.found else ""
    print(f"{over:,} of {outcome.total:,} points in {out}{before}", file=sys.stderr)
    again = "the same command goes on from there"
    if outcome.lost:
        print(f"error: --backend: workers were lost ({outcome.lost}); {again}", file=sys.stderr)
        return LOST
    if outcome.interrupted:
        print(again, file=sys.stderr)
        return INTERRUPTED
    return 0
