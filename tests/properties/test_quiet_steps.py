"""Requests that ride in the cohort and steps that are skipped leave all as single steps would have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from random_scenarios import scenario

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
                quiet = scheduler.cohort.quiet_steps if scheduler.quiet else 0
                if self.arrivals:
                    quiet = min(quiet, self.arrivals[0][0] - step)
                quiet = len(self.memory.free_after(quiet))
                if quiet > 0:
                    scheduler.skip(quiet)
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


class Together(Replay):
    """Counts how many requests ride, over all steps."""

    rode = 0

    def _scheduled(self, line, decision):
        super()._scheduled(line, decision)
        self.rode += decision.riders if decision else 0


def single(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps with each request counted on its own in each of them."""
    replay = Replay(asked)
    replay.scheduler.config = replace(replay.scheduler.config, cohort=False)
    return list(replay.lines())


def check(asked: dict[str, Any]) -> int:
    lines = {line["step"]: line for line in single(asked)}
    jumping = Jumping(asked)
    for line in jumping.lines():
        assert line == lines[line["step"]]
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


@pytest.mark.skipif(not NAMES, reason="recorded scheduler traces are not here")
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("name", NAMES or ["none"])
def test_recorded_scenarios_decide_the_same_whoever_rides(name, asynchronous):
    asked = json.loads((GOLDEN / "scenarios" / f"{name}.json").read_text())
    asked["engine"]["async_scheduling"] = asynchronous
    together = Together(asked)
    assert list(together.lines()) == single(asked)
    assert together.rode > 20


@pytest.mark.parametrize("mode", ["hisparse", "vanilla", "cpu_offload"])
@settings(max_examples=100)
@given(seed=st.integers(0, 2**32), asynchronous=st.booleans())
def test_random_scenarios_decide_the_same_whoever_rides(mode, seed, asynchronous):
    asked = scenario(mode, seed)
    asked["engine"] |= {"async_scheduling": asynchronous}
    assert list(Replay(asked).lines()) == single(asked)
