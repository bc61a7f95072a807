"""``hisparse-sim calibrate``: profiles from tables and samples, and how good they are."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from hisparse_sim.cli import calibrate_bench, flags
from hisparse_sim.errors import InputError

app = typer.Typer(
    help="Build, fit, check, show and compare calibration profiles.",
    add_completion=False,
    rich_markup_mode=None,
)

MISSED = 1
"""Exit code of a check whose targets were missed."""

ProfileArgument = Annotated[str, typer.Argument(metavar="PROFILE", help="A shipped name, or a JSON file.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command("build")(calibrate_bench.build)
app.command("run")(calibrate_bench.run)


@app.command("import")
def import_(
    systems: Annotated[
        list[str] | None,
        typer.Argument(metavar="[GPU...]", help="h200, h100, b200, b300, gb200, gb300, rtxpro6000."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    tables: Annotated[
        Path | None,
        typer.Option(
            parser=flags.named_path, metavar="DIR", help="Tables of one GPU; else the installed package's."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=flags.named_path,
            metavar="DIR",
            help="Folder for GPU-published.json.",
            show_default="here",
        ),
    ] = None,
) -> None:
    """Fit published profiles from NVIDIA's measured tables (aiconfigurator-core)."""
    from hisparse_sim.calibration.importer import SYSTEMS, import_profile, to_text
    from hisparse_sim.calibration.profile_file import validated, write_text
    from hisparse_sim.calibration.tables import package_folder
    from hisparse_sim.scenario.catalogue import load_node

    chosen = _systems(systems or [], everything)
    if tables is not None and len(chosen) > 1:
        raise InputError("holds the tables of one GPU; name one", where="--tables")
    folder_out = out or Path()
    if not folder_out.is_dir() or not os.access(folder_out, os.W_OK):
        raise InputError("is not a folder that can be written", where=f"--out {folder_out}")
    for name in chosen:
        system = SYSTEMS[name]
        folder = tables if tables is not None else package_folder(system.folder)
        with _said(f"{name}-published") as say:
            profile = import_profile(system, folder, load_node(system.node), progress=say)
        path = folder_out / f"{system.name}-published.json"
        validated(profile, path)
        write_text(path, to_text(profile))
        print(f"{path}: {len(profile['terms'])} terms", file=sys.stderr)


@contextmanager
def _said(what: str) -> Iterator[Callable[[str], None] | None]:
    """What is under way, on a terminal; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status(what) as status:
        yield lambda step: status.update(f"{what}: {step}")


def _systems(names: list[str], everything: bool) -> list[str]:
    from hisparse_sim.calibration.importer import SYSTEMS
    from hisparse_sim.scenario.validate import nearest

    for name in names:
        if name not in SYSTEMS:
            raise InputError(
                f"{name!r} has no tables{nearest(name, SYSTEMS) or '; known are ' + ', '.join(SYSTEMS)}",
                where="calibrate import",
            )
    if not names and not everything:
        raise InputError(f"name a GPU of {', '.join(SYSTEMS)}, or --all", where="calibrate import")
    return list(SYSTEMS) if everything else list(dict.fromkeys(names))


@app.command("fit")
def fit(
    samples: Annotated[str, typer.Argument(metavar="SAMPLES", help="A samples file.")],
    out: Annotated[Path, typer.Option(parser=flags.named_path, metavar="FILE", help="The profile to write.")],
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FORM", help="The form of a benchmark that has none of its own."),
    ] = None,
    over: Annotated[
        list[str] | None, typer.Option(metavar="PROFILE", help="Profiles that price the rest.")
    ] = None,
    gate: Annotated[float, typer.Option(help="Largest median error on points left out.")] = 0.10,
    holdout: Annotated[float, typer.Option(help="Share of the points that is left out.")] = 0.25,
    profile_id: Annotated[
        str | None, typer.Option("--id", help="Name of the profile.", show_default="that of the file")
    ] = None,
) -> None:
    """Fit named forms to a samples file; refuse what misses points left out by more than the gate."""
    from hisparse_sim.calibration.importer import to_text
    from hisparse_sim.calibration.measured import fit_samples
    from hisparse_sim.calibration.profile_file import validated, write_text
    from hisparse_sim.calibration.samples import read_samples
    from hisparse_sim.cost.hardware import same_gpu
    from hisparse_sim.cost.profile import read_profile

    for value, flag, most in ((gate, "--gate", 10.0), (holdout, "--holdout", 0.9)):
        if not 0 <= value <= most:
            raise InputError(f"{value:g} is not allowed, must be 0 to {most:g}", where=flag)
    read = read_samples(samples)
    below = over or []
    for name in below:
        gpu = read_profile(name).hardware.gpu
        if not same_gpu(gpu, read.hardware.gpu):
            print(f"warning: {name} is of {gpu}, {samples} of {read.hardware.gpu}", file=sys.stderr)
    fitted = fit_samples(
        read,
        profile_id=profile_id or out.stem,
        forms=_forms(model or []),
        over=below,
        gate=gate,
        holdout=holdout,
    )
    profile = validated(fitted.profile, out)
    write_text(out, to_text(fitted.profile))
    for line in fitted.refused:
        print(f"warning: refused: {line}", file=sys.stderr)
    print(_terms_text(profile))
    print(f"{out}: {len(profile.terms)} terms", file=sys.stderr)


def _forms(given: list[str]) -> dict[str, str]:
    forms = {}
    for text in given:
        name, equals, form = text.partition("=")
        if not equals or not name or not form:
            raise InputError(f"{text!r} is not NAME=FORM", where="--model")
        forms[name] = form
    return forms


@app.command("check")
def check(
    profile: ProfileArgument,
    samples: Annotated[
        str, typer.Option(metavar="PATH", help="A folder of tables and samples files, or one file.")
    ],
    rows: Annotated[str, typer.Option(help="all, kept-out (the quarter no fit sees) or fitted.")] = "all",
    as_json: Json = False,
) -> int:
    """Score timed rows against PROFILE; exit code 1 if a target is missed."""
    from hisparse_sim.calibration.check import check as score
    from hisparse_sim.cli.calibrate_text import scores_text
    from hisparse_sim.cost.profile import load_profile

    if rows not in ("all", "kept-out", "fitted"):
        raise InputError(f"{rows!r} is not one of all, kept-out, fitted", where="--rows")
    found = score(load_profile(profile), Path(samples), which=rows)  # type: ignore[arg-type]
    for warning in found.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if as_json:
        _print_json(found.as_json())
    else:
        print(scores_text(found.scores))
    return MISSED if any(s.met is False for s in found.scores) else 0


@app.command("show")
def show(
    profile: ProfileArgument,
    term: Annotated[
        str | None, typer.Argument(metavar="[TERM]", help="One term, or the beginning of several.")
    ] = None,
    as_json: Json = False,
) -> None:
    """The terms of PROFILE with their errors, sources and domains."""
    from hisparse_sim.cli.calibrate_text import profile_text, term_text
    from hisparse_sim.cost.profile import load_profile

    found = load_profile(profile)
    if term is None:
        if as_json:
            _print_json(found.model_dump(mode="json", by_alias=True, exclude_defaults=True))
        else:
            print(profile_text(found))
        return
    chosen = [t for t in found.terms if t.id == term] or [t for t in found.terms if t.id.startswith(term)]
    if not chosen:
        from hisparse_sim.scenario.validate import nearest

        raise InputError(f"has no term {term!r}{nearest(term, (t.id for t in found.terms))}", where=found.id)
    if as_json:
        _print_json([t.model_dump(mode="json", exclude_defaults=True) for t in chosen])
    else:
        print("\n\n".join(term_text(t, found) for t in chosen))


@app.command("diff")
def diff(
    before: Annotated[str, typer.Argument(metavar="PROFILE", help="A shipped name, or a JSON file.")],
    after: Annotated[str, typer.Argument(metavar="OTHER", help="The one to compare it with.")],
    scenario: Annotated[
        str | None, typer.Option(help="Also: seconds a token of this scenario's engine with both.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What changed between two profiles, and what that does to a scenario's time per token."""
    from hisparse_sim.calibration.difference import difference
    from hisparse_sim.cli.calibrate_text import difference_text
    from hisparse_sim.cost.profile import load_profile
    from hisparse_sim.scenario.loader import load_scenario

    asked = load_scenario(scenario) if scenario is not None else None
    found = difference(load_profile(before), load_profile(after), asked)
    for warning in found.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if as_json:
        _print_json(found.as_json())
    else:
        print(difference_text(found))


@app.command("schema")
def schema(
    samples: Annotated[bool, typer.Option("--samples", help="That of a samples file instead.")] = False,
) -> None:
    """Print the JSON Schema of a profile file."""
    from hisparse_sim.calibration.schemas import profile_schema, samples_schema

    _print_json(samples_schema() if samples else profile_schema())


def _terms_text(profile: Any) -> str:
    from hisparse_sim.cli.calibrate_text import terms_text

    return terms_text(profile.terms)


def _print_json(data: Any) -> None:
    typer.echo(json.dumps(data, indent=2, allow_nan=False))
