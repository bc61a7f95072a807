"""What a run leaves: figures, requests, steps; in memory or in a folder."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from hisparse_sim import __version__
from hisparse_sim.errors import InputError
from hisparse_sim.memory.budget import PoolSizes
from hisparse_sim.scenario.scenario import Scenario
from hisparse_sim.simulation.columns import StepLog, request_batches, step_batches, write_batches
from hisparse_sim.simulation.record import RequestRecord
from hisparse_sim.simulation.rows import StepRow

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

INTERRUPTED = "still under way when the run was interrupted"
SO_FAR = "still under way when this was written; the run went on"


class Result(Struct, frozen=True):
    """One run. ``timing`` is about the machine that simulated, everything else about the scenario."""

    scenario: Scenario
    pools: PoolSizes
    summary: dict[str, Any]
    request_records: list[RequestRecord]
    step_log: StepLog
    timing: dict[str, Any]
    under_way: str = INTERRUPTED
    """Why requests are incomplete, if some are."""

    @property
    def requests(self) -> pd.DataFrame:
        """A row a request, in order of arrival; times in seconds of simulated time, NaN if undefined."""
        import pandas as pd

        pieces = [batch.to_pandas() for batch in self._request_batches()]
        frame: pd.DataFrame = pd.concat(pieces, ignore_index=True)
        return frame

    @property
    def steps(self) -> pd.DataFrame:
        """A row a run of equal engine steps."""
        import pandas as pd

        pieces = [batch.to_pandas() for batch in step_batches(self.step_log)]
        frame: pd.DataFrame = pd.concat(pieces, ignore_index=True)
        return frame

    @property
    def step_rows(self) -> list[StepRow]:
        """The same as records."""
        lists = ([column.tolist() for column in piece.values()] for piece in self.step_log.pieces())
        return [StepRow(*values) for columns in lists for values in zip(*columns, strict=True)]

    def _request_batches(self) -> Iterator[pa.RecordBatch]:
        return request_batches(self.request_records, self.under_way)

    def write(self, folder: Path) -> None:
        """Write all files, or none: they are made beside their places and moved there together.

        So files of an earlier write are whole until new ones take their places, whenever this ends.

        ``scenario.yaml`` (which ``run`` takes again), ``summary.json``, ``requests.parquet`` and
        ``steps.parquet`` are the same bytes for the same scenario and seed; ``timing.json`` is not.
        Raises ``InputError``.
        """
        made: Path | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(prefix=_MADE, dir=folder))
            self._write_scenario(made / "scenario.yaml")
            _write_json(made / "summary.json", self.summary)
            _write_json(made / "timing.json", self.timing)
            write_batches(made / "requests.parquet", self._request_batches())
            write_batches(made / "steps.parquet", step_batches(self.step_log))
            for file in sorted(made.iterdir()):
                file.replace(folder / file.name)
        except OSError as error:
            raise _unwritable(folder, error) from None
        finally:
            if made is not None:
                shutil.rmtree(made, ignore_errors=True)

    def _write_scenario(self, path: Path) -> None:
        from hisparse_sim.scenario.yaml_file import as_yaml

        resolved = {
            "version": __version__,
            "seed": self.scenario.seed,
            "calibration": self.summary["calibration"],
            "calibration_sha256": self.summary["calibration_sha256"],
            "max_model_len": self.pools.max_model_len,
            "scenario": self.scenario.model_dump(mode="json", exclude={"plan"}),
        }
        path.write_text(as_yaml(resolved), encoding="utf-8")


FILES = ("scenario.yaml", "summary.json", "timing.json", "requests.parquet", "steps.parquet")
"""What a run writes."""


_MADE = ".run-"


def remove_leftovers(folder: Path) -> None:
    """What a run left in ``folder`` that was killed while it wrote."""
    for made in folder.glob(f"{_MADE}*"):
        shutil.rmtree(made, ignore_errors=True)


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


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n", encoding="utf-8")
