"""One scheduling step, as vLLM V1 decides it.

Running requests first, in the order they were admitted, then waiting ones from the head of the
queue while tokens, places and blocks last. A running request that gets no blocks preempts the most
recently admitted one. There is no clock here: ``schedule`` and ``update`` are called alternately
(or, with asynchronous scheduling, ``update`` for a batch older than the last one scheduled).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from hisparse_sim.memory.base import Hit
from hisparse_sim.scheduler.config import SchedulerConfig
from hisparse_sim.scheduler.queue import FcfsQueue, PriorityQueue, WaitingQueue, urgency
from hisparse_sim.scheduler.request import Request, Status


class Memory(Protocol):
    """What the scheduler asks of the memory behind it: ``ResidentMemory`` or ``HiSparseMemory``."""

    def shortage(self, request: Request) -> str:
        """What a waiting request would lack even if nothing of it were cached; empty: nothing."""

    @property
    def refusal(self) -> str:
        """What the last refused request lacked."""

    @property
    def busy(self) -> bool:
        """Whether transfers are under way that need further steps."""

    def lookup(self, request: Request) -> Hit | None:
        """The prefix of a waiting request; None: it cannot be tried in this step."""

    def admit(self, request: Request, hit: Hit, tokens: int, *, others_running: bool) -> bool:
        """Reserve what the first step needs; False: the queue waits."""

    def extend(self, request: Request, tokens: int) -> bool:
        """Reserve blocks for a running request's next tokens."""

    def may_preempt(self, victim: Request) -> bool:
        """Whether the memory can let go of a request now."""

    def reclaim_pending(self) -> bool:
        """Whether a failing request should wait for blocks on their way back instead of preempting."""

    def release(self, request: Request, *, finished: bool) -> None:
        """Give back what a request holds."""

    def settle(self, scheduled: Mapping[Any, int], step: int) -> None:
        """The work at the end of a step, before its tokens count as computed.

        ``scheduled``: tokens of each request that may need any, in schedule order.
        """

    def returned(self, request: Request, known_tokens: int) -> None:
        """A batch of a running request has come back (asynchronous scheduling)."""

    def complete(self, step: int) -> int:
        """Take note of the transfers that are reported with ``step``."""


class LoadingMemory(Memory, Protocol):
    """A memory whose hits may have to be loaded first: ``OffloadMemory``."""

    def load(self, request: Request, hit: Hit, prefilling: list[Request], *, others_running: bool) -> bool:
        """Reserve blocks for, and start, an asynchronous load; False: the queue waits."""

    def loaded(self, request: Request) -> bool:
        """Whether the load has arrived; if so its blocks count as cached from now on."""

    def readmit(self, request: Request, tokens: int, *, others_running: bool) -> bool:
        """Admit a request whose load has arrived; False: it keeps its blocks and its place."""


@dataclass(slots=True)
class Decision:
    """What one scheduling step decided. ``scheduled`` is in schedule order."""

    step: int
    scheduled: dict[Request, int] = field(default_factory=dict)
    admitted: list[Request] = field(default_factory=list)
    resumed: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    given_up: list[Request] = field(default_factory=list)
    """Preempted and not put back: see ``SchedulerConfig.give_up_after``."""
    dropped_tokens: int = 0
    """Computed tokens that the preempted requests lost (those they find again are counted too)."""
    past: dict[Request, int] = field(default_factory=dict)
    """Tokens computed before this step, of each scheduled request."""
    epochs: dict[Request, tuple[int, bool]] = field(default_factory=dict)
    """Epoch of each scheduled request, and whether the step samples a token for it."""
    running: int = 0
    waiting: int = 0
    short_of: str = ""
    """Why the waiting queue did not empty: tokens, places, GPU blocks, host blocks, loads."""
    hits: dict[Request, Hit] = field(default_factory=dict)
    """Prefix of each request that was admitted or began to load."""
    lookups: list[tuple[Request, Hit]] = field(default_factory=list)
    """Prefix of each waiting request that was tried."""

    def __bool__(self) -> bool:
        return bool(self.scheduled)


class Scheduler:
    """The queues of one engine replica and the decisions over them."""

    def __init__(self, config: SchedulerConfig, memory: Memory) -> None:
        self.config = config
        self.memory = memory
        self.waiting: WaitingQueue = PriorityQueue() if config.priority_policy else FcfsQueue()
        self.loading: list[Request] = []
        self.running: list[Request] = []
        self.step = 0
        self.flush = False
        """A request finished in the last update: one more step tells the workers."""
        self._in_vain = 0
        """Preemptions since some request last got further than ever before."""

    def add(self, request: Request) -> None:
        """A request arrives."""
        self.waiting.add(request)

    @property
    def has_work(self) -> bool:
        """Whether another step has anything to do."""
        return bool(self.running or len(self.waiting) or self.loading or self.flush or self.memory.busy)

    # -- schedule -------------------------------------------------------------------------------

    def schedule(self) -> Decision:
        """Decide the next step."""
        decision = Decision(self.step)
        self.flush = False
        self._threshold = self.config.long_prefill_token_threshold
        alone = len(self.running) + len(self.waiting) + len(self.loading) <= 1
        if alone and not self.config.threshold_when_alone:
            self._threshold = 0
        self._budget = self.config.max_num_batched_tokens
        self._acting: dict[Request, int] = {}
        self._schedule_running(decision)
        if not decision.preempted:
            self._schedule_waiting(decision)
        if self.waiting and not decision.short_of:
            decision.short_of = self._short_of(decision)
        decision.running = len(self.running)
        decision.waiting = len(self.waiting) + len(self.loading)
        self.memory.settle(self._acting, self.step)
        self._count_computed(decision)
        self.step += 1
        return decision

    def _count_computed(self, decision: Decision) -> None:
        asynchronous = self.config.async_scheduling
        past, epochs = decision.past, decision.epochs
        for request, tokens in decision.scheduled.items():
            before = past[request] = request.computed
            request.computed = after = before + tokens
            if after > request.furthest:
                request.furthest = after
                self._in_vain = 0
            samples = after >= request.num_tokens + request.placeholders
            epochs[request] = request.epoch, samples
            if asynchronous:
                request.in_flight += tokens
                request.batches += 1
                if samples:
                    request.placeholders += 1

    def _missing(self, request: Request) -> int:
        """Tokens that a running request computes in this step."""
        if request.placeholders and request.computed + 2 - request.placeholders >= request.limit_tokens:
            return 0  # its last token is already on the way
        n = request.num_tokens + request.placeholders - request.computed
        if 0 < self._threshold < n:
            n = self._threshold
        return min(n, self._budget, self.config.max_model_len - request.computed - 1)

    def _schedule_running(self, decision: Decision) -> None:
        running = self.running
        scheduled = decision.scheduled
        extend = self.memory.extend
        i = 0
        while i < len(running) and self._budget > 0:
            request = running[i]
            computed, ahead = request.computed, request.placeholders
            if (
                computed < request.quiet_until
                and request.num_tokens + ahead - computed == 1
                and not (ahead and computed + 2 - ahead >= request.limit_tokens)
            ):  # decodes a token for which the memory has nothing to do
                scheduled[request] = 1
                self._budget -= 1
                i += 1
                continue
            n = self._missing(request)
            if n <= 0:
                i += 1
                continue
            while not extend(request, n):
                if self.memory.reclaim_pending():
                    return
                victim = max(running, key=urgency) if self.config.priority_policy else running[-1]
                if not self.memory.may_preempt(victim):
                    return
                at = running.index(victim)
                del running[at]
                if at < i:
                    i -= 1
                if victim in scheduled:
                    self._budget += scheduled.pop(victim)
                    self._acting.pop(victim, None)
                self._preempt(victim, decision)
                if victim is request:
                    if self.config.priority_policy and not self.config.self_preemption_ends_step:
                        break
                    return
            else:
                scheduled[request] = self._acting[request] = n
                self._budget -= n
                i += 1

    def _preempt(self, victim: Request, decision: Decision) -> None:
        self.memory.release(victim, finished=False)
        decision.dropped_tokens += victim.computed
        victim.computed = victim.placeholders = victim.in_flight = victim.quiet_until = 0
        victim.stale += victim.batches
        victim.batches = 0
        victim.epoch += 1
        victim.preemptions += 1
        victim.status = Status.PREEMPTED
        decision.preempted.append(victim)
        self._in_vain += 1
        if self._in_vain == self.config.give_up_after:
            self._in_vain = 0
            victim.status = Status.FINISHED
            decision.given_up.append(victim)
        else:
            self.waiting.put_back(victim)

    def _schedule_waiting(self, decision: Decision) -> None:
        if self.loading and not self._schedule_loaded(decision):
            return
        places = self.config.max_num_seqs
        memory = self.memory
        skipped = 0
        while self._budget > 0 and len(self.running) < places:
            request = self._head(skipped)
            if request is None:
                return
            hit = None if request.stale else memory.lookup(request)
            if hit is None:
                skipped += 1
                continue
            decision.lookups.append((request, hit))
            others = bool(self.running)
            if hit.load_tokens:
                loader = cast(LoadingMemory, memory)
                prefilling = [r for r in self.running if r.num_tokens - r.computed > 1] + self.loading
                if not loader.load(request, hit, prefilling, others_running=others):
                    decision.short_of = memory.refusal
                    return
                request.status = Status.LOADING
                self.loading.append(request)
            else:
                n = self._first_chunk(request.num_tokens - hit.tokens)
                if n == 0:
                    decision.short_of = "max_num_batched_tokens"
                    return
                if not memory.admit(request, hit, n, others_running=others):
                    decision.short_of = memory.refusal
                    return
                self._run(request, n, decision)
            self.waiting.remove(request)
            request.computed = hit.tokens + hit.load_tokens
            decision.hits[request] = hit

    def _schedule_loaded(self, decision: Decision) -> bool:
        """Admit requests whose load has arrived; False if one of them has to wait."""
        loader = cast(LoadingMemory, self.memory)
        for request in list(self.loading):
            if self._budget <= 0 or len(self.running) >= self.config.max_num_seqs:
                return False
            if not loader.loaded(request):
                continue
            if request.computed == request.num_tokens:
                request.computed -= 1
            n = self._first_chunk(request.num_tokens - request.computed)
            if n == 0:
                decision.short_of = "max_num_batched_tokens"
                return False
            if not loader.readmit(request, n, others_running=bool(self.running)):
                decision.short_of = loader.refusal
                return False
            self.loading.remove(request)
            self._run(request, n, decision)
        return True

    def _short_of(self, decision: Decision) -> str:
        if decision.preempted:
            return self.memory.refusal
        if len(self.running) >= self.config.max_num_seqs:
            return "max_num_seqs"
        head = next(iter(self.waiting), None)
        if head is not None and self._budget <= 0:
            return self.memory.shortage(head) or "max_num_batched_tokens"
        return "loads"

    def _head(self, skipped: int) -> Request | None:
        if skipped >= len(self.waiting):
            return None
        for i, request in enumerate(self.waiting):
            if i == skipped:
                return request
        return None

    def _first_chunk(self, n: int) -> int:
        """Tokens of a request's first step; 0: it does not fit this step undivided."""
        if 0 < self._threshold < n:
            n = self._threshold
        if not self.config.chunked_prefill and n > self._budget:
            return 0
        return min(n, self._budget)

    def _run(self, request: Request, n: int, decision: Decision) -> None:
        (decision.resumed if request.preemptions else decision.admitted).append(request)
        request.status = Status.RUNNING
        self.running.append(request)
        decision.scheduled[request] = self._acting[request] = n
        self._budget -= n

    # -- update ---------------------------------------------------------------------------------

    def update(self, decision: Decision) -> list[Request]:
        """A step's batch has come back: count its tokens, finish requests, report transfers.

        Returns the requests that finished, in schedule order.
        """
        finished: list[Request] = []
        config = self.config
        asynchronous = config.async_scheduling
        epochs = decision.epochs
        for request, tokens in decision.scheduled.items():
            epoch, samples = epochs[request]
            if request.status is Status.FINISHED:
                continue
            stale = epoch != request.epoch
            if stale:
                request.stale -= 1
            elif asynchronous:
                request.in_flight -= tokens
                request.batches -= 1
                if samples:
                    request.placeholders -= 1
            if samples:
                request.num_tokens = tokens_now = request.num_tokens + 1
                if tokens_now >= request.end_tokens or tokens_now >= config.max_model_len:
                    finished.append(request)
                    if stale:
                        self.waiting.remove(request)
                    else:
                        self.memory.release(request, finished=True)
                    request.status = Status.FINISHED
                    continue
            if asynchronous and not stale and request.computed > request.quiet_until:
                unknown = request.placeholders if config.known_by_placeholders else request.in_flight
                self.memory.returned(request, request.computed - unknown)
        if finished:
            self.flush = True
            self.running = [r for r in self.running if r.status is not Status.FINISHED]
        self.memory.complete(decision.step)
        return finished
