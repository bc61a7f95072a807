"""What happened, written down as it happens."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain, repeat
from operator import add, mul, neg, sub

from hisparse_sim.cost.work import StepCost
from hisparse_sim.workload.request import RequestSpec, Session


@dataclass(slots=True)
class RequestRecord:
    """One request's life. Times are seconds of simulated time, None if it did not come so far."""

    id: str
    session: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    """Asked for; ``sampled`` is what came."""
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    finish_s: float | None = None
    sampled: int = 0
    hit_tokens: int | None = None
    """Of the first admission."""
    preemptions: int = 0
    preempted_s: tuple[float, ...] = ()
    """When it was taken out and when it ran again, in turn."""
    load_start_s: float | None = None
    """Of a load from the offload tier before it first ran."""
    load_end_s: float | None = None
    itl_max_s: float = 0.0
    status: str = "incomplete"
    reason: str = ""
    tenant: str = ""
    """Empty: of none."""
    priority: int = 0
    """Lower goes first, under the priority policy."""
    replica: int = 0
    """Which engine of the run it was sent to."""
    rides_from: int = -1
    """First batch, counted as they come back, whose token is not in here yet because the request rides
    in the scheduler's cohort; -1: it does not."""


def record_of(session: Session, spec: RequestSpec, arrival_s: float, replica: int = 0) -> RequestRecord:
    """Of a request that has just arrived."""
    tags = session.tags
    return RequestRecord(
        spec.id,
        tags.get("session", session.id),
        arrival_s,
        spec.prompt_tokens,
        spec.output_tokens,
        tenant=tags.get("tenant", ""),
        priority=spec.priority,
        replica=replica,
    )


@dataclass(slots=True)
class StepRow:
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
    """After the first of them; later ones differ by at most ``Recorder.grain_blocks``."""
    host_free_blocks: int
    preemptions: int
    resident_pages: int
    """Pages of running requests that have a GPU copy."""
    host_only_pages: int
    h2d_bytes: float
    """Put on one GPU's link by these steps, or by loads that began since the step before."""
    d2h_bytes: float
    hot_blocks: int = 0
    """Blocks of running requests' hot buffers."""
    replica: int = 0
    """Which engine of the run."""

    def go_on(self, steps: int, end_s: float, h2d_bytes: float, d2h_bytes: float) -> None:
        """So many steps more, of the same kind; bytes are of one."""
        self.last_step += steps
        self.end_s = end_s
        self.h2d_bytes = added(self.h2d_bytes, h2d_bytes, steps)
        self.d2h_bytes = added(self.d2h_bytes, d2h_bytes, steps)


def added(total: float, value: float, times: int) -> float:
    """``total`` and the value so many times, one after the other: to the last bit as single steps add it."""
    if value:
        for _ in range(times):
            total += value
    return total


@dataclass(slots=True)
class Recorder:
    """Collects requests, steps and totals of one run."""

    grain_blocks: int = 0
    """Free GPU blocks may change by so many within a row."""
    replica: int = 0
    """Which engine of the run writes."""
    requests: list[RequestRecord] = field(default_factory=list)
    rows: list[StepRow] = field(default_factory=list)
    queue: list[tuple[float, int, int]] = field(default_factory=list)
    """(time, running, waiting) whenever one of them changes, as vLLM's gauges would show it.

    The engine counts when it schedules, so a request that arrives during a step is seen after it.
    Waiting includes requests that load from an offload tier, as in ``vllm:num_requests_waiting``.
    """
    gaps: dict[int, int] = field(default_factory=dict)
    """Inter-token latencies in microseconds, with their counts."""
    returned_s: float = 0.0
    """When the last batch came back."""
    _longest: list[tuple[int, float]] = field(default_factory=list)
    """(batch, gap before it) of each batch after which no longer gap has come: gaps fall."""
    gaps_s: float = 0.0
    """Their exact sum."""
    paid: Sequence[float] = StepCost()
    """Costs of all steps together, without the last ones if these differ in their attention alone."""
    _alike: StepCost = field(default_factory=StepCost)
    """One of those last ones."""
    _times: int = 0
    """How many they are."""
    _attention_s: float = 0.0
    """Of all of them."""
    link_s: float = 0.0
    """Steps waited so long for transfers, beyond their cost."""
    short_of: dict[str, float] = field(default_factory=dict)
    """Seconds during which requests waited, by what they lacked."""
    steps: int = 0
    busy_s: float = 0.0
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

    @property
    def cost(self) -> StepCost:
        """Of all steps together."""
        return StepCost(*self._paid())

    def _paid(self) -> list[float]:
        paid = list(map(add, self.paid, map(mul, repeat(self._times), self._alike)))
        paid[0] = self.paid[0] + self._attention_s
        return paid

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of engine steps by part of their cost; ``link``: waiting for a transfer."""
        named = zip(StepCost._fields, self.cost, strict=True)
        parts = {name.removesuffix("_s"): value for name, value in named if name.endswith("_s") and value}
        return parts | ({"link": self.link_s} if self.link_s else {})

    def queue_is(self, now: float, running: int, waiting: int, lack: str = "") -> None:
        """Running and waiting requests from ``now`` on, and what the waiting ones lack."""
        if lack != self._lack[1]:
            self.lacks(now, lack)
        last = self.queue[-1] if self.queue else None
        if last is None or last[1] != running or last[2] != waiting:
            if last is not None and last[0] == now:
                self.queue.pop()
            self.queue.append((now, running, waiting))

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

    def step(self, row: StepRow, cost: StepCost, *, waits: bool = True) -> None:
        """One engine step; it joins the last row if that is of the same kind.

        ``waits``: it may have waited for transfers, and so taken longer than its cost.
        """
        seconds = row.end_s - row.start_s
        self.busy_s += seconds
        if waits and (stall := seconds - cost.total_s) > _ROUNDING_S:
            self.link_s += stall
        self._pay(cost, 1)
        self._attention_s += cost.attention_s
        self._append(row)

    def _append(self, row: StepRow) -> StepRow:
        """Put a step into the last row if that is of the same kind; returns the row that it is in."""
        last = self.rows[-1] if self.rows else None
        if (
            last is not None
            and last.decodes == row.decodes
            and not row.prefill_tokens
            and not last.prefill_tokens
            and last.running == row.running
            and last.waiting == row.waiting
            and abs(last.gpu_free_blocks - row.gpu_free_blocks) <= self.grain_blocks
            and last.host_free_blocks == row.host_free_blocks
            and last.host_only_pages == row.host_only_pages
            and last.preemptions == row.preemptions == 0
            and row.start_s == last.end_s
        ):
            last.go_on(1, row.end_s, row.h2d_bytes, row.d2h_bytes)
            return last
        self.rows.append(row)
        return row

    def _pay(self, cost: StepCost, steps: int) -> None:
        """Count so many steps that cost the same, apart from their attention, which comes first in a cost."""
        self.steps += steps
        if cost[1:] == self._alike[1:]:
            self._times += steps
        else:
            self.paid, self._attention_s = self._paid(), 0.0
            self._alike, self._times = cost, steps

    def decodes(
        self,
        row: StepRow,
        cost: StepCost,
        attentions_s: Sequence[float],
        ends_s: Sequence[float],
        free_blocks: Sequence[int],
    ) -> None:
        """Steps one after the other, each a token of all ``row.decodes`` requests, which ride in the cohort.

        ``row`` and ``cost`` are of each of them, apart from attention, ends and free GPU blocks, which
        do not rise. The first begins at ``row.start_s``.
        """
        steps, riders = len(ends_s), row.decodes
        if not steps:
            return
        first = self.steps
        self._pay(cost, steps)
        # Added one after the other, as single steps are; sum would round otherwise from Python 3.12 on.
        waits_s = list(map(sub, ends_s, chain((self.returned_s,), ends_s)))
        self._attention_s = reduce(add, attentions_s, self._attention_s)
        self.busy_s = reduce(add, waits_s[1:], self.busy_s + (ends_s[0] - row.start_s))
        self.gaps_s = reduce(add, map(mul, waits_s, repeat(riders)), self.gaps_s)
        self.returned_s, gaps = ends_s[-1], self.gaps
        for gap_s in waits_s:
            us = int(gap_s * 1e6 + 0.5)
            gaps[us] = gaps.get(us, 0) + riders
        self.rode(first, max(waits_s))
        self._append_alike(row, first, ends_s, free_blocks)

    def _append_alike(self, row: StepRow, step: int, ends_s: Sequence[float], free: Sequence[int]) -> None:
        """The rows of ``decodes``, whose first is ``step``."""
        done, steps = 0, len(ends_s)
        h2d_bytes, d2h_bytes = row.h2d_bytes, row.d2h_bytes
        while True:
            row.first_step = row.last_step = step + done
            row.end_s, row.gpu_free_blocks = ends_s[done], free[done]
            last = self._append(row)
            done += 1
            # A row tells the free blocks of its first step.
            least = last.gpu_free_blocks - self.grain_blocks
            more = bisect_right(free, -least, done, steps, key=neg) - done
            if more:
                done += more
                last.go_on(more, ends_s[done - 1], h2d_bytes, d2h_bytes)
            if done == steps:
                return
            row = replace(last, start_s=ends_s[done - 1], h2d_bytes=h2d_bytes, d2h_bytes=d2h_bytes)

    def tokens(self, now: float, records: Sequence[RequestRecord], riders: int = 0) -> None:
        """Each of these requests, and ``riders`` that ride in the cohort, has a token more."""
        gaps: dict[float, int] = {}
        if riders:
            gap = now - self.returned_s
            self.rode(self.steps - 1, gap)
            if not records:
                self.gap(gap, riders)
                self.returned_s = now
                return
            gaps[gap] = riders
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
        for gap in sorted(gaps) if len(gaps) > 1 else gaps:  # whoever rides, the sum is the same
            self.gap(gap, gaps[gap])
        self.returned_s = now

    def came_along(self, record: RequestRecord, tokens: int) -> None:
        """Accepted drafts that came with a request's sampled token."""
        if record.finish_s is None:
            record.sampled += tokens

    def drafted(self, tokens: int, accepted: int) -> None:
        """A request's step has verified so many drafts."""
        self.verified_steps += 1
        self.draft_tokens += tokens
        self.accepted_tokens += accepted

    def rode(self, batch: int, gap_s: float) -> None:
        """The cohort's requests waited ``gap_s`` for their token of this batch, or of one after it."""
        longest = self._longest
        while longest and longest[-1][1] <= gap_s:
            longest.pop()
        longest.append((batch, gap_s))

    def catch_up(self, record: RequestRecord) -> None:
        """Write down the tokens of a request that has ridden so far (and may go on)."""
        first = record.rides_from
        if first < 0 or first >= self.steps:
            return
        record.sampled += self.steps - first
        record.last_token_s = self.returned_s
        longest = self._longest
        record.itl_max_s = max(record.itl_max_s, longest[bisect_left(longest, (first, 0.0))][1])
        record.rides_from = self.steps

    def gap(self, seconds: float, count: int = 1) -> None:
        """``count`` tokens came ``seconds`` after the one before."""
        self.gaps_s += seconds * count
        gaps, us = self.gaps, int(seconds * 1e6 + 0.5)
        gaps[us] = gaps.get(us, 0) + count


_ROUNDING_S = 1e-6
"""Less than this between a step's cost and its time is the clock's rounding."""
