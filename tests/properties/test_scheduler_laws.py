"""What holds in every step of every scenario: nothing is lost, nobody is forgotten, the same happens again.

docs/explanation/laws.md states each law and names its test here.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from books import check_blocks, check_pages
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from random_scenarios import KINDS, drawn, pages, scenario, steps

from hisparse_sim.memory.residency import HiSparseMemory
from hisparse_sim.memory.resident import ResidentMemory
from hisparse_sim.scheduler.decision import Decision
from hisparse_sim.scheduler.request import Request, Status
from hisparse_sim.scheduler.step import Scheduler
from hisparse_sim.validation.replay import Replay

SEEDS = st.integers(0, 2**32)
MANY = 10**9


def law(test: Callable[..., None]) -> Callable[..., None]:
    """A test of each kind of scenario, over many of them."""
    return pytest.mark.parametrize("kind", KINDS)(settings(max_examples=40)(given(seed=SEEDS)(test)))


@law
def test_free_and_used_blocks_make_up_each_pool_at_every_step(kind, seed):
    replay, requests = drawn(kind, seed)
    for _ in steps(replay, kind):
        check_blocks(replay.memory, requests)


@law
def test_a_page_is_never_lost_while_it_has_no_host_copy(kind, seed):
    replay, requests = drawn(kind, seed)
    for _ in steps(replay, kind):
        check_pages(replay.memory, requests)


@law
def test_tokens_never_go_back_except_by_preemption(kind, seed):
    replay, requests = drawn(kind, seed)
    before = {r: (0, 0, r.num_tokens) for r in requests}
    longest = replay.engine["max_model_len"]
    for line in steps(replay, kind):
        for r in requests:
            preemptions, computed, tokens = before[r]
            computed_now, tokens_now, ahead_of_it = replay.scheduler.counts(r)
            assert tokens_now >= tokens  # sampled ones stay, even then
            if r.preemptions == preemptions:
                assert computed_now >= computed
            else:
                assert r.id in line["preempted"]
            assert computed_now <= min(tokens_now + ahead_of_it, longest)
            before[r] = r.preemptions, computed_now, tokens_now


@law
def test_a_step_stays_within_its_tokens_and_places(kind, seed):
    replay, _ = drawn(kind, seed)
    for line in steps(replay, kind):
        tokens = line["scheduled"].values()
        assert sum(tokens) <= replay.engine["max_num_batched_tokens"]
        assert all(n > 0 for n in tokens)
        assert line["running"] <= replay.engine["max_num_seqs"]


@pytest.mark.parametrize("kind", ["hisparse", "resident", "offload"])
@settings(max_examples=80)
@given(seed=SEEDS)
def test_every_request_ends_with_all_its_tokens_and_gives_all_blocks_back(kind, seed):
    replay, requests = drawn(kind, seed)
    for _ in steps(replay, kind):
        pass
    for r in requests:
        assert r.status is Status.FINISHED
        assert r.num_tokens == min(r.end_tokens, replay.engine["max_model_len"])
    memory = replay.memory
    assert memory.gpu.free == memory.gpu.total
    if kind == "hisparse":
        assert memory.host_pool.free == memory.host_pool.total
        assert not any(memory.copies.states)
    if kind == "offload":
        assert not memory.jobs
        assert not memory._access
        assert not memory._fenced


@law
def test_the_same_scenario_gives_the_same_steps(kind, seed):
    one, two = (list(steps(drawn(kind, seed)[0], kind)) for _ in range(2))
    assert one == two


@law
def test_with_drafted_tokens_blocks_pages_and_ends_are_the_same(kind, seed):
    random = Random(seed)
    replay, requests = drawn(kind, seed)
    scheduler = replay.scheduler
    scheduler.config = replace(scheduler.config, cohort=False, drafts=random.randint(1, 4))
    update, share = scheduler.update, random.choice([0.0, 0.5, 1.0])

    def verify(decision: Decision) -> list[Request]:
        agreed = {r: sum(random.random() < share for _ in range(n)) for r, n in decision.drafted.items()}
        return update(decision, agreed)

    scheduler.update = verify
    for line in steps(replay, kind):
        check_blocks(replay.memory, requests)
        check_pages(replay.memory, requests)
        assert sum(line["scheduled"].values()) <= replay.engine["max_num_batched_tokens"]
        assert all(0 <= r.computed - r.placeholders <= r.num_tokens for r in scheduler.running)
    if kind in ("hisparse", "resident", "offload"):
        assert all(r.num_tokens == min(r.end_tokens, replay.engine["max_model_len"]) for r in requests)
        assert replay.memory.gpu.free == replay.memory.gpu.total


# -- the output's length --------------------------------------------------------------------------


class Sealed(Request):
    """A request whose true length must not be looked at while a step is decided."""

    deciding = False

    @property
    def end_tokens(self) -> int:
        assert not Sealed.deciding, f"a decision looks at how long {self.id} will be"
        return Request.end_tokens.__get__(self)

    @end_tokens.setter
    def end_tokens(self, value: int) -> None:
        Request.end_tokens.__set__(self, value)

    @property
    def output_tokens(self) -> int | None:
        assert not Sealed.deciding, f"a decision looks at how long {self.id} will be"
        return Request.output_tokens.__get__(self)


def sealed(decide: Callable[..., Any]) -> Callable[..., Any]:
    """The same, while the true lengths of ``Sealed`` requests must not be looked at."""

    def deciding(*args: Any) -> Any:
        Sealed.deciding = True
        try:
            return decide(*args)
        finally:
            Sealed.deciding = False

    return deciding


def lengths(asked: dict[str, Any], draws: list[float]) -> list[int]:
    """True output lengths within what was allowed: ``output_len`` is the client's limit."""
    limits = [r["output_len"] for r in asked["requests"]]
    return [max(1, round(limit * draw)) for limit, draw in zip(limits, draws, strict=False)]


def lines_with(kind: str, asked: dict[str, Any], outputs: list[int]) -> list[dict[str, Any]]:
    """The steps of a scenario whose requests are over after so many tokens."""
    replay = Replay(asked, version=KINDS[kind][1])
    ends = {r["id"]: r["prompt_len"] + n for r, n in zip(asked["requests"], outputs, strict=True)}
    for _, request in replay.arrivals:
        request.end_tokens = ends[request.id]
    return list(steps(replay, kind))


SHARES = st.lists(st.floats(0, 1), min_size=9, max_size=9)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(seed=SEEDS, shares=SHARES)
def test_no_decision_looks_at_how_long_an_output_will_be(kind, seed, shares):
    mode, version, tight = KINDS[kind]
    asked = scenario(mode, seed, tight=tight)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hisparse_sim.validation.replay.Request", Sealed)
        replay = Replay(asked, version=version)
        # The cohort must know when to let a request go; that it decides nothing is a law of its own.
        replay.scheduler.config = replace(replay.scheduler.config, cohort=False)
        scheduler = replay.scheduler
        scheduler.schedule = sealed(scheduler.schedule)
        scheduler.add = sealed(scheduler.add)
        for (_, request), output in zip(replay.arrivals, lengths(asked, shares), strict=True):
            assert isinstance(request, Sealed)
            request.end_tokens = min(request.end_tokens, request.prompt_tokens + output)
        for _ in steps(replay, kind):
            pass


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(seed=SEEDS, one=SHARES, two=SHARES)
def test_up_to_the_first_finish_that_differs_everything_is_the_same(kind, seed, one, two):
    mode, _, tight = KINDS[kind]
    asked = scenario(mode, seed, tight=tight)
    shorter, longer = lengths(asked, one), lengths(asked, two)
    pairs = [lines_with(kind, asked, outputs) for outputs in (shorter, longer)]
    for a, b in zip(*pairs, strict=False):
        if a["finished"] != b["finished"]:
            # It is known only after the step has been decided.
            for field in ("step", "scheduled", "new", "resumed", "preempted", "gpu_free", "waiting", "hits"):
                assert a.get(field) == b.get(field)
            return
        assert a == b


# -- nobody starves ------------------------------------------------------------------------------


class Watched:
    """A scheduler's steps: who stood where before each, and whom the memory put aside or refused."""

    def __init__(self, replay: Replay) -> None:
        self.scheduler = replay.scheduler
        self.memory = replay.memory
        self.aside: set[Request] = set()
        self.refused: dict[Request, tuple[int, int]] = {}
        """With so many blocks free on the GPU and, in HiSparse of 0.33, on the host."""
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.idle: set[Request] = set()
        """Whose last token is already on its way, asynchronously."""
        self.decision: Decision
        for name in ("lookup", "admit", "load", "readmit"):
            if hasattr(self.memory, name):
                setattr(self.memory, name, self._noting(getattr(self.memory, name)))
        self._schedule = self.scheduler.schedule
        self.scheduler.schedule = self.schedule

    def _noting(self, asked: Callable[..., Any]) -> Callable[..., Any]:
        def ask(request: Request, *args: Any, **kwargs: Any) -> Any:
            host = self.memory.host_pool if isinstance(self.memory, HiSparseMemory) else None
            free = self.memory.gpu.free, host.free if host else MANY
            answer = asked(request, *args, **kwargs)
            if answer is None:
                self.aside.add(request)
            elif answer is False:
                self.refused[request] = free
            return answer

        return ask

    def last_token_is_on_the_way(self, request: Request) -> bool:
        computed, _, placeholders = self.scheduler.counts(request)
        end = min(request.end_tokens, self.scheduler.config.max_model_len)
        return placeholders > 0 and computed + 2 - placeholders >= end

    def schedule(self) -> Decision:
        scheduler: Scheduler = self.scheduler
        self.aside, self.refused = {r for r in scheduler.waiting if r.stale}, {}
        self.waiting, self.running = list(scheduler.waiting), list(scheduler.running)
        self.loading = list(scheduler.loading)
        self.idle = {r for r in self.running if self.last_token_is_on_the_way(r)}
        self.decision = self._schedule()
        return self.decision


def ahead(one: Request, other: Request) -> bool:
    """Whether the priority policy serves ``one`` first."""
    return (one.priority, one.arrival) < (other.priority, other.arrival)


@law
def test_nobody_is_passed_over_but_by_the_policy(kind, seed):
    replay, _ = drawn(kind, seed)
    watched = Watched(replay)
    for _ in steps(replay, kind):
        decision, queue = watched.decision, watched.waiting
        left = set(replay.scheduler.waiting)
        # Of the queue as it stood, those served are the first, but for those whose copies are in motion.
        stay = [i for i, r in enumerate(queue) if r in left and r not in watched.aside]
        served = [i for i, r in enumerate(queue) if r in decision.hits]
        assert not stay or not served or max(served) < min(stay)
        # The queue is in the order of the policy.
        if replay.scheduler.config.priority_policy:
            assert all(ahead(a, b) for a, b in pairwise(queue))
        else:
            fresh = [r for r in queue if not r.preemptions]
            assert fresh == queue[len(queue) - len(fresh) :]  # preempted ones stand in front
            assert [r.arrival for r in fresh] == sorted(r.arrival for r in fresh)
        # Running requests have their turn in the order in which they were admitted.
        turns = [r for r in watched.running if r not in watched.idle and r not in decision.preempted]
        taken = [r in decision.scheduled or r.joined >= 0 for r in turns]
        assert taken == sorted(taken, reverse=True)


def enough(replay: Replay, request: Request) -> int:
    """GPU blocks that admit a request for certain, whatever of it is cached and whoever runs."""
    memory, whole = replay.memory, pages(request.num_tokens)
    need = whole + memory.sizes.admission_watermark_blocks
    if isinstance(memory, ResidentMemory):
        return need
    window = min(whole, memory.sizes.window_pages + 1)  # a step's tokens may begin inside a page
    return need + memory.sizes.resident_groups * window + memory.hot_blocks


@law
def test_a_request_waits_only_for_tokens_places_blocks_or_its_own_copies(kind, seed):
    replay, _ = drawn(kind, seed)
    watched = Watched(replay)
    config = replay.scheduler.config
    for line in steps(replay, kind):
        decision = watched.decision
        left = config.max_num_batched_tokens - sum(line["scheduled"].values())
        arrived = [r for r in watched.loading if r in watched.refused]
        waits = arrived or [r for r in replay.scheduler.waiting if r not in watched.aside]
        if decision.preempted or not left or decision.running >= config.max_num_seqs or not waits:
            continue
        head = waits[0]
        if not config.chunked_prefill and head.num_tokens > left:
            continue
        gpu_free, host_free = watched.refused[head]  # it was asked, and the answer was no
        loads = line.get("ext", {}).get(head.id, (0, 0, 0))[1]
        if loads:
            continue  # a load must leave room for what prefills under way still need
        assert gpu_free < enough(replay, head) or host_free < pages(head.num_tokens)


@settings(max_examples=40)
@given(seed=SEEDS, policy=st.sampled_from(["fcfs", "priority"]))
def test_of_two_requests_alike_the_first_come_starts_first(seed, policy):
    asked = scenario("hisparse", seed)
    asked["engine"]["policy"] = policy
    for request in asked["requests"]:
        request["priority"] = 0
    replay = Replay(asked)
    started = [r for line in replay.lines() for r in line["new"]]
    arrival = {r["id"]: r["arrival_step"] for r in asked["requests"]}
    assert [arrival[r] for r in started] == sorted(arrival.values())
