"""Runs side by side: ``python -m hisparse_sim.report.compare DIR… [--plots FOLDER]`` prints their table.

With ``--plots`` also their pictures, overlaid, in FOLDER.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hisparse_sim.errors import HiSparseError, InputError
from hisparse_sim.report.run_files import RunFolder, label_of
from hisparse_sim.report.tables import side_by_side


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table of the folders given (default: the command line); the exit code."""
    parser = argparse.ArgumentParser(prog="hisparse_sim.report.compare", description="Runs side by side.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="what `hisparse-sim run` wrote")
    parser.add_argument(
        "--plots", type=Path, metavar="FOLDER", help="draw the runs over each other, in FOLDER"
    )
    options = parser.parse_args(arguments)
    runs = [RunFolder(folder) for folder in options.folders]
    try:
        summaries = [run.summary() for run in runs]
        print(side_by_side([(label_of(summary), summary) for summary in summaries]))
        if options.plots:
            _draw(runs, options.plots)
    except HiSparseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _draw(runs: Sequence[RunFolder], folder: Path) -> None:
    """Overlay the runs of each scenario, in a folder of its name when there are several."""
    from hisparse_sim.report.plots import save_plots
    from hisparse_sim.report.run_picture import RunPicture

    pictures: dict[str, list[RunPicture]] = {}
    for run in runs:
        picture = RunPicture.read(run)
        pictures.setdefault(str(picture.summary.get("scenario", "run")), []).append(picture)
    try:
        for scenario, group in pictures.items():
            save_plots(group, folder / scenario if len(pictures) > 1 else folder)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", where=str(folder)) from None


if __name__ == "__main__":
    sys.exit(main())
