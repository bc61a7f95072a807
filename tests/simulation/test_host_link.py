"""The shared link: what goes in comes out, at no more than its rates."""

from __future__ import annotations

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse_sim.simulation.links import D2H, H2D, HostLink, HostMemory, StepLink
from hisparse_sim.simulation.moment import at

H2D_RATE, D2H_RATE, BOTH_RATE = 50e9, 40e9, 70e9

transfers = st.lists(
    st.tuples(
        st.floats(0, 2),  # when
        st.floats(1, 1e11),  # bytes
        st.sampled_from([H2D, D2H]),
    ),
    min_size=1,
    max_size=12,
)


def ends(jobs: list[tuple[float, float, int]], *, start_s: float = 0.0) -> tuple[HostLink, list[float]]:
    """When each of ``jobs`` (time, bytes, direction) has arrived."""
    env = simpy.Environment(start_s)
    link = HostLink(env, H2D_RATE, D2H_RATE, BOTH_RATE)
    found = [float("nan")] * len(jobs)

    def play(index: int, at_s: float, size: float, direction: int):
        yield env.timeout(at_s)
        yield link.transfer(size, direction)
        found[index] = env.now

    for index, (at_s, size, direction) in enumerate(jobs):
        env.process(play(index, at_s, size, direction))
    for _ in range(100 * len(jobs)):
        try:
            env.step()
        except simpy.core.EmptySchedule:
            break
    else:
        pytest.fail("the link keeps ringing")
    return link, found


def test_a_transfer_alone_takes_its_bytes_over_the_rate_of_its_direction():
    assert ends([(0, 5e9, H2D)])[1] == [pytest.approx(0.1)]
    assert ends([(0, 5e9, D2H)])[1] == [pytest.approx(0.125)]


def test_no_bytes_take_no_time():
    assert ends([(0.5, 0.0, H2D)])[1] == [0.5]


def test_transfers_of_a_direction_share_it_equally():
    # Both at half speed until the smaller one is there, then the other alone.
    assert ends([(0, 5e9, H2D), (0, 10e9, H2D)])[1] == pytest.approx([0.2, 0.3])


def test_a_newcomer_slows_the_one_under_way():
    assert ends([(0, 10e9, H2D), (0.1, 2.5e9, H2D)])[1] == pytest.approx([0.25, 0.2])


def test_both_directions_together_stay_below_the_ceiling():
    assert ends([(0, 50e9, H2D), (0, 40e9, D2H)])[1] == pytest.approx([90e9 / BOTH_RATE] * 2)


@given(transfers)
@settings(max_examples=60, deadline=None)
def test_bytes_are_conserved_and_no_rate_is_exceeded(jobs):
    link, found = ends(jobs)
    for direction, rate in ((H2D, H2D_RATE), (D2H, D2H_RATE)):
        mine = [(at, size, end) for (at, size, d), end in zip(jobs, found, strict=True) if d == direction]
        assert link.bytes[direction] == pytest.approx(sum(size for _, size, _ in mine))
        for _, size, end in mine:
            # A byte less, as below: the clock's last bit is worth some.
            assert end - min(at for at, _, _ in mine) >= 0.999999 * (size - 1) / rate
        if mine:
            busy = max(end for *_, end in mine) - min(at for at, _, _ in mine)
            assert sum(size for _, size, _ in mine) <= 1.000001 * rate * busy + 1
    total = max(found) - min(at for at, *_ in jobs)
    assert sum(size for _, size, _ in jobs) <= 1.000001 * BOTH_RATE * total + 1


@given(transfers)
@settings(max_examples=60, deadline=None)
def test_the_link_never_idles_while_something_waits(jobs):
    # Fluid sharing: a direction that never stops is as fast as its slowest rate allows.
    _, found = ends(jobs)
    last = max(found)
    slowest = BOTH_RATE / (H2D_RATE + D2H_RATE)
    work = sum(size / ((H2D_RATE, D2H_RATE)[d] * slowest) for _, size, d in jobs)
    assert last <= max(at for at, *_ in jobs) + work + 1e-6


@given(transfers, st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_the_order_of_those_that_start_together_does_not_matter(jobs, random):
    jobs = [(0.0, size, direction) for _, size, direction in jobs]
    order = list(range(len(jobs)))
    random.shuffle(order)
    shuffled = ends([jobs[i] for i in order])[1]
    assert [shuffled[order.index(i)] for i in range(len(jobs))] == pytest.approx(ends(jobs)[1])


@pytest.mark.parametrize("start_s", [1e7, 1e10])
def test_late_in_a_long_run_the_clocks_rounding_does_not_stop_it(start_s):
    jobs = [(0, 1.0, H2D), (0, 64.0, D2H), (0.1, 7e3, H2D), (0.1, 1e6, H2D), (0.1, 3e9, D2H)]
    _, found = ends(jobs, start_s=start_s)
    assert found == pytest.approx([start_s + end for end in ends(jobs)[1]], abs=1e-5)


def over_one_memory(
    jobs: list[tuple[float, float, int, int]], dram: float, *, ranks: int = 4, links: int = 2
) -> list[float]:
    """When each of ``jobs`` (time, bytes, direction, link) has arrived."""
    env = simpy.Environment()
    memory = HostMemory(dram)
    there = [HostLink(env, H2D_RATE, D2H_RATE, BOTH_RATE, memory=memory, ranks=ranks) for _ in range(links)]
    found = [float("nan")] * len(jobs)

    def play(index: int, at_s: float, size: float, direction: int, link: int):
        yield env.timeout(at_s)
        yield there[link].transfer(size, direction)
        found[index] = env.now

    for index, job in enumerate(jobs):
        env.process(play(index, *job))
    for _ in range(300 * len(jobs)):
        try:
            env.step()
        except simpy.core.EmptySchedule:
            return found
    pytest.fail("the links keep ringing")


def test_links_of_two_replicas_share_the_memory_only_while_both_are_busy():
    # Four ranks a replica: 200 GB/s each, of 250 for both. The first alone for 0.1 s, then 5/8 of its speed.
    found = over_one_memory([(0, 10e9, H2D, 0), (0.1, 5e9, H2D, 1)], 250e9)
    assert found[1] == pytest.approx(0.1 + 5e9 / (50e9 * 250 / 400))
    left = 5e9 - 5e9  # the first had 5 GB left at 0.1 s, and as much speed as the other
    assert found[0] == pytest.approx(found[1] + left / 50e9)


def test_memory_fast_enough_changes_nothing():
    jobs = [(0, 10e9, H2D, 0), (0.05, 5e9, H2D, 1), (0.1, 5e9, D2H, 0)]
    alone = ends([job[:3] for job in jobs if job[3] == 0])[1]
    shared = over_one_memory(jobs, 1e12)
    assert [shared[0], shared[2]] == pytest.approx(alone)
    assert shared[1] == pytest.approx(0.15)


@given(
    st.lists(
        st.tuples(
            st.floats(0, 1), st.floats(1e6, 5e10), st.sampled_from([H2D, D2H]), st.sampled_from([0, 1, 2])
        ),
        min_size=1,
        max_size=10,
    ),
    st.floats(5e10, 1e12),
)
@settings(max_examples=60, deadline=None)
def test_together_links_never_move_more_than_the_memory(jobs, dram):
    found = over_one_memory(jobs, dram, links=3)
    assert not any(end != end for end in found)
    first, last = min(job[0] for job in jobs), max(found)
    assert 4 * sum(job[1] for job in jobs) <= 1.000001 * dram * (last - first) + 1.0


@settings(max_examples=60)
@given(jobs=transfers, sizes=st.tuples(st.floats(0, 1e11), st.floats(0, 1e11)), at_s=st.floats(0, 2))
def test_transfers_begun_together_end_like_those_begun_one_after_the_other(jobs, sizes, at_s):
    def played(together: bool) -> list[float]:
        env = simpy.Environment()
        link = HostLink(env, H2D_RATE, D2H_RATE, BOTH_RATE)
        found: list[float] = []

        def note(_: simpy.Event) -> None:
            found.append(env.now)

        def others(when_s: float, size: float, direction: int):
            yield env.timeout(when_s)
            yield link.transfer(size, direction)

        def pair():
            yield env.timeout(at_s)
            done = [env.event(), env.event()]
            for event in done:
                event.callbacks.append(note)
            parts = list(zip(sizes, (H2D, D2H), done, strict=True))
            for begun in [parts] if together else [[part] for part in parts]:
                link.begin(begun)

        env.process(pair())
        for job in jobs:
            env.process(others(*job))
        env.run()
        assert len(found) == 2
        return found

    assert played(together=True) == played(together=False)


sizes = st.just(0.0) | st.floats(1, 1e11)
steps = st.lists(st.tuples(st.floats(0, 1), sizes, sizes), min_size=1, max_size=10)
"""Seconds of own work, bytes to the device and from it."""


@given(steps)
def test_on_a_link_of_its_own_a_step_knows_when_its_bytes_are_there(
    work: list[tuple[float, float, float]],
) -> None:
    """As events tell it, where a step waits for what goes to the device alone."""

    def told(env: simpy.Environment, link: HostLink | StepLink) -> list[float]:
        found = []

        def play():
            for own_s, h2d, d2h in work:
                own_end_s = env.now + own_s
                if isinstance(link, StepLink):
                    there_s = link.send(h2d, d2h)
                else:
                    came = env.event()
                    link.begin([(h2d, H2D, came), (d2h, D2H, None)])
                    yield came
                    there_s = env.now
                found.append(there_s)
                yield at(env, max(own_end_s, there_s))

        env.process(play())
        env.run()
        return found

    rates = (H2D_RATE, D2H_RATE, BOTH_RATE)
    one, other = simpy.Environment(), simpy.Environment()
    assert told(one, StepLink(one, *rates)) == pytest.approx(told(other, HostLink(other, *rates)))


def test_a_link_of_its_own_is_busy_until_the_last_byte_is_there() -> None:
    env = simpy.Environment()
    link = StepLink(env, H2D_RATE, D2H_RATE, BOTH_RATE)
    assert not link.busy
    # While both move it is 38.9 GB/s in and 31.1 out; 5 GB are left to move at 40.
    assert link.send(50e9 * 70 / 90, 40e9 * 70 / 90 + 5e9) == pytest.approx(1.0)
    env.run(until=1.12)
    assert link.busy
    env.run(until=1.13)
    assert not link.busy
    assert link.bytes == [50e9 * 70 / 90, 40e9 * 70 / 90 + 5e9]
