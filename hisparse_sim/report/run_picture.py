"""A run as it is drawn: its tables, its name, and its quantities over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hisparse_sim.report.run_files import RunFolder, label_of
from hisparse_sim.report.series import Floats, TimeGrid

if TYPE_CHECKING:
    import pandas as pd

GB = 1e9
TIERS = ("indexer", "hot buffers", "resident", "resident, hot", "resident, idle")
"""What blocks of the GPU pool hold; ``resident, hot`` where no more is known."""


@dataclass(frozen=True, slots=True)
class RunPicture:
    """What is drawn of a run: its ``summary.json``, two tables, and where they came from."""

    summary: dict[str, Any]
    requests: pd.DataFrame
    steps: pd.DataFrame
    folder: str = ""

    @classmethod
    def read(cls, folder: RunFolder) -> RunPicture:
        """From the files of a run, which may go on and replace them meanwhile. Raises InputError."""
        summary = folder.summary()
        while True:
            run = cls(summary, folder.requests(), folder.steps(), str(folder.path))
            summary = folder.summary()
            if summary == run.summary:
                return run

    @property
    def end_s(self) -> float:
        """When the last step ended."""
        return float(self.steps["end_s"].max()) if len(self.steps) else 0.0

    def parts(self) -> list[RunPicture]:
        """One picture a replica, with its own steps; of a run of one replica, itself."""
        if not self.several:
            return [self]
        of = self.steps["replica"]
        return [replace(self, steps=self.steps[of == number]) for number in sorted(of.unique())]

    @property
    def decoding(self) -> RunPicture:
        """With the steps of those engines only that decode."""
        return replace(self, steps=self.steps[~self._prefills]) if self._prefills.any() else self

    @property
    def prefilling(self) -> RunPicture | None:
        """With the steps of those engines only that do nothing but prefill; none where there are none."""
        return replace(self, steps=self.steps[self._prefills]) if self._prefills.any() else None

    @property
    def of_sglang(self) -> bool:
        """SGLang's engine, whose pools hold other things."""
        return self.summary.get("engine") == "sglang"

    @property
    def several(self) -> bool:
        """Whether engines of this run have steps at the same time."""
        return "replica" in self.steps and len(self.steps) > 0 and bool(self.steps["replica"].max())

    @property
    def note(self) -> str:
        """What keeps the picture from being a whole run's, if anything does."""
        if not len(self.steps):
            return "nothing ran"
        return "" if self.summary.get("complete", True) else "not complete"

    def column(self, name: str) -> Floats:
        """A column of the steps, zeros where the run has none."""
        if name not in self.steps:
            return np.zeros(len(self.steps))
        return np.asarray(self.steps[name], dtype=np.float64)

    def finite(self, name: str) -> Floats:
        """Values of a column of the requests where it is defined."""
        if name not in self.requests:
            return np.zeros(0)
        values = np.asarray(self.requests[name], dtype=np.float64)
        return values[np.isfinite(values)]

    # -- memory ---------------------------------------------------------------------------------

    def _pool(self, name: str) -> int:
        value = (self.summary.get("pools") or {}).get(name)
        return int(value) if value else 0

    @property
    def gpu_blocks(self) -> int:
        """Blocks of the GPU pool; one of vLLM's is its null block, which holds nothing."""
        return max(self._pool("num_gpu_blocks") - 1, 0)

    @property
    def host_blocks(self) -> int:
        """Blocks of the host pool, or chunks of the offload tier (which has no null block)."""
        return max(self._pool("num_host_blocks") - (self.summary.get("mode") == "hisparse"), 0)

    def used_share(self, pool: str) -> Floats | None:
        """Share of the ``gpu`` or ``host`` pool in use in each row of the steps; none without a pool.

        The most that was ever free counts as all of it, when the summary does not say.
        """
        left = self.column(f"{pool}_free_blocks")
        sizes = self._sizes(pool, left)
        if not sizes.any():
            return None
        return np.where(sizes > 0, np.clip(1 - left / np.maximum(sizes, 1), 0, 1), 0.0)

    def _sizes(self, pool: str, left: Floats) -> Floats:
        """Blocks of the pool of the engine of each row; engines that only prefill have no host pool."""
        most = left[~self._prefills].max(initial=0)
        sizes = np.full(len(left), getattr(self, f"{pool}_blocks") or most, dtype=np.float64)
        theirs = int((self.summary.get("prefill") or {}).get("num_gpu_blocks") or 1) - 1
        return np.where(self._prefills, theirs if pool == "gpu" else 0, sizes)

    @property
    def _prefills(self) -> npt.NDArray[np.bool_]:
        """Rows of the steps of engines that only prefill: they are numbered last."""
        if not self.summary.get("prefill") or "replica" not in self.steps:
            return np.zeros(len(self.steps), dtype=bool)
        return np.asarray(self.steps["replica"] >= self.replicas, dtype=bool)

    def gpu_tiers(self) -> dict[str, Floats]:
        """Share of the GPU pool that each of ``TIERS`` holds, in each row of the steps of decoding engines.

        SGLang's indexer keys lie outside its pool, and ``resident`` are prompts that are being prefilled.
        Under HiSparse an indexer block goes with each page of a running request; pages that several
        requests share count for each of them here, up to what is in use. ``resident, idle`` are copies
        of running requests' pages that nobody holds: they are used until their blocks are taken.
        """
        used = self.used_share("gpu")
        if used is None:
            return {}
        pages = self.column("resident_pages") + self.column("host_only_pages")
        if not pages.any() or not self.gpu_blocks:
            return {"resident": used}
        if self.of_sglang:
            buffers = np.minimum(self.column("hot_blocks") / self.gpu_blocks, used)
            return {"hot buffers": buffers, "resident": used - buffers}
        indexer = np.minimum(pages / self.gpu_blocks, used)
        if "hot_blocks" not in self.steps:
            return {"indexer": indexer, "resident, hot": used - indexer}
        hot = np.minimum(self.column("hot_blocks") / self.gpu_blocks, used - indexer)
        held = used - indexer - hot
        groups = self._pool("resident_groups")
        copies = groups * self.column("resident_pages") / self.gpu_blocks
        return {
            "indexer": indexer,
            "hot buffers": hot,
            "resident": held,
            "resident, idle": np.clip(copies - held, 0, 1 - used),
        }

    def kv_tokens(self) -> dict[str, Floats]:
        """Tokens of running requests in each row of the steps, by where their KV is.

        A page that has a copy on the GPU counts there. What several requests share counts for each under
        HiSparse, and once in the other modes, which have no pages on the host only.
        """
        size = self._pool("block_size") or 1
        gpu, host = self.column("resident_pages"), self.column("host_only_pages")
        if gpu.any() or host.any():
            return {"on the GPU": size * gpu, "host only": size * host}
        used = self.used_share("gpu")
        blocks = self._sizes("gpu", self.column("gpu_free_blocks"))
        return {} if used is None else {"on the GPU": size * blocks * used}

    # -- over time ------------------------------------------------------------------------------

    def mean(self, grid: TimeGrid, values: Floats, *, hold: bool, share: bool = False) -> Floats:
        """Mean of ``values`` (one a row of the steps) in each interval of ``grid``.

        Of several replicas their sum, or, of a ``share`` of what each has, the mean of those that decode.
        """
        start_s, end_s = self.column("start_s"), self.column("end_s")
        if not self.several:
            return grid.mean(start_s, end_s, values, hold=hold)
        decodes, several = ~self._prefills, self.replicas
        total = np.zeros(len(grid.edges_s) - 1)
        for mine in self._each():
            if not share or decodes[mine].any():
                total += grid.mean(start_s[mine], end_s[mine], values[mine], hold=hold)
        return total / several if share else total

    @property
    def replicas(self) -> int:
        """Engines of the run, without those that only prefill."""
        return int(self.summary.get("replicas") or 1)

    def running(self, grid: TimeGrid) -> Floats:
        """Running requests; none between steps."""
        return self.mean(grid, self.column("running"), hold=False)

    def waiting(self, grid: TimeGrid) -> Floats:
        """Waiting requests, loading ones included; between steps, those that came and never ran."""
        during = self.mean(grid, self.column("waiting"), hold=False)
        if self.several:
            return during
        start_s, end_s = self.column("start_s"), self.column("end_s")
        gap = start_s[1:] - end_s[:-1] > 0
        if not gap.any():
            return during
        from_s, to_s = end_s[:-1][gap], start_s[1:][gap]
        scheduled = self.finite("first_scheduled_s")
        arrived = np.sort(np.asarray(self.requests["arrival_s"])[_defined(self, "first_scheduled_s")])
        middle = (from_s + to_s) / 2
        count = np.searchsorted(arrived, middle) - np.searchsorted(np.sort(scheduled), middle)
        return during + grid.mean(from_s, to_s, count.astype(np.float64), hold=False)

    def preemptions_so_far(self, grid: TimeGrid) -> Floats:
        """Preemptions from the beginning."""
        return np.cumsum(self._rate(grid, "preemptions")) * grid.width_s

    def used_percent(self, grid: TimeGrid, pool: str) -> Floats | None:
        """Percent of the ``gpu`` or ``host`` pool in use; none without a pool."""
        share = self.used_share(pool)
        return None if share is None else self.mean(grid, 100 * share, hold=True, share=True)

    def host_only_percent(self, grid: TimeGrid) -> Floats | None:
        """Percent of the host pool that running requests have no GPU copy of; none without such pages."""
        pages = self.column("host_only_pages")
        if not pages.any() or not self.host_blocks:
            return None
        return self.mean(grid, 100 * pages / self.host_blocks, hold=False, share=True)

    def gb_per_s(self, grid: TimeGrid, direction: str) -> Floats:
        """Traffic of one GPU's link, ``h2d`` or ``d2h``, in the mean of the replicas that decode."""
        return self._rate(grid, f"{direction}_bytes") / GB / self.replicas

    def _rate(self, grid: TimeGrid, column: str) -> Floats:
        return self.rate_per_s(grid, self.column(column))

    def rate_per_s(self, grid: TimeGrid, amount: Floats) -> Floats:
        """``amount`` of each row of the steps, a second, of all engines together."""
        start_s, end_s = self.column("start_s"), self.column("end_s")
        total = np.zeros(len(grid.edges_s) - 1)
        for mine in self._each():
            total += grid.rate_per_s(start_s[mine], end_s[mine], amount[mine])
        return total

    def extremes(self, grid: TimeGrid, values: Floats) -> tuple[Floats, Floats]:
        """Least and most of ``values`` of any engine in each interval; NaN where none has a step."""
        start_s, end_s = self.column("start_s"), self.column("end_s")
        found = [grid.extremes(start_s[mine], end_s[mine], values[mine]) for mine in self._each()]
        least, most = zip(*found, strict=True)
        return np.fmin.reduce(least), np.fmax.reduce(most)

    def _each(self) -> list[npt.NDArray[np.bool_]]:
        """Rows of the steps of each engine: of several together they are in no order of time."""
        if not self.several:
            return [np.ones(len(self.steps), dtype=bool)]
        of = np.asarray(self.steps["replica"])
        return [of == number for number in np.unique(of)]


def _defined(run: RunPicture, column: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.isfinite(np.asarray(run.requests[column], dtype=np.float64))


def names(runs: Sequence[RunPicture]) -> tuple[str, list[str]]:
    """What all runs have in common, and what tells each from the others."""
    labels = [label_of(run.summary).split("\n") for run in runs]
    if len(runs) == 1:
        return _noted(", ".join(labels[0]), runs[0]), [""]
    common = labels[0][0] if len({label[0] for label in labels}) == 1 else ""
    found = [", ".join(label[1:] if common else label) or common for label in labels]
    if len(set(found)) < len(found):
        # The same scenario in the same mode: the folders differ.
        tails = [Path(run.folder).name for run in runs]
        if len(set(tails)) < len(tails):
            tails = [run.folder for run in runs]
        if len(set(tails)) < len(tails):
            tails = [f"run {number}" for number in range(1, len(runs) + 1)]
        found = tails
    return common, [_noted(name, run) for name, run in zip(found, runs, strict=True)]


def _noted(name: str, run: RunPicture) -> str:
    return f"{name} ({run.note})" if run.note else name
