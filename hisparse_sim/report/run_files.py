"""The folder that a run leaves behind, read back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisparse_sim.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


def label_of(summary: dict[str, Any]) -> str:
    """Scenario and mode of a run, each on a line of its own."""
    return "\n".join(str(summary[key]) for key in ("scenario", "mode") if key in summary) or "run"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A folder with ``summary.json``, ``requests.parquet`` and ``steps.parquet``."""

    path: Path

    def summary(self) -> dict[str, Any]:
        """``summary.json``. Raises InputError when it is not there or not JSON."""
        file = self.path / "summary.json"
        try:
            summary = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(
                f"cannot be read ({error.strerror}); give a folder that `hisparse-sim run --out` wrote",
                where=str(file),
            ) from None
        except ValueError:
            raise InputError("is not whole JSON; was the run cut short?", where=str(file)) from None
        if not isinstance(summary, dict):
            raise InputError("holds no summary", where=str(file))
        return summary

    def requests(self) -> pd.DataFrame:
        """``requests.parquet``: a row a request."""
        return self._frame("requests.parquet")

    def steps(self) -> pd.DataFrame:
        """``steps.parquet``: a row a run of equal steps."""
        return self._frame("steps.parquet")

    def _frame(self, name: str) -> pd.DataFrame:
        import pandas as pd

        file = self.path / name
        try:
            return pd.read_parquet(file)
        except (OSError, ValueError) as error:
            raise InputError(f"cannot be read: {error}", where=str(file)) from None
