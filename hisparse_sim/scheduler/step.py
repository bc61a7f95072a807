"""One scheduling step, as vLLM V1 decides it.

Running requests first, in the order they were admitted, then waiting ones from the head of the
queue while tokens, places and blocks last. A running request that gets no blocks preempts the most
recently admitted one. There is no clock here: ``schedule`` and ``update`` are called alternately
(or, with asynchronous scheduling, ``update`` for a batch older than the last one scheduled).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Mapping
from typing import cast

from hisparse_sim.scheduler.cohort import Cohort
from hisparse_sim.scheduler.config import SchedulerConfig
from hisparse_sim.scheduler.decision import Decision, Step, in_order
from hisparse_sim.scheduler.protocols import LoadingMemory, Memory
from hisparse_sim.scheduler.queue import FcfsQueue, PriorityQueue, WaitingQueue, urgency
from hisparse_sim.scheduler.request import Request, Status


def _order(request: Request) -> int:
    return request.order


def _decoded_least(request: Request) -> tuple[bool, int, int]:
    """Least first, of several the longest prompt; who does not decode yet last."""
    decoded = request.num_tokens - request.prompt_tokens
    return request.computed < request.prompt_tokens, decoded, -request.prompt_tokens


NOBODY: Mapping[Request, int] = {}


class Scheduler:
    """The queues of one engine replica and the decisions over them."""

    def __init__(self, config: SchedulerConfig, memory: Memory) -> None:
        self.config = config
        self.memory = memory
        self.waiting: WaitingQueue = PriorityQueue() if config.priority_policy else FcfsQueue()
        self.loading: list[Request] = []
        self.running: list[Request] = []
        """In the order of admission."""
        self.active: list[Request] = []
        """Those of them that do not ride in the cohort."""
        self.cohort = Cohort()
        self.flying: deque[Step] = deque()
        """Decisions whose batches have not come back, without empty ones."""
        self.step = 0
        self._admissions = 0
        self.flush = False
        """A request finished in the last update: one more step tells the workers."""
        self._in_vain = 0
        """Preemptions since some request last got further than ever before."""

    def add(self, request: Request) -> None:
        """A request arrives."""
        self.memory.expect(request)
        self.waiting.add(request)

    @property
    def has_work(self) -> bool:
        """Whether another step has anything to do."""
        return bool(self.running or len(self.waiting) or self.loading or self.flush or self.memory.busy)

    def _requests(self) -> int:
        return len(self.running) + len(self.waiting) + len(self.loading)

    def counts(self, request: Request) -> tuple[int, int, int]:
        """Tokens of a request computed, known, and sampled but not back yet, whoever counts them."""
        if request.joined < 0:
            return request.computed, request.num_tokens, request.placeholders
        computed, flying = self.cohort.computed(request), len(self.flying)
        return computed, computed + 1 - flying, flying

    # -- schedule -------------------------------------------------------------------------------

    def schedule(self) -> Decision:
        """Decide the next step."""
        decision = Decision(self.step)
        self.flush = False
        self._threshold = self.config.long_prefill_token_threshold
        if self._threshold and not self.config.threshold_when_alone and self._requests() <= 1:
            self._threshold = 0
        self._budget = self.config.max_num_batched_tokens
        self._acting: dict[Request, int] = {}
        self._boarding = False
        if self.config.prefill_first:
            self._schedule_prefills(decision)
        if not decision.scheduled:
            self._schedule_running(decision)
        self.memory.grow(1)
        self._budget -= self.cohort.size
        if not decision.preempted and not self.config.prefill_first:
            self._schedule_waiting(decision)
        if self.waiting and not decision.short_of:
            decision.short_of = self._short_of(decision)
        decision.running = len(self.running)
        decision.waiting = len(self.waiting) + len(self.loading)
        if self.cohort.wary and self.memory.pressed:
            self._wake_wary(decision)
        self.memory.settle(self._acting, self.step)
        self._count_computed(decision)
        self.step += 1
        if decision:
            self.flying.append(decision)
            if self._boarding and not decision.preempted:
                self._board(decision)
        return decision

    def _count_computed(self, decision: Decision) -> None:
        asynchronous = self.config.async_scheduling
        drafts = self.config.drafts
        past, epochs = decision.past, decision.epochs
        for request, tokens in decision.scheduled.items():
            before = past[request] = request.computed
            request.computed = after = before + tokens
            if after > request.furthest:
                request.furthest = after
                self._in_vain = 0
            drafted = after - request.num_tokens - request.placeholders
            samples = drafted >= 0
            if samples and drafts:
                decision.drafted[request] = drafted
                request.drafts = drafts
            epochs[request] = request.epoch, samples
            if asynchronous:
                request.in_flight += tokens
                request.batches += 1
                if samples:
                    request.placeholders += 1 + drafted
        cohort = self.cohort
        if cohort.size:
            self._in_vain = 0
            decision.riders, decision.rider_tokens = cohort.size, cohort.tokens
            cohort.advance(1)

    # -- the cohort -----------------------------------------------------------------------------

    def _board(self, decision: Decision) -> None:
        """Let those of the step join the cohort that will only decode for a while."""
        pressed = self.memory.pressed
        # It must ride no longer when the batch that samples its last token comes back. With asynchronous
        # scheduling a step is decided before that.
        early = 1 if self.config.async_scheduling else 2
        longest = self.config.max_model_len
        for request, (_, samples) in decision.epochs.items():
            tokens = min(request.quiet_until, request.end_tokens - early, longest - early) - request.computed
            if not samples or tokens <= 0 or request.computed < request.furthest:
                continue
            if not (pressed and request.quiet_while_free) and self.memory.ride(request):
                self.cohort.join(request, tokens)
                decision.joined.append(request)
        if decision.joined:
            self.active = [request for request in self.active if request.joined < 0]

    def _leave(self, request: Request) -> None:
        """A request rides no longer: its own counts, and those of batches under way, are as if it had not."""
        joined, flying = request.joined, len(self.flying)
        request.computed, request.num_tokens, _ = self.counts(request)
        self.cohort.leave(request)
        for ago, batch in enumerate(reversed(self.flying), start=1):
            if self.cohort.steps - ago >= joined:
                batch.single_out(request, request.computed - ago)
        if self.config.async_scheduling:
            request.placeholders = request.batches = flying
            request.in_flight = sum(batch.scheduled[request] for batch in self.flying)
        self.memory.alight(request)

    def _disband(self, requests: Iterable[Request], decision: Decision) -> None:
        """These ride no longer."""
        for request in requests:
            self._leave(request)
            decision.left.append(request)
            insort(self.active, request, key=_order)

    def _starving(self) -> bool:
        """Whether tokens or blocks might not suffice for all that run: then order decides."""
        cohort, size = self.cohort, self.config.max_num_batched_tokens
        wants = []
        need, early = cohort.size, False
        for request in self.active:
            n = request.num_tokens + request.placeholders - request.computed
            if 0 < self._threshold < n:
                n = self._threshold
            need += n
            early |= n > 1 and cohort.before(request.order) < cohort.size
            wants.append((request, min(n, size)))
        if need > size and (early or len(self.running) > size):
            return True
        return not self.memory.covers(wants)

    def _wake_wary(self, decision: Decision) -> None:
        """Those that were quiet only while blocks were free take part in the rest of the step."""
        wary = [request for request in self.cohort if request.quiet_while_free]
        self._disband(wary, decision)
        decision.scheduled.update(dict.fromkeys(wary, 1))
        self._acting.update(dict.fromkeys(wary, 1))
        decision.scheduled, self._acting = in_order(decision.scheduled), in_order(self._acting)

    @property
    def quiet(self) -> bool:
        """Whether ``schedule`` would schedule one token of each running request, and nothing else, until
        somebody in the cohort is due.

        Assumes that no request arrives, that blocks suffice and that a waiting queue, if there is one,
        stays where it is.
        """
        cohort, memory, flying = self.cohort, self.memory, self.flying
        if not 0 < cohort.size == len(self.running) <= self.config.max_num_batched_tokens:
            return False
        if self.loading or memory.busy or (cohort.wary and memory.pressed):
            return False
        return not flying or not flying[-1].preempted

    def part(self) -> list[Request]:
        """Those that are due leave the cohort if the batch under way brings the last token of each, and if
        the others can then decode another one without a decision; otherwise nobody does. One is under way."""
        cohort, longest = self.cohort, self.config.max_model_len
        batch = self.flying[-1]
        if batch.scheduled or not self.memory.covers(()):
            return []
        due = cohort.take_due()
        ending = [r for r in due if r.limit_tokens <= (known := cohort.computed(r) + 1) or known >= longest]
        if len(ending) < len(due) or len(due) == cohort.size:
            cohort.still_due(due)
            return []
        for request in due:
            request.computed, request.num_tokens, request.in_flight = self.counts(request)
            cohort.leave(request)
            self.memory.alight(request)
        batch.last = sorted(due, key=_order)
        return due

    def decide_quiet(self) -> Step:
        """Decide the next step, in which only the cohort decodes."""
        cohort = self.cohort
        decision = Step(self.step, cohort.size, cohort.tokens)
        decision.running, decision.waiting = len(self.running), len(self.waiting)
        self._pass(1)
        self.flying.append(decision)
        return decision

    def skip(self, steps: int) -> None:
        """Count ``steps`` quiet steps as decided and come back; the last decision under way moves on."""
        self._pass(steps)
        for decision in self.flying:
            decision.step += steps
            decision.rider_tokens += steps * decision.riders

    def _pass(self, steps: int) -> None:
        """So many quiet steps."""
        self.cohort.advance(steps)
        self.memory.grow(steps)
        self.step += steps
        self.memory.settle({}, self.step - 1)
        self.flush = False
        self._in_vain = 0

    def _schedule_prefills(self, decision: Decision) -> None:
        """Go on with prompts under way and begin others; nothing else, if there are any."""
        for request in self.active:
            n = self._missing(request, self._budget)
            if n > 1 + request.drafts and self.memory.extend(request, n):
                decision.scheduled[request] = self._acting[request] = n
                self._budget -= n
        self._schedule_waiting(decision)
        if not decision.scheduled:
            self._budget = max(self._budget, len(self.running) * (1 + self.config.drafts))

    # -- running requests -----------------------------------------------------------------------

    def _missing(self, request: Request, budget: int) -> int:
        """Tokens that a running request computes in this step."""
        if request.placeholders and request.computed + 2 - request.placeholders >= request.limit_tokens:
            return 0  # its last token is already on the way
        n = request.num_tokens + request.placeholders + request.drafts - request.computed
        if 0 < self._threshold < n:
            n = self._threshold
        return min(n, budget, self.config.max_model_len - request.computed - 1)

    def _schedule_running(self, decision: Decision) -> None:
        cohort, active = self.cohort, self.active
        if cohort.size:
            self._disband(cohort.overdue(), decision)
        self._boarding = self.config.cohort and not self._starving()
        if not self._boarding:
            self._disband(cohort, decision)
        scheduled = decision.scheduled
        extend = self.memory.extend
        i = 0
        while i < len(active):
            request = active[i]
            budget = self._budget - cohort.before(request.order)
            if budget <= 0:
                return
            n = self._missing(request, budget)
            if n <= 0:
                i += 1
                continue
            # What is drafted next, on top of this step, must find room, too.
            while not extend(request, n + request.drafts):
                victim = None if self.memory.reclaim_pending() else self._victim(decision)
                if victim is None:
                    # Nobody after this one is scheduled any more.
                    self._disband(cohort.after(request.order), decision)
                    return
                active.remove(victim)
                self.running.remove(victim)
                i = bisect_left(active, request.order, key=_order)
                if victim in scheduled:
                    self._budget += scheduled.pop(victim)
                    self._acting.pop(victim, None)
                self._preempt(victim, decision)
                if victim is request:
                    if self.config.priority_policy and not self.config.self_preemption_ends_step:
                        break
                    if self.config.retracts:
                        break
                    self._disband(cohort.after(request.order), decision)
                    return
            else:
                scheduled[request] = self._acting[request] = n
                self._budget -= n
                i += 1

    def _victim(self, decision: Decision) -> Request | None:
        """Whom to preempt; None: the memory cannot let go of it now."""
        running = self.running
        victim = max(running, key=urgency) if self.config.priority_policy else running[-1]
        if self.config.retracts:
            victim = min(running, key=_decoded_least)
        if victim.joined >= 0 and self.config.async_scheduling:
            victim.in_flight = len(self.flying)
        if not self.memory.may_preempt(victim):
            return None
        if victim.joined >= 0:
            self._disband([victim], decision)
        return victim

    def _preempt(self, victim: Request, decision: Decision) -> None:
        self.memory.release(victim, finished=False)
        decision.dropped_tokens += victim.computed
        victim.computed = victim.placeholders = victim.in_flight = victim.quiet_until = victim.drafts = 0
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
        elif self.config.retracts:
            self.waiting.add(victim)
        else:
            self.waiting.put_back(victim)

    def _schedule_waiting(self, decision: Decision) -> None:
        if self.loading and not self._schedule_loaded(decision):
            return
        places = self.config.max_num_seqs
        memory = self.memory
        waiting, running = self.waiting, self.running
        skipped = 0
        while skipped < len(waiting) and self._budget > 0 and len(running) < places:
            request = waiting[skipped]
            hit = None if request.stale else memory.lookup(request)
            if hit is None:
                skipped += 1
                continue
            decision.lookups.append((request, hit))
            others = bool(running)
            if hit.load_tokens:
                loader = cast(LoadingMemory, memory)
                prefilling = [r for r in self.active if r.num_tokens - r.computed > 1] + self.loading
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
            waiting.remove(request)
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
        self._admissions += 1
        request.order = self._admissions
        self.running.append(request)
        self.active.append(request)
        decision.scheduled[request] = self._acting[request] = n
        self._budget -= n

    # -- update ---------------------------------------------------------------------------------

    def update(self, decision: Step, accepted: Mapping[Request, int] = NOBODY) -> list[Request]:
        """A step's batch has come back: count its tokens, finish requests, report transfers.

        ``accepted``: of the drafts in ``decision.drafted``, how many the model agreed to. Returns the
        requests that finished, in schedule order.
        """
        finished: list[Request] = []
        config = self.config
        if decision.scheduled or decision.riders:
            self.flying.popleft()
        for request in decision.last:
            request.num_tokens += 1
            self._finish(request)
            finished.append(request)
        if not decision.scheduled:
            self.flush |= bool(finished)
            self.memory.complete(decision.step)
            return finished
        asynchronous = config.async_scheduling
        epochs = decision.epochs
        for request, tokens in decision.scheduled.items():
            epoch, samples = epochs[request]
            if request.status is Status.FINISHED or request.joined >= 0:
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
                tokens_now = request.num_tokens + 1
                if request in decision.drafted:
                    tokens_now += self._verified(request, decision.drafted[request], accepted[request], stale)
                request.num_tokens = tokens_now
                if tokens_now >= request.end_tokens or tokens_now >= config.max_model_len:
                    finished.append(request)
                    if stale:
                        self.waiting.remove(request)
                        request.status = Status.FINISHED
                    else:
                        self.active.remove(request)
                        self._finish(request)
                    continue
            if asynchronous and not stale:
                unknown = request.placeholders if config.known_by_placeholders else request.in_flight
                self.memory.returned(request, request.computed - unknown)
        if finished:
            self.flush = True
        self.memory.complete(decision.step)
        return finished

    def _finish(self, request: Request) -> None:
        """A running request has all its tokens."""
        self.memory.release(request, finished=True)
        self.running.remove(request)
        request.status = Status.FINISHED

    def _verified(self, request: Request, drafted: int, accepted: int, stale: bool) -> int:
        """Take back the drafts that were not accepted; returns the tokens beside the sampled one."""
        if not stale:
            request.computed -= drafted - accepted
            if self.config.async_scheduling:
                request.placeholders -= drafted
        end = min(request.end_tokens, self.config.max_model_len)
        return max(0, min(accepted, end - request.num_tokens - 1))
