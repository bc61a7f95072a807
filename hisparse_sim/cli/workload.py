"""``hisparse-sim workload``: look at a stream of requests without simulating it, and save it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hisparse_sim.cli import flags, trace_flags
from hisparse_sim.cli.progress import request_counter
from hisparse_sim.errors import InputError

if TYPE_CHECKING:
    from hisparse_sim.scenario.workload import WorkloadSpec
    from hisparse_sim.workload.request import Workload

_ACTIONS = ("describe", "save", "plot")


def command(
    action: Annotated[str, typer.Argument(metavar="[describe|save|plot]", help="What to do.")],
    source: Annotated[
        str, typer.Argument(metavar="SCENARIO_OR_TRACE", help="A scenario, or a trace: file or folder.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            parser=flags.named_path,
            metavar="FILE",
            help="save: .jsonl, .jsonl.gz or .parquet. plot: .png or .svg; without an ending, both.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first so many requests.")] = None,
    trace_format: trace_flags.Format = None,
    trace_scale: trace_flags.Scale = None,
    trace_from: trace_flags.From = None,
    trace_to: trace_flags.To = None,
    trace_repeat: trace_flags.Repeat = None,
    skip_bad_lines: trace_flags.SkipBadLines = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Any field of the scenario.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Describe, save or plot the requests of SCENARIO_OR_TRACE."""
    if action not in _ACTIONS:
        raise InputError(f"{action!r} is not an action; use one of {', '.join(_ACTIONS)}", where="workload")
    asked = {
        "limit": limit,
        "format": trace_format,
        "time_scale": trace_scale,
        "from_s": trace_from,
        "to_s": trace_to,
        "repeat": trace_repeat,
        "skip_bad_lines": skip_bad_lines,
    }
    values = {field: value for field, value in asked.items() if value is not None}
    given = {field: trace_flags.FLAGS.get(field, "--limit") for field in values}
    said: dict[tuple[str, ...], tuple[str, Any]] = {
        ("workload", field): (given[field], value) for field, value in values.items()
    }
    if seed is not None:
        said[("seed",)] = ("--seed", seed)
    flags.refuse_contradictions(said, settings or [])
    spec, spec_seed = _asked(source, values, given, settings or [])
    seed = spec_seed if seed is None else seed
    try:
        _do(action, spec, seed, source, out, as_json)
    except InputError as error:
        flag = given.get((error.where or "").removeprefix("workload."))
        raise InputError(error.message, where=flag or error.where) from None


def _do(action: str, spec: WorkloadSpec, seed: int, source: str, out: Path | None, as_json: bool) -> None:
    if action == "save":
        _save(spec, seed, source, out)
    else:
        from hisparse_sim.workload.facts import Facts
        from hisparse_sim.workload.make import make_workload

        with request_counter(f"reading {Path(source).name}") as progress:
            workload = make_workload(spec, seed, check=False)
            facts = Facts.of(workload, progress)
        facts.notes += _limited(workload, facts.prompt_tokens.count)
        if action == "plot":
            _plot(facts, out or Path("workload"), Path(source).name)
        elif as_json:
            print(json.dumps(facts.summary(), indent=2, allow_nan=False))
        else:
            print(text_of(facts.summary()))
        for note in facts.notes:
            print(f"note: {note}", file=sys.stderr)


def _limited(workload: Workload, requests: int) -> list[str]:
    """What to know of requests that are more than the limit."""
    if workload.limit is None or requests <= workload.limit:
        return []
    return [
        f"a run sends {workload.limit:,} of these requests; how fast they are served decides which come first"
    ]


def is_trace(source: str) -> bool:
    """Whether a name is that of a trace: a folder, or a file that is no YAML."""
    path = Path(source)
    return (
        bool(source.strip())
        and path.exists()
        and (path.is_dir() or path.suffix.lower() not in (".yaml", ".yml"))
    )


def _asked(
    source: str, values: Mapping[str, Any], given: Mapping[str, str], settings: list[str]
) -> tuple[WorkloadSpec, int]:
    """The workload of a scenario or a trace, with what flags say of it."""
    from hisparse_sim.scenario.overrides import parse_override, place

    by_flag = {("workload", field): flag for field, flag in given.items()}
    if is_trace(source):
        from hisparse_sim.scenario.overrides import apply_overrides
        from hisparse_sim.scenario.validate import build
        from hisparse_sim.scenario.workload import SeededWorkload

        trace = {"workload": {"kind": "trace", "path": source, **values}}
        places = {parse_override(text)[0]: place(text) for text in settings}
        asked = build(SeededWorkload, apply_overrides(trace, settings), file="", given=places | by_flag)
        return asked.workload, asked.seed
    from hisparse_sim.scenario.loader import load_scenario

    if given and load_scenario(source, overrides=settings).workload.kind != "trace":
        field = next((field for field in given if field != "limit"), None)
        if field is not None:
            raise InputError(trace_flags.GENERATED, where=given[field])
    overrides = [f"workload.{field}={json.dumps(value)}" for field, value in values.items()]
    scenario = load_scenario(source, overrides=[*settings, *overrides])
    return scenario.workload, scenario.seed


def text_of(facts: Mapping[str, Any]) -> str:
    """Counts, shares and a table of quantiles, for a terminal."""
    from hisparse_sim.cli.catalogue import table

    lines = [
        f"{counted(facts['sessions'], 'session')}, {counted(facts['requests'], 'request')}{_loop(facts)}"
    ]
    if facts["prefix_hit_bound"] is not None:
        line = f"{facts['prefix_hit_bound']:.1%} of all prompt tokens were said before"
        if facts["block_hit_bound"] is not None:
            line += f" ({facts['block_hit_bound']:.1%} of the trace's blocks)"
        lines.append(f"{line}: the most that prefix caches can hit")
    for title, shares in (("tenants", facts["tenants"]), ("priorities", facts["priorities"])):
        if len(shares) > 1:
            lines.append(f"{title}: " + ", ".join(f"{name} {share:.1%}" for name, share in shares.items()))
    rows = []
    for name, title in (
        ("prompt_tokens", "prompt tokens"),
        ("new_tokens", "new tokens"),
        ("output_tokens", "output tokens"),
        ("turns", "requests a session"),
        ("think_time_s", "pause before, s"),
        ("arrival_gap_s", "between sessions, s"),
    ):
        points = facts[name]
        if points and not (name == "turns" and points["max"] == 1):
            rows.append({"": title} | {key: _number(value) for key, value in points.items()})
    return "\n".join([*lines, "", table(rows)] if rows else lines)


def _loop(facts: Mapping[str, Any]) -> str:
    if facts["concurrency"]:
        return f", {counted(facts['concurrency'], 'session')} at a time"
    if facts["sessions_per_s"] is None:
        return ""
    variation = facts["gap_variation"]
    text = f"; {facts['sessions_per_s']:,.3g} sessions/s over {_number(facts['last_arrival_s'])} s"
    return text + (f", gaps vary by {variation:.2g} of their mean" if variation is not None else "")


def counted(count: int, what: str) -> str:
    """1 request, 1,234 requests."""
    return f"{count:,} {what}{'s' if count != 1 else ''}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _save(spec: WorkloadSpec, seed: int, source: str, out: Path | None) -> None:
    from hisparse_sim.workload.make import make_workload
    from hisparse_sim.workload.save import save

    if out is None:
        raise InputError("missing; name a .jsonl, .jsonl.gz or .parquet file", where="--out")
    workload = make_workload(spec, seed, check=False)
    about = {"source": Path(source).name, "seed": seed} | getattr(workload, "about", {})
    with request_counter(f"writing {out.name}") as progress:
        count = save(workload, out, about=about, progress=progress)
    for note in [*workload.notes, *_limited(workload, count)]:
        print(f"note: {note}", file=sys.stderr)
    print(f"{counted(count, 'request')}: {out}", file=sys.stderr)


def _plot(facts: Any, out: Path, title: str) -> None:
    from hisparse_sim.report.workload_plots import save_picture

    try:
        for path in save_picture(facts, out, title=title):
            print(path)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", where=f"--out {out}") from None
