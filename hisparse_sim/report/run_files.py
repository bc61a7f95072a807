"""The folder that a run leaves behind, read back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisparse_sim.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

REQUEST_TIMES = ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s")
REQUEST_COLUMNS = (*REQUEST_TIMES, "ttft_s", "tpot_s", "e2e_s")
"""What is read of ``requests.parquet``, beside ``request_id`` and what later versions add."""
STEP_COLUMNS = (
    "start_s",
    "end_s",
    "running",
    "waiting",
    "preemptions",
    "gpu_free_blocks",
    "host_free_blocks",
    "resident_pages",
    "host_only_pages",
    "h2d_bytes",
    "d2h_bytes",
)
"""What is read of ``steps.parquet``."""


def label_of(summary: dict[str, Any]) -> str:
    """Scenario and mode of a run, each on a line of its own."""
    lines = [str(summary[key]) for key in ("scenario", "mode") if key in summary]
    if lines and summary.get("engine") == "sglang":
        lines[-1] += " (SGLang)"
    return "\n".join(lines) or "run"


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
        """``requests.parquet``: a row a request. Raises InputError."""
        text = ("request_id", "session", "status", "replica")
        lists = ("preempted_s",)
        return self._frame("requests.parquet", REQUEST_COLUMNS, (*text, "load_start_s", "load_end_s", *lists))

    def steps(self) -> pd.DataFrame:
        """``steps.parquet``: a row a run of equal steps. Raises InputError."""
        return self._frame(
            "steps.parquet", STEP_COLUMNS, ("hot_blocks", "steps", "decodes", "prefill_tokens", "replica")
        )

    def _frame(self, name: str, needed: Sequence[str], wanted: Sequence[str]) -> pd.DataFrame:
        """The columns ``needed``, which must be there and hold numbers, and those ``wanted``."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        file = self.path / name
        try:
            with file.open("rb") as raw, pq.ParquetFile(raw) as opened:
                schema = opened.schema_arrow
                there = set(schema.names)
                if missing := [column for column in needed if column not in there]:
                    raise InputError(
                        f"has no column {', '.join(missing)}: not of a run, or of another version",
                        where=str(file),
                    )
                for column in needed:
                    kind = schema.field(column).type
                    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
                        raise InputError(f"column {column} holds {kind}, not numbers", where=str(file))
                table = opened.read([*needed, *(column for column in wanted if column in there)])
                frame: pd.DataFrame = table.to_pandas(
                    split_blocks=True, self_destruct=True, ignore_metadata=True
                )
                return frame
        except InputError:
            raise
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror or error})", where=str(file)) from None
        except ValueError:
            raise InputError("is not a whole Parquet file; was the run cut short?", where=str(file)) from None
