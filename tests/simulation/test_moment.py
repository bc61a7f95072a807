"""Events at a time."""

from __future__ import annotations

import simpy
from hypothesis import example, given
from hypothesis import strategies as st

from hisparse_sim.simulation.moment import at

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
