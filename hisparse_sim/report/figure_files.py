"""A figure as files: PNG and SVG, the same bytes for the same figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hisparse_sim.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_UNDATED: dict[str, dict[str, None]] = {"png": {"Software": None}, "svg": {"Date": None}}


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write ``NAME.png`` and ``NAME.svg`` into ``folder``, which is made. Raises InputError."""
    paths = [folder / f"{name}.{suffix}" for suffix in _UNDATED]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            figure.savefig(path, dpi=200, metadata=_UNDATED[path.suffix[1:]])
    except OSError as error:
        raise InputError(f"cannot be written here ({error.strerror or error})", where=str(folder)) from None
    return paths
