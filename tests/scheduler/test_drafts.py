"""Speculative decoding: drafts are scheduled, verified, and taken back where the model did not agree."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse_sim.memory.content import ContentIndex
from hisparse_sim.memory.resident import ResidentMemory, ResidentSizes
from hisparse_sim.scheduler.config import SchedulerConfig
from hisparse_sim.scheduler.decision import Decision
from hisparse_sim.scheduler.request import Request, Status
from hisparse_sim.scheduler.step import Scheduler

BLOCK = 16


class Drafting:
    """A scheduler, the requests given to it, and a model that agrees to so many drafts."""

    def __init__(self, drafts: int, *, asynchronous: bool, blocks: int = 500, budget: int = 256) -> None:
        memory = ResidentMemory(ResidentSizes(block_size=BLOCK, gpu_blocks=blocks, max_model_len=400))
        config = SchedulerConfig(
            max_model_len=400,
            max_num_seqs=16,
            max_num_batched_tokens=budget,
            async_scheduling=asynchronous,
            cohort=False,
            drafts=drafts,
        )
        self.scheduler = Scheduler(config, memory)
        self.content = ContentIndex(BLOCK)
        self.requests: list[Request] = []
        self.decisions: list[Decision] = []

    def add(self, prompt: int, output: int) -> Request:
        name = f"r{len(self.requests)}"
        ids = self.content.of_segments(((name, 0, prompt + output),), prompt + output)
        self.requests.append(Request(name, prompt, output, ids))
        self.scheduler.add(self.requests[-1])
        return self.requests[-1]

    def run(self, agree: random.Random | int) -> None:
        scheduler, flying = self.scheduler, deque[Decision]()
        depth = 2 if scheduler.config.async_scheduling else 1
        for _ in range(5000):
            if not scheduler.has_work:
                return
            decision = scheduler.schedule()
            self.decisions.append(decision)
            flying.append(decision)
            if len(flying) < depth and decision:
                continue
            back = flying.popleft()
            accepted = {
                request: min(n, agree if isinstance(agree, int) else agree.randint(0, n))
                for request, n in back.drafted.items()
            }
            scheduler.update(back, accepted)
            for request in scheduler.running:
                assert request.computed <= request.num_tokens + request.placeholders
                assert request.placeholders >= 0
        pytest.fail("it never ends")


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("agree", "steps"), [(0, 12), (3, 3)])
def test_a_step_brings_the_sampled_token_and_what_was_accepted(
    agree: int, steps: int, asynchronous: bool
) -> None:
    engine = Drafting(3, asynchronous=asynchronous)
    request = engine.add(40, 13)  # the prefill samples the first of them
    engine.run(agree)
    assert request.num_tokens == 53
    decodes = [d.scheduled[request] for d in engine.decisions if request in d.scheduled][1:]
    assert decodes[:steps] == [4] * steps
    # Asynchronously one more is under way when the last token comes.
    assert len(decodes) - steps in ((0, 1) if asynchronous else (0,))


def test_a_budget_too_small_for_all_drafts_verifies_fewer() -> None:
    engine = Drafting(3, asynchronous=False, budget=6)
    a, b = engine.add(3, 20), engine.add(3, 20)
    engine.run(3)
    assert {a: 4, b: 2} in [d.scheduled for d in engine.decisions]
    assert {a: 3, b: 1} in [d.drafted for d in engine.decisions]
    assert a.num_tokens == b.num_tokens == 23


def test_the_longest_context_cuts_drafts_and_what_they_bring() -> None:
    engine = Drafting(5, asynchronous=False)
    request = engine.add(380, 100)
    engine.run(5)
    assert request.num_tokens == 400


def test_a_preempted_request_drafts_anew() -> None:
    engine = Drafting(3, asynchronous=True, blocks=11)
    requests = [engine.add(60, 60) for _ in range(2)]
    engine.run(1)
    assert any(d.preempted for d in engine.decisions)
    assert [r.num_tokens for r in requests] == [120, 120]


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    drafts=st.integers(1, 5),
    asynchronous=st.booleans(),
    blocks=st.integers(26, 60),
    lengths=st.lists(st.tuples(st.integers(1, 200), st.integers(1, 150)), min_size=1, max_size=8),
)
def test_every_request_gets_its_tokens_and_all_blocks_come_back(
    seed: int, drafts: int, asynchronous: bool, blocks: int, lengths: list[tuple[int, int]]
) -> None:
    engine = Drafting(drafts, asynchronous=asynchronous, blocks=blocks)
    for prompt, output in lengths:
        engine.add(prompt, output)
    engine.run(random.Random(seed))
    assert all(r.status is Status.FINISHED for r in engine.requests)
    assert [r.num_tokens for r in engine.requests] == [p + o for p, o in lengths]
    assert engine.scheduler.memory.gpu.free == engine.scheduler.memory.gpu.total
