"""Pictures of runs, PNG and SVG: over time, request by request, and how long requests took.

One run is drawn in one column of a page, several side by side or over each other, always with the
same scales. The same runs give the same bytes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisparse_sim.report.gantt import gantt
from hisparse_sim.report.latency import latency
from hisparse_sim.report.run_picture import RunPicture
from hisparse_sim.report.sheet import style
from hisparse_sim.report.timeline import overlay, timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "PICTURES", "RunPicture", "save_plots"]

PICTURES: dict[str, Callable[[Sequence[RunPicture]], Figure]] = {
    "timeline": timeline,
    "gantt": gantt,
    "latency": latency,
    "overlay": overlay,
}
"""All there are; ``overlay`` is of several runs only, unless it is asked for."""
FORMATS = ("png", "svg")
_METADATA: dict[str, dict[str, Any]] = {"png": {"Software": None}, "svg": {"Date": None}}
_DOTS_PER_INCH = 300


def save_plots(
    runs: Sequence[RunPicture],
    folder: Path,
    *,
    only: Sequence[str] = (),
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Draw one run or several to ``NAME.png`` and ``NAME.svg`` in ``folder``: all of them, or none.

    ``only``: names out of ``PICTURES``. Raises OSError when the folder cannot be written.
    """
    chosen = only or [name for name in PICTURES if name != "overlay" or len(runs) > 1]
    there = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".plots-", dir=folder) as made, style():
            for name in chosen:
                figure = PICTURES[name](runs)
                for suffix in formats:
                    figure.savefig(
                        Path(made, f"{name}.{suffix}"), dpi=_DOTS_PER_INCH, metadata=_METADATA[suffix]
                    )
            written = [folder / f"{name}.{suffix}" for name in chosen for suffix in formats]
            for path in written:
                Path(made, path.name).replace(path)
            return written
    except BaseException:
        if not there:
            with suppress(OSError):
                folder.rmdir()
        raise
