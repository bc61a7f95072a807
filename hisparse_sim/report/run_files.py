"""The folder that a run leaves behind, read back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisparse_sim.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A folder with ``summary.json``, ``scenario.yaml``, ``requests.parquet`` and ``steps.parquet``."""

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

    def label(self) -> str:
        """Scenario and mode on two lines, or the folder's name where the scenario is not there."""
        import yaml

        try:
            scenario = yaml.safe_load((self.path / "scenario.yaml").read_text(encoding="utf-8"))
            scenario = scenario.get("scenario", scenario)
            return f"{scenario['name']}\n{scenario['engine']['mode']}"
        except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError):
            return self.path.name

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
