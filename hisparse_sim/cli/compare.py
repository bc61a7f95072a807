"""``hisparse-sim compare``: runs or sweeps side by side, and whether chance explains their differences."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hisparse_sim.cli.flags import named_path
from hisparse_sim.errors import InputError

if TYPE_CHECKING:
    from hisparse_sim.report.differences import Difference

Found = list[tuple[str, "list[Difference]"]]


def command(
    folders: Annotated[
        list[Path],
        typer.Argument(parser=named_path, metavar="DIR...", help="What `run` or `sweep` wrote; two or more."),
    ],
    out: Annotated[
        Path | None, typer.Option(parser=named_path, metavar="FOLDER", help="Draw them together, here.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> int:
    """Each DIR against the first: figures, differences and their 95 % intervals.

    Exit code 2 if a run could not be read; the others are compared all the same.
    """
    if len(folders) < 2:
        raise InputError("names one folder; give two or more", where="DIR")
    sweeps = [(folder / "_sweep.json").exists() for folder in folders]
    if any(sweeps) and not all(sweeps):
        run = folders[sweeps.index(False)]
        raise InputError("is a run and another folder a sweep; compare like with like", where=str(run))
    problems: list[InputError] = []
    if all(sweeps):
        text, found = _sweeps(folders, out)
    else:
        folders, problems = _readable(folders)
        text, found = _runs(folders, out)
    if as_json:
        data = {name: [asdict(d) | {"clear": d.clear} for d in each] for name, each in found}
        typer.echo(json.dumps({"first": str(folders[0]), "differences": data}, indent=1))
    else:
        typer.echo(text)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 2 if problems else 0


def _readable(folders: Sequence[Path]) -> tuple[list[Path], list[InputError]]:
    """Those that hold a run, and why others do not. Raises InputError if the first is none, or no other."""
    from hisparse_sim.report.run_files import RunFolder
    from hisparse_sim.report.run_picture import RunPicture

    kept: list[Path] = []
    problems: list[InputError] = []
    for folder in folders:
        try:
            RunPicture.read(RunFolder(folder))
        except InputError as error:
            problems.append(error)
        else:
            kept.append(folder)
        if not kept:
            raise problems[0]
    if len(kept) < 2:
        raise problems[0]
    return kept, problems


def _text(first: Path, found: Found) -> list[str]:
    from hisparse_sim.report.differences import differences_text

    return [differences_text(f"{name} against {first}", each) for name, each in found]


def _runs(folders: Sequence[Path], out: Path | None) -> tuple[str, Found]:
    from hisparse_sim.report.differences import run_differences
    from hisparse_sim.report.run_files import RunFolder, label_of
    from hisparse_sim.report.tables import side_by_side

    runs = [RunFolder(folder) for folder in folders]
    summaries = [run.summary() for run in runs]
    names = [f"{f}\n{label_of(s)}" for f, s in zip(folders, summaries, strict=True)]
    first, *others = [run.requests() for run in runs]
    found = [(str(f), run_differences(first, o)) for f, o in zip(folders[1:], others, strict=True)]
    if out is not None:
        from hisparse_sim.report.plots import save_plots
        from hisparse_sim.report.run_picture import RunPicture

        _say(lambda: save_plots([RunPicture.read(run) for run in runs], out), out)
    table = side_by_side(list(zip(names, summaries, strict=True)))
    return "\n\n".join([table, *_text(folders[0], found)]), found


def _sweeps(folders: Sequence[Path], out: Path | None) -> tuple[str, Found]:
    from hisparse_sim.report.differences import SWEEP_METRICS, read_sweep, save_sweeps, sweep_differences

    read = [read_sweep(folder) for folder in folders]
    kinds = [kind for _, _, kind in read]
    if len(set(kinds)) > 1:
        raise InputError("one sweep simulates and another estimates; compare like with like", where="DIR")
    frames = [frame for frame, _, _ in read]
    shared = [name for name in read[0][1] if all(name in varied for _, varied, _ in read)]
    if not shared:
        raise InputError("the sweeps vary no field in common", where="DIR")
    metrics = [m for m in SWEEP_METRICS[kinds[0]] if all(m in f and f[m].notna().any() for f in frames)]
    found = [
        (str(folder), sweep_differences(frames[0], frame, shared, metrics))
        for folder, frame in zip(folders[1:], frames[1:], strict=True)
    ]
    for folder, each in found:
        if not each:
            raise InputError(f"has no point in common with {folders[0]} that was computed", where=folder)
    if out is not None:
        labelled = [(str(folder), frame) for folder, frame in zip(folders, frames, strict=True)]
        _say(lambda: save_sweeps(labelled, shared[-1], metrics, out), out)
    return "\n\n".join(_text(folders[0], found)), found


def _say(draw: object, out: Path) -> None:
    """Draw, and name the files on stderr."""
    assert callable(draw)
    try:
        for path in draw():
            print(path, file=sys.stderr)
    except OSError as error:
        raise InputError(f"cannot be written here ({error.strerror or error})", where=str(out)) from None
