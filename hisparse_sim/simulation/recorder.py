"""What happened, written down as it happens."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import astuple

from hisparse_sim.cost.work import StepCost
from hisparse_sim.simulation.gaps import Gaps, added
from hisparse_sim.simulation.record import RequestRecord
from hisparse_sim.simulation.rows import (
    COUNTS,
    END,
    FIELDS,
    FIRST,
    FREE,
    LAST,
    OF_BYTES,
    OF_COUNTS,
    START,
    Counts,
    Floats,
    Rows,
)

AT_A_TIME = 4096
"""Steps that are noted before they are worked up, where there are few engines."""
_DECODES = COUNTS.index("decodes")


class Recorder(Struct):
    """Collects requests, steps and totals of one run.

    Steps are only noted as they come, and worked up many at a time by ``settle``; what follows from them
    is true after that, and the same to the last bit however often it is called.
    """

    rows: Rows = field(default_factory=Rows)
    replica: int = 0
    """Which engine of the run writes."""
    at_a_time: int = AT_A_TIME
    """Steps that are noted before they are worked up."""
    requests: list[RequestRecord] = []
    queue: list[tuple[float, int, int]] = []
    """(time, running, waiting) whenever one of them changes, as vLLM's gauges would show it.

    The engine counts when it schedules, so a request that arrives during a step is seen after it.
    Waiting includes requests that load from an offload tier, as in ``vllm:num_requests_waiting``.
    """
    returned_s: float = 0.0
    """When the last batch came back."""
    gaps: Gaps = field(default_factory=Gaps)
    paid: list[float] = field(default_factory=lambda: list(astuple(StepCost())))
    """Costs of all steps together, in the order of ``StepCost``."""
    busy_s: float = 0.0
    link_s: float = 0.0
    """Steps waited so long for transfers, beyond their cost."""
    short_of: dict[str, float] = {}
    """Seconds during which requests waited, by what they lacked."""
    steps: int = 0
    prompt_tokens: int = 0
    """Of requests admitted for the first time."""
    hit_tokens: int = 0
    loaded_tokens: int = 0
    preemptions: int = 0
    verified_steps: int = 0
    """Steps of a request that verified drafts."""
    draft_tokens: int = 0
    accepted_tokens: int = 0
    _lack: tuple[float, str] = (0.0, "")
    _settled_s: float = 0.0
    """End of the last step that is worked up."""
    _runs: list[tuple[int, float, float, Counts, StepCost]] = []
    """Of each run of equal steps noted since: how many, how many ride in the cohort, when the first began,
    and what is the same in each but for its attention."""
    _ends_s: list[float] = []
    _free_blocks: list[int] = []
    _apart: list[float] = []
    """Step, gap and tokens where tokens of one step came after different gaps."""
    _moved: list[tuple[int, int, int]] = []
    """Step, and bytes to and from the device that are counted with it."""

    @property
    def cost(self) -> StepCost:
        """Of all steps together."""
        return StepCost(*self.paid)

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of engine steps by part of their cost; ``link``: waiting for a transfer."""
        named = zip(StepCost.__struct_fields__, self.paid, strict=True)
        parts = {name.removesuffix("_s"): value for name, value in named if name.endswith("_s") and value}
        return parts | ({"link": self.link_s} if self.link_s else {})

    def queue_is(self, now: float, running: int, waiting: int, lack: str = "") -> None:
        """Running and waiting requests from ``now`` on, and what the waiting ones lack."""
        if lack != self._lack[1]:
            self.lacks(now, lack)
        queue = self.queue
        if queue:
            since, ran, waited = queue[-1]
            if ran == running and waited == waiting:
                return
            if since == now:
                queue.pop()
        queue.append((now, running, waiting))

    def waited(self, until: float) -> dict[str, float]:
        """``short_of`` as it would be if the run ended then."""
        since, what = self._lack
        if not what or until <= since:
            return self.short_of
        return self.short_of | {what: self.short_of.get(what, 0.0) + until - since}

    def lacks(self, now: float, what: str) -> None:
        """From ``now`` on waiting requests lack ``what``; book the time until then."""
        since, before = self._lack
        if before and now > since:
            self.short_of[before] = self.short_of.get(before, 0.0) + now - since
        self._lack = now, what

    # -- steps as they come ---------------------------------------------------------------------

    def step(
        self,
        counts: Counts,
        start_s: float,
        end_s: float,
        free_blocks: int,
        cost: StepCost,
        riders: int = 0,
        records: Sequence[RequestRecord] = (),
        *,
        waits: bool = False,
    ) -> None:
        """One engine step; ``riders``, which ride in the cohort, and each of ``records`` have a token more.

        ``waits``: it may have waited for transfers, and so taken longer than its cost.
        """
        if waits and (stall := end_s - start_s - cost.total_s) > _ROUNDING_S:
            self.link_s += stall
        if records:
            riders = self._tokens(end_s, records, riders)
        self._runs.append((1, riders, start_s, counts, cost))
        self.paid[0] += cost.attention_s
        self._ends_s.append(end_s)
        self._free_blocks.append(free_blocks)
        self.returned_s = end_s
        self.steps += 1
        if len(self._ends_s) >= self.at_a_time:
            self.settle()

    def decodes(
        self,
        counts: Counts,
        start_s: float,
        ends_s: Sequence[float],
        free_blocks: Sequence[int],
        cost: StepCost,
        attentions_s: Sequence[float],
    ) -> None:
        """Steps one after the other, each a token of all that decode, which ride in the cohort.

        ``counts`` and ``cost`` are of each of them, apart from its attention.
        """
        if not ends_s:
            return
        self._runs.append((len(ends_s), counts[_DECODES], start_s, counts, cost))
        # Added one after the other, as single steps are; sum would round otherwise from Python 3.12 on.
        self.paid[0] = reduce(add, attentions_s, self.paid[0])
        self._ends_s += ends_s
        self._free_blocks += free_blocks
        self.returned_s = ends_s[-1]
        self.steps += len(ends_s)
        if len(self._ends_s) >= self.at_a_time:
            self.settle()

    def _tokens(self, now: float, records: Sequence[RequestRecord], riders: int) -> int:
        """Each of these requests has a token more; of how many riders the gap is not written down."""
        gaps: dict[float, int] = {}
        for record in records:
            record.sampled += 1
            if record.last_token_s is None:
                record.first_token_s = now
            else:
                gap = now - record.last_token_s
                gaps[gap] = gaps.get(gap, 0) + 1
                if gap > record.itl_max_s:
                    record.itl_max_s = gap
            record.last_token_s = now
        if not gaps:
            return riders
        if riders:
            gap = now - self.returned_s
            gaps[gap] = gaps.get(gap, 0) + riders
        for gap in sorted(gaps):  # whoever rides, the sum is the same
            self._apart += (self.steps, gap, gaps[gap])
        return 0

    def moved(self, h2d_bytes: int, d2h_bytes: int) -> None:
        """Bytes that begin to move without a step are counted with the last one."""
        if self.steps and (h2d_bytes or d2h_bytes):
            self._moved.append((self.steps - 1, h2d_bytes, d2h_bytes))

    def came_along(self, record: RequestRecord, tokens: int) -> None:
        """Accepted drafts that came with a request's sampled token."""
        if record.finish_s is None:
            record.sampled += tokens

    def drafted(self, tokens: int, accepted: int) -> None:
        """A request's step has verified so many drafts."""
        self.verified_steps += 1
        self.draft_tokens += tokens
        self.accepted_tokens += accepted

    def catch_up(self, record: RequestRecord) -> None:
        """Write down the tokens of a request that has ridden so far (and may go on)."""
        first = record.rides_from
        if first < 0 or first >= self.steps:
            return
        record.sampled += self.steps - first
        record.last_token_s = self.returned_s
        record.rides_from = self.steps
        self.gaps.rode(record, first, self.steps)

    # -- many steps at a time -------------------------------------------------------------------

    def settle(self) -> None:
        """Work up what is noted."""
        ends_s = _array(self._ends_s)
        base, self._ends_s = self.steps - len(ends_s), []
        befores_s = np.concatenate(([self._settled_s], ends_s))[:-1]
        self._settled_s = self.returned_s
        (lengths, riders, run_starts_s, counts, costs), self._runs = _columns(self._runs, 5), []
        times = np.array(lengths, dtype=np.intp)

        self.gaps.add(base, ends_s - befores_s, np.repeat(_array(riders), times), self._apart)
        self._apart.clear()
        for part, values in enumerate(_columns(map(astuple, costs), len(self.paid))):
            if part and any(values):  # a step's attention, the first part, is its own
                self.paid[part] = added(self.paid[part], np.repeat(_array(values), times))
        # Only the first step of a run may begin later than the one before it ended.
        starts_s = befores_s.copy()
        starts_s[np.cumsum(times) - times] = run_starts_s
        self.busy_s = added(self.busy_s, ends_s - starts_s)

        steps = np.zeros((len(FIELDS), len(ends_s)))
        steps[FIRST] = steps[LAST] = np.arange(base, self.steps)
        steps[START], steps[END], steps[-1] = starts_s, ends_s, self.replica
        steps[FREE] = array("q", self._free_blocks)
        self._free_blocks.clear()
        for index, values in zip(OF_COUNTS, _columns(counts, len(COUNTS)), strict=True):
            if any(values):
                steps[index] = np.repeat(_array(values), times)
        for step, *size in self._moved:
            table, at = (steps, step - base) if step >= base else (self.rows.last, 0)
            table[OF_BYTES, at] += size
        self._moved.clear()
        self.rows.add(steps)


def _columns(rows: Iterable[tuple[Any, ...]], width: int) -> list[tuple[Any, ...]]:
    """The values of each column; empty ones if there is no row."""
    return list(zip(*rows, strict=True)) or [()] * width


def _array(values: Sequence[float]) -> Floats:
    """The same, twice as fast as numpy makes one of a list."""
    return np.frombuffer(array("d", values))


_ROUNDING_S = 1e-6
"""Less than this between a step's cost and its time is the clock's rounding."""
