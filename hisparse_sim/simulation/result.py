"""What a run leaves: figures, requests, steps; in memory or in a folder."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisparse_sim import __version__
from hisparse_sim.errors import InputError
from hisparse_sim.memory.budget import PoolSizes
from hisparse_sim.scenario.scenario import Scenario
from hisparse_sim.simulation.recorder import RequestRecord, StepRow
from hisparse_sim.simulation.served import e2e_s, tpot_s, ttft_s

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Result:
    """One run. ``timing`` is about the machine that simulated, everything else about the scenario."""

    scenario: Scenario
    pools: PoolSizes
    summary: dict[str, Any]
    request_records: list[RequestRecord]
    step_rows: list[StepRow]
    timing: dict[str, Any]

    @property
    def requests(self) -> pd.DataFrame:
        """A row a request, in order of arrival; times in seconds of simulated time, NaN if undefined."""
        import pandas as pd

        rows = self.request_records
        frame = pd.DataFrame(
            {
                "request_id": [r.id for r in rows],
                "session": [r.session for r in rows],
                "tenant": [r.tenant or None for r in rows],
                "priority": pd.Series([r.priority for r in rows], dtype="int64"),
                **{
                    name: pd.Series([getattr(r, name) for r in rows], dtype="float64")
                    for name in ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s")
                },
                "prompt_tokens": pd.Series([r.prompt_tokens for r in rows], dtype="int64"),
                "output_tokens": pd.Series([r.sampled for r in rows], dtype="int64"),
                "hit_tokens": pd.Series([r.hit_tokens for r in rows], dtype="Int64"),
                "preemptions": pd.Series([r.preemptions for r in rows], dtype="int64"),
                "status": [r.status for r in rows],
                **{
                    name: pd.Series([of(r) for r in rows], dtype="float64")
                    for name, of in (("ttft_s", ttft_s), ("tpot_s", tpot_s), ("e2e_s", e2e_s))
                },
                "itl_max_s": pd.Series([r.itl_max_s for r in rows], dtype="float64"),
                "load_start_s": pd.Series([r.load_start_s for r in rows], dtype="float64"),
                "load_end_s": pd.Series([r.load_end_s for r in rows], dtype="float64"),
                "preempted_s": pd.Series([list(r.preempted_s) for r in rows], dtype="object"),
                "reason": [r.reason for r in rows],
            }
        )
        return frame.astype(dict.fromkeys(("request_id", "session", "tenant", "status", "reason"), "string"))

    @property
    def steps(self) -> pd.DataFrame:
        """A row a run of equal engine steps."""
        import pandas as pd

        names = StepRow.__slots__
        columns = {name: [getattr(r, name) for r in self.step_rows] for name in names}
        floats = ("start_s", "end_s", "h2d_bytes", "d2h_bytes")
        frame = pd.DataFrame(
            {n: pd.Series(v, dtype="float64" if n in floats else "int64") for n, v in columns.items()}
        )
        frame.insert(4, "steps", frame["last_step"] - frame["first_step"] + 1)
        return frame

    def write(self, folder: Path) -> None:
        """Write all files, or none: they are made beside their places and moved there together.

        ``scenario.yaml`` (which ``run`` takes again), ``summary.json``, ``requests.parquet`` and
        ``steps.parquet`` are the same bytes for the same scenario and seed; ``timing.json`` is not.
        Raises ``InputError``.
        """
        made: Path | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(prefix=".run-", dir=folder))
            self._write_scenario(made / "scenario.yaml")
            _write_json(made / "summary.json", self.summary)
            _write_json(made / "timing.json", self.timing)
            _write_requests(made / "requests.parquet", self.requests)
            self.steps.to_parquet(made / "steps.parquet", index=False)
            for file in sorted(made.iterdir()):
                file.replace(folder / file.name)
        except OSError as error:
            raise _unwritable(folder, error) from None
        finally:
            if made is not None:
                shutil.rmtree(made, ignore_errors=True)

    def _write_scenario(self, path: Path) -> None:
        import yaml

        resolved = {
            "version": __version__,
            "seed": self.scenario.seed,
            "calibration": self.summary["calibration"],
            "calibration_sha256": self.summary["calibration_sha256"],
            "max_model_len": self.pools.max_model_len,
            "scenario": self.scenario.model_dump(mode="json"),
        }
        path.write_text(yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True), encoding="utf-8")


FILES = ("scenario.yaml", "summary.json", "timing.json", "requests.parquet", "steps.parquet")
"""What a run writes."""


def check_writable(folder: Path, more: Iterable[str] = ()) -> None:
    """See that ``FILES`` and ``more`` can be written to ``folder``, and make nothing.

    Raises InputError.
    """
    try:
        there = folder.absolute()
        while not there.exists() and there != there.parent:
            if there.is_symlink():
                there.stat()  # says what is wrong: a loop, or a link to nowhere
            there = there.parent
        for name in (*FILES, *more):
            file = folder / name
            if file.is_dir() and not file.is_symlink():
                raise InputError(
                    f"is a folder, where the run would write its file {name}; move it away", where=str(file)
                )
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise _unwritable(folder, error) from None


def _unwritable(folder: Path, error: OSError) -> InputError:
    return InputError(
        f"results cannot be written here ({error.strerror or error}); name a folder you may write to",
        where=f"--out {folder}",
    )


def _write_requests(path: Path, frame: pd.DataFrame) -> None:
    import pyarrow as pa

    schema = pa.Schema.from_pandas(frame, preserve_index=False)
    # Of lists that are all empty the type cannot be told.
    lists = pa.field("preempted_s", pa.list_(pa.float64()))
    schema = schema.set(schema.get_field_index("preempted_s"), lists)
    frame.to_parquet(path, index=False, schema=schema)


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n", encoding="utf-8")
