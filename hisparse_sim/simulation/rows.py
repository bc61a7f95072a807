"""Rows of ``steps.parquet``: runs of equal steps, made of many steps at a time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class StepRow(NamedTuple):
    """A run of equal steps. Steps are counted from 0, those that ran on the GPU only."""

    first_step: int
    last_step: int
    start_s: float
    end_s: float
    running: int
    waiting: int
    """Loading ones included."""
    decodes: int
    prefill_tokens: int
    gpu_free_blocks: int
    """After the first of them; later ones differ by at most ``Rows.grain_blocks``."""
    host_free_blocks: int
    preemptions: int
    resident_pages: int
    """Pages of running requests that have a GPU copy."""
    host_only_pages: int
    h2d_bytes: float
    """Put on one GPU's link by these steps, or by loads that began since the step before."""
    d2h_bytes: float
    hot_blocks: int
    """Blocks of running requests' hot buffers."""
    replica: int
    """Which engine of the run."""


FIELDS = StepRow._fields
SECONDS_AND_BYTES = ("start_s", "end_s", "h2d_bytes", "d2h_bytes")
"""Its fields that are no whole numbers."""

COUNTS = (
    "running",
    "waiting",
    "decodes",
    "prefill_tokens",
    "host_free_blocks",
    "preemptions",
    "resident_pages",
    "host_only_pages",
    "h2d_bytes",
    "d2h_bytes",
    "hot_blocks",
)
"""Its fields that are the same in all steps of a jump, in the order of ``Counts``."""
Counts = tuple[int, int, int, int, int, int, int, int, float, float, int]

FIRST, LAST, START, END, FREE = map(
    FIELDS.index, ("first_step", "last_step", "start_s", "end_s", "gpu_free_blocks")
)
OF_COUNTS = [FIELDS.index(name) for name in COUNTS]
OF_BYTES = [FIELDS.index("h2d_bytes"), FIELDS.index("d2h_bytes")]
_KIND = [FIELDS.index(n) for n in ("running", "waiting", "decodes", "host_free_blocks", "host_only_pages")]
_PREFILL, _PREEMPTIONS = FIELDS.index("prefill_tokens"), FIELDS.index("preemptions")


class Rows:
    """Joins steps of the same kind, if no request prefills or is preempted and the GPU's free blocks stay
    within ``grain_blocks`` of those after the first of them.

    Tables have one array a field of ``StepRow``, in its order, and one column a step or row: whole numbers
    below 2^53, as floats. However many steps are added at a time, the rows are the same to the last bit.
    """

    def __init__(self, grain_blocks: int = 0) -> None:
        self.grain_blocks = grain_blocks
        self.closed: list[Floats] = []
        """Tables of rows that are complete."""
        self.last = np.empty((len(FIELDS), 0))
        """The last row, which the next step may join; empty before the first step."""

    def add(self, steps: Floats) -> None:
        """Steps that follow."""
        if not steps.shape[1]:
            return
        steps = np.concatenate((self.last, steps), axis=1)  # to what follows, a row is as good as a step
        alone = (steps[_PREFILL] > 0) | (steps[_PREEMPTIONS] > 0)
        begins = np.ones(steps.shape[1], dtype=bool)
        begins[1:] = alone[1:] | alone[:-1] | (steps[START, 1:] != steps[END, :-1])
        for field in _KIND:
            begins[1:] |= steps[field, 1:] != steps[field, :-1]
        self._split(steps[FREE], begins)
        first = np.flatnonzero(begins)
        last = np.append(first[1:], steps.shape[1]) - 1
        rows = steps[:, first]
        rows[LAST], rows[END] = steps[LAST, last], steps[END, last]
        for field in OF_BYTES:
            if steps[field].any():  # bincount adds one after the other
                rows[field] = np.bincount(np.cumsum(begins) - 1, weights=steps[field])
        if len(first) > 1:
            self.closed.append(rows[:, :-1])
        self.last = rows[:, -1:]

    def _split(self, free: Floats, begins: npt.NDArray[np.bool_]) -> None:
        """Begin rows where the free blocks have gone too far from those after the row's first step."""
        first = np.flatnonzero(begins)
        far = np.maximum.reduceat(free, first) - np.minimum.reduceat(free, first) > self.grain_blocks
        ends = np.append(first[1:], len(free))
        for start, end in zip(first[far].tolist(), ends[far].tolist(), strict=True):
            at = start
            while True:
                beyond = np.abs(free[at:end] - free[at]) > self.grain_blocks
                more = int(beyond.argmax())
                if not more:
                    break
                at += more
                begins[at] = True
