"""Events at a time."""

from __future__ import annotations

from collections.abc import Generator

import pytest
import simpy
from hypothesis import example, given
from hypothesis import strategies as st

from hisparse_sim.simulation.moment import Clock, at

seconds = st.floats(0, 1e9)


@given(now_s=seconds, later_s=seconds)
@example(now_s=3.43, later_s=3.5247220057061175)
def test_an_event_comes_at_exactly_its_time(now_s: float, later_s: float) -> None:
    env = simpy.Environment(now_s)
    event = at(env, later_s)
    assert env.peek() == max(now_s, later_s)
    env.run()
    assert event.processed
    assert env.now == max(now_s, later_s)


def test_time_is_set_forward_only_where_nothing_is_due_and_nobody_wants_to_look() -> None:
    env = Clock()
    seen: list[tuple[bool, float]] = []

    def alone() -> Generator[simpy.Event, None, None]:
        seen.extend((env.skip_to(when_s), env.now) for when_s in (1.0, 2.0, 2.5, 3.0, 4.0))
        yield at(env, 5.0)
        seen.append((env.is_free(100.0), env.now))

    env.process(alone())
    env.timeout(2.5)  # something else
    env.go(4)  # the beginning of the process, two times that it sets the clock, and the timeout
    assert seen == [(True, 1.0), (True, 2.0), (False, 2.0), (False, 2.0), (False, 2.0)]
    env.go(1)
    assert seen[-1] == (False, 5.0)


def test_a_run_looks_up_in_time_however_often_the_clock_is_set_forward() -> None:
    env = Clock()

    def for_ever() -> Generator[simpy.Event, None, None]:
        while True:
            if not env.skip_to(env.now + 1.0):
                yield at(env, env.now + 1.0)

    env.process(for_ever())
    for looks in range(1, 5):
        env.go(100)
        assert env.now == pytest.approx(100 * looks, abs=2)
