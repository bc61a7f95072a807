"""Steps that decide nothing, skipped, leave scheduler and memory as single steps would have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_scenarios import scenario

from hisparse_sim.memory.residency import HiSparseMemory
from hisparse_sim.memory.resident import ResidentMemory
from hisparse_sim.scheduler.quiet import quiet_steps, skip
from hisparse_sim.validation.replay import Replay

GOLDEN = Path(__file__).resolve().parents[2] / ".." / "shared" / "golden"
NAMES = sorted(p.stem for p in GOLDEN.glob("scenarios/[chv]_*.json"))


class Jumping(Replay):
    """Skips what may be skipped while nobody waits; ``skipped`` counts the steps."""

    skipped = 0

    def lines(self):
        scheduler = self.scheduler
        step = 0
        while True:
            while self.arrivals and self.arrivals[0][0] <= step:
                scheduler.add(self.arrivals.popleft()[1])
            if not scheduler.has_work:
                if not self.arrivals:
                    return
                step = self.arrivals[0][0]
                continue
            if not scheduler.waiting and not scheduler.flush:
                quiet = quiet_steps(scheduler, self.memory)
                if self.arrivals:
                    quiet = min(quiet, self.arrivals[0][0] - step)
                if quiet > 0:
                    skip(scheduler, self.memory, quiet)
                    self.skipped += quiet
                    step += quiet
                    continue
            line: dict[str, Any] = {"step": step}
            decision = scheduler.schedule()
            self._scheduled(line, decision)
            line["finished"] = [r.id for r in scheduler.update(decision)]
            self._updated(line)
            yield line
            step += 1


def check(asked: dict[str, Any]) -> int:
    single = {line["step"]: line for line in Replay(asked).lines()}
    jumping = Jumping(asked)
    for line in jumping.lines():
        assert line == single[line["step"]]
    assert jumping.memory.gpu.free == jumping.memory.gpu.total
    return jumping.skipped


@pytest.mark.skipif(not NAMES, reason="recorded scheduler traces are not here")
@pytest.mark.parametrize("name", NAMES or ["none"])
def test_recorded_scenarios_take_the_same_steps_with_quiet_ones_skipped(name):
    asked = json.loads((GOLDEN / "scenarios" / f"{name}.json").read_text())
    asked["engine"]["async_scheduling"] = False
    assert check(asked) > 20


@pytest.mark.parametrize("mode", ["hisparse", "vanilla", "cpu_offload"])
@settings(max_examples=50)
@given(seed=st.integers(0, 2**32))
def test_random_scenarios_take_the_same_steps_with_quiet_ones_skipped(mode, seed):
    asked = scenario(mode, seed)
    asked["engine"]["async_scheduling"] = False
    check(asked)


@pytest.mark.parametrize("mode", ["hisparse", "vanilla", "cpu_offload"])
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), asynchronous=st.booleans())
def test_passing_over_a_request_with_nothing_to_do_decides_the_same(mode, seed, asynchronous):
    asked = scenario(mode, seed)
    asked["engine"] |= {"async_scheduling": asynchronous}
    usual = list(Replay(asked).lines())
    with pytest.MonkeyPatch.context() as patch:
        for memory in (HiSparseMemory, ResidentMemory):
            patch.setattr(memory, "_quiet_until", lambda self, _: 0)
        assert list(Replay(asked).lines()) == usual


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), asynchronous=st.booleans())
def test_a_request_with_pages_still_to_be_published_is_never_passed_over(seed, asynchronous):
    asked = scenario("hisparse", seed)
    asked["engine"] |= {"async_scheduling": asynchronous, "delay": 2, "enable_prefix_caching": True}
    replay = Replay(asked)
    for _ in replay.lines():
        for request in replay.scheduler.running:
            state = request.memory
            assert state.published == state.index_hashed or request.quiet_until <= request.computed
