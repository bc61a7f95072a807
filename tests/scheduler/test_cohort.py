"""Requests that are counted together."""

from __future__ import annotations

import numpy as np

from hisparse_sim.scheduler.cohort import Cohort
from hisparse_sim.scheduler.request import Request


def request(order: int) -> Request:
    found = Request(str(order), 10, 10, np.arange(1))
    found.order = order
    return found


def test_a_request_that_left_and_came_again_is_due_once() -> None:
    cohort, first, second = Cohort(), request(1), request(2)
    cohort.join(first, 3)
    cohort.leave(first)
    cohort.join(first, 3)
    cohort.join(second, 5)
    assert cohort.size == 2
    assert cohort.quiet_steps == 3
    cohort.advance(3)
    assert cohort.take_due() == [first]
    cohort.still_due([first])
    assert cohort.take_due() == [first]
    cohort.leave(first)
    assert (cohort.size, cohort.quiet_steps) == (1, 2)


def test_those_due_together_come_in_the_order_of_admission() -> None:
    cohort = Cohort()
    requests = [request(order) for order in (3, 1, 2)]
    for each in requests:
        cohort.join(each, 4)
    cohort.advance(4)
    assert [r.order for r in cohort.take_due()] == [1, 2, 3]
