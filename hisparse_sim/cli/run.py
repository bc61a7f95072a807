"""``hisparse-sim run``: simulate a scenario, print its figures, leave them in a folder."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hisparse_sim.cli import flags, serve_flags, trace_flags
from hisparse_sim.errors import HiSparseError, InputError

if TYPE_CHECKING:
    from hisparse_sim.scenario.node import NodeSpec
    from hisparse_sim.scenario.scenario import Scenario
    from hisparse_sim.serve.source import ServeCommand
    from hisparse_sim.serve.translate import Served
    from hisparse_sim.simulation.checkpoints import Checkpoints
    from hisparse_sim.simulation.result import Result

PLOTS = tuple(f"{name}.{suffix}" for name in ("timeline", "gantt", "latency") for suffix in ("png", "svg"))

_CHECKPOINT_S = 30.0
"""Seldom enough to cost nothing, often enough to watch."""


def command(
    out: Annotated[
        Path,
        typer.Option(
            parser=flags.named_path, metavar="PATH", help="Folder for the results; made if need be."
        ),
    ],
    scenario: Annotated[
        str | None, typer.Argument(help="A YAML file, or a shipped name; with --serve its workload and node.")
    ] = None,
    serve: serve_flags.Serve = None,
    mode: Annotated[str | None, typer.Option(help="resident, offload or hisparse.")] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Clients, or live sessions of a trace, at a time.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(parser=flags.named_path, metavar="PATH", help="Replay this file or folder of requests."),
    ] = None,
    trace_format: trace_flags.Format = None,
    trace_scale: trace_flags.Scale = None,
    trace_from: trace_flags.From = None,
    trace_to: trace_flags.To = None,
    trace_repeat: trace_flags.Repeat = None,
    skip_bad_lines: trace_flags.SkipBadLines = None,
    limit: Annotated[int | None, typer.Option(help="Only the first so many requests.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Any field of the scenario.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random.")] = None,
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Draw the run, too.")] = True,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Write timeline.json, too, for ui.perfetto.dev.")
    ] = False,
    checkpoint_every: Annotated[
        float,
        typer.Option(
            parser=flags.wall_seconds,
            metavar="SECONDS",
            help="Leave what is done so far in the folder this often, or seldomer if that is slow; 0: never.",
        ),
    ] = _CHECKPOINT_S,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json and nothing else.")] = False,
) -> int:
    """Simulate SCENARIO and write summary, requests, steps and plots to a folder."""
    of_trace = {
        "format": trace_format,
        "time_scale": trace_scale,
        "from_s": trace_from,
        "to_s": trace_to,
        "repeat": trace_repeat,
        "skip_bad_lines": skip_bad_lines,
    }
    overrides, by_flag = _overrides(mode, concurrency, trace, of_trace, limit, seed)
    said = {path: (flag, value) for path, (flag, value) in by_flag.items() if path != ("workload",)}
    if trace is not None:
        said |= {("workload", "kind"): ("--trace", "trace"), ("workload", "path"): ("--trace", trace)}
    flags.refuse_contradictions(said, settings or [])
    overrides += settings or []
    places = {path: flag for path, (flag, _) in by_flag.items()}
    read: tuple[ServeCommand, Served] | None = None
    if scenario is None:
        if serve is None:
            raise InputError("missing; name a YAML file or a shipped scenario", where="SCENARIO")
        print(f"note: no scenario given: workload and node of {serve_flags.SCENARIO}", file=sys.stderr)
        scenario = serve_flags.SCENARIO
    if serve is not None:
        read = serve_flags.read_serve(serve, _node_of(scenario, overrides))
        served, where = serve_flags.overrides(read[1])
        overrides, places = served + overrides, where | places
    asked, given = _load(scenario, overrides, places)
    from hisparse_sim.cli.progress import progress_bar, spinner
    from hisparse_sim.report.startup import capacity_lines
    from hisparse_sim.simulation.interrupt import held_interrupts
    from hisparse_sim.simulation.replica import build_replica
    from hisparse_sim.simulation.result import check_writable, remove_leftovers
    from hisparse_sim.simulation.run import simulate
    from hisparse_sim.simulation.survival import endings_of
    from hisparse_sim.workload.make import make_workload

    with _placed(scenario, given):
        about = _check_serve(*read, asked, as_json) if read is not None else None
        replica = build_replica(asked)
        with spinner("reading the workload"):
            workload = make_workload(asked.workload, asked.seed)
        check_writable(out, PLOTS if plots else ())
        for line in capacity_lines(replica.pools, asked.model, asked.node, asked.engine):
            print(line, file=sys.stderr)
        for warning in replica.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        for note in workload.notes:
            print(f"note: {note}", file=sys.stderr)
        remove_leftovers(out)
        with progress_bar() as progress:
            result = simulate(
                asked,
                replica=replica,
                workload=workload,
                progress=progress,
                checkpoints=_checkpoints(out, checkpoint_every) if checkpoint_every else None,
            )
    if about is not None:
        result.summary["serve"] = about
    with held_interrupts() as interrupted:
        result.write(out)
        _remove_plots(out)
    _print(result, as_json)
    for warning in result.summary["warnings"]:
        if warning not in replica.warnings:  # known only afterwards
            print(f"warning: {warning}", file=sys.stderr)
    for ending in endings_of(result.summary):
        print(f"warning: {ending}", file=sys.stderr)
    if interrupted() or not result.summary["complete"]:
        print(f"{out} holds what was done", file=sys.stderr)
        return 130
    try:
        if plots:
            _draw(out)
        if timeline:
            _write_timeline(out)
    except KeyboardInterrupt:
        print(f"{out} holds the whole run; hisparse-sim plot {out} draws it", file=sys.stderr)
        raise
    print(f"Results: {out}", file=sys.stderr)
    return 0


def _overrides(
    mode: str | None,
    concurrency: int | None,
    trace: Path | None,
    of_trace: Mapping[str, object],
    limit: int | None,
    seed: int | None,
) -> tuple[list[str], dict[tuple[str, ...], tuple[str, object]]]:
    """The flags as ``path=value`` settings, and which flag set which field to what."""
    found: list[str] = []
    by_flag: dict[tuple[str, ...], tuple[str, object]] = {}

    def put(path: str, value: object, flag: str) -> None:
        found.append(f"{path}={json.dumps(value)}")
        by_flag[tuple(path.split("."))] = flag, value

    if trace is not None:
        put("workload", {"kind": "trace", "path": str(trace.absolute())}, "--trace")
    for field, value in of_trace.items():
        if value is not None:
            put(f"workload.{field}", value, trace_flags.FLAGS[field])
    if mode is not None:
        put("engine.mode", mode, "--mode")
    if concurrency is not None:
        put("workload.concurrency", concurrency, "--concurrency")
    if limit is not None:
        put("workload.limit", limit, "--limit")
    if seed is not None:
        put("seed", seed, "--seed")
    return found, by_flag


def _write_timeline(out: Path) -> None:
    from hisparse_sim.cli.progress import spinner
    from hisparse_sim.report.perfetto import write_timeline
    from hisparse_sim.report.run_files import RunFolder
    from hisparse_sim.report.run_picture import RunPicture

    with spinner("writing the timeline"):
        path = write_timeline(RunPicture.read(RunFolder(out)), out)
    print(f"Timeline: {path} (open it at ui.perfetto.dev)", file=sys.stderr)


def _node_of(scenario: str, overrides: list[str]) -> NodeSpec:
    """The node of the scenario, with what is set of it."""
    from hisparse_sim.scenario.loader import load_scenario

    return load_scenario(scenario, overrides=serve_flags.about_node(overrides)).node


def _check_serve(command: ServeCommand, served: Served, asked: Scenario, as_json: bool) -> dict[str, Any]:
    """Refuses what vLLM would, says the rest, and gives it for the summary."""
    from hisparse_sim.serve.startup import check_startup

    concurrency, context = serve_flags.load_of(asked)
    with serve_flags.refusals_as_json(command, served, as_json):
        findings = check_startup(
            served, asked.model, asked.node, asked.engine, concurrency=concurrency, context=context
        )
    serve_flags.say(served, findings)
    return serve_flags.as_json(command, served, findings)


Given = dict[tuple[str, ...], str]


def _load(name: str, overrides: list[str], by_flag: Given) -> tuple[Scenario, Given]:
    from hisparse_sim.scenario.loader import load_scenario
    from hisparse_sim.scenario.overrides import parse_override, place

    given = {parse_override(text)[0]: place(text) for text in overrides} | by_flag
    try:
        return load_scenario(name, overrides=overrides), given
    except HiSparseError as error:
        # An error about a setting that a flag made names the flag.
        where = error.where or ""
        for text in overrides:
            flag = by_flag.get(parse_override(text)[0])
            if flag and where.startswith(place(text)):
                generated = flag in trace_flags.FLAGS.values() and "unknown field" in error.message
                message = trace_flags.GENERATED if generated else error.message
                raise type(error)(message, where=flag) from None
        raise


@contextmanager
def _placed(scenario: str, given: Given) -> Iterator[None]:
    """Errors about a field of the scenario say in which file, or by which flag, it was set."""
    from hisparse_sim.scenario.catalogue import find
    from hisparse_sim.scenario.validate import locate

    try:
        yield
    except HiSparseError as error:
        keys = tuple((error.where or "").split("."))
        if keys[0] not in ("engine", "model", "node", "workload", "calibration", "locality"):
            raise
        raise type(error)(error.message, where=locate(str(find("scenario", scenario)), keys, given)) from None


def _checkpoints(out: Path, every_s: float) -> Checkpoints:
    """Leaves what is done so far in ``out``; where that fails, the run goes on and it is tried again."""
    from hisparse_sim.simulation.checkpoints import Checkpoints

    written = failed = False

    def write(so_far: Result) -> None:
        nonlocal written, failed
        try:
            so_far.write(out)
        except InputError as error:
            if not failed:
                print(f"warning: {error}; the run goes on without checkpoints", file=sys.stderr)
            failed = True
            return
        if not written:
            _remove_plots(out)
            if sys.stderr.isatty():
                print(f"So far: {out} (hisparse-sim plot {out} draws it)", file=sys.stderr)
        written = True

    return Checkpoints(write, every_s)


def _print(result: Result, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result.summary, indent=2, allow_nan=False))
        return
    from hisparse_sim.report.group_tables import group_tables
    from hisparse_sim.report.tables import side_by_side

    label = f"{result.scenario.name}\n{result.scenario.engine.mode}"
    print(side_by_side([(label, result.summary)]))
    if groups := group_tables(result.summary):
        print(f"\n{groups}")
    if sys.stdout.isatty():
        from hisparse_sim.report.run_picture import RunPicture
        from hisparse_sim.report.sparklines import sparklines

        run = RunPicture(result.summary, result.requests, result.steps)
        print(f"\n{sparklines([run], encoding=sys.stdout.encoding)}")


def _remove_plots(out: Path) -> None:
    """Those of an earlier run would show other figures than the files beside them."""
    for name in (*PLOTS, "timeline.json"):
        with suppress(OSError):
            (out / name).unlink()


def _draw(out: Path) -> None:
    """Pictures of the run, whole or not at all."""
    from hisparse_sim.report.plots import RunPicture, save_plots
    from hisparse_sim.report.run_files import RunFolder

    try:
        with tempfile.TemporaryDirectory(prefix=".plots-", dir=out) as made:
            for file in save_plots([RunPicture.read(RunFolder(out))], Path(made)):
                file.replace(out / file.name)
    except OSError as error:
        raise InputError(
            f"plots cannot be written: {error.strerror or error}", where=f"--out {out}"
        ) from None
