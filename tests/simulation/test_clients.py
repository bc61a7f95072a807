"""Who sends what, when, against an engine that takes a second a request."""

from __future__ import annotations

from typing import Any

import simpy
from hypothesis import given
from hypothesis import strategies as st

from hisparse_sim.simulation.clients import Clients
from hisparse_sim.workload.first import first_sessions
from hisparse_sim.workload.request import RequestSpec, Session
from hisparse_sim.workload.starts import expected_requests


class Sessions:
    def __init__(self, *sessions: Session, concurrency: int | None = None, limit: int | None = None) -> None:
        self._sessions = sessions
        self.concurrency = concurrency
        self.limit = limit

    def sessions(self):
        return iter(self._sessions)

    def expected_requests(self, sessions, requests):
        return expected_requests(len(self._sessions), sessions, requests)


def test_the_number_of_requests_is_told_from_the_sessions_that_began():
    told = []
    env = simpy.Environment()
    sessions = [Session(f"{n}", (request("a"), request("b", "a"))[: 2 - n % 2]) for n in range(6)]

    def send(session, request, over):
        told.append(clients.expected_requests())
        env.timeout(1.0).callbacks.append(lambda _: over())

    clients = Clients(env, Sessions(*sessions, concurrency=1), send)
    assert clients.expected_requests() is None
    env.run()
    assert told == [12, 12, 9, 10, 10, 9, 10, 10, 9]
    assert clients.expected_requests() == 9
    assert Clients(env, Sessions(*sessions, limit=4), send).expected_requests() == 4


def play(workload: Sessions, *, service_s: float = 1.0, services_s: dict[str, float] | None = None):
    """Arrival time of each request, by id, in order; and whether all was over in the end."""
    env = simpy.Environment()
    arrivals: dict[str, float] = {}

    def send(session, request, over):
        arrivals[request.id] = env.now
        env.timeout((services_s or {}).get(request.id, service_s)).callbacks.append(lambda _: over())

    clients = Clients(env, workload, send)
    env.run()
    return arrivals, clients.done


def request(name: str, *after: str, delay_s: float = 0.0) -> RequestSpec:
    return RequestSpec(name, 10, 1, after=after, delay_s=delay_s)


def test_a_request_waits_for_all_that_it_follows_and_then_its_delay():
    session = Session(
        "s",
        (
            request("a", delay_s=0.5),
            request("b", "a"),
            request("c", "a", delay_s=2),
            request("d", "b", "c", delay_s=0.25),
        ),
    )
    arrivals, done = play(Sessions(session))
    assert arrivals == {"a": 0.5, "b": 1.5, "c": 3.5, "d": 4.75}
    assert done


def test_no_more_sessions_are_alive_than_the_cap():
    sessions = [Session(f"s{i}", (request(f"{i}a"), request(f"{i}b", f"{i}a"))) for i in range(5)]
    arrivals, done = play(Sessions(*sessions, concurrency=2))
    assert [arrivals[f"{i}a"] for i in range(5)] == [0, 0, 2, 2, 4]
    assert done


def test_without_a_cap_sessions_start_at_their_times():
    sessions = [Session(f"s{i}", (request(f"r{i}"),), start_s=10.0 * i) for i in range(3)]
    assert play(Sessions(*sessions))[0] == {"r0": 0, "r1": 10, "r2": 20}


def test_under_a_cap_a_start_is_the_earliest_one():
    sessions = [Session(f"s{i}", (request(f"r{i}"),), start_s=0.5 * i) for i in range(3)]
    assert play(Sessions(*sessions, concurrency=1))[0] == {"r0": 0, "r1": 1, "r2": 2}


def test_the_limit_takes_the_first_requests_in_order_of_arrival():
    # The second turn of the fast session arrives before the third session begins.
    sessions = [
        Session("s0", (request("0a"), request("0b", "0a"))),
        Session("s1", (request("1a"), request("1b", "1a", delay_s=5))),
        Session("s2", (request("2a"),), start_s=3.0),
    ]
    arrivals, done = play(Sessions(*sessions, limit=4))
    assert list(arrivals) == ["0a", "1a", "0b", "2a"]
    assert done


def test_sessions_without_requests_are_over_at_once():
    sessions = [Session("s0", ()), Session("s1", ()), Session("s2", (request("a"),))]
    assert play(Sessions(*sessions, concurrency=1)) == ({"a": 0}, True)
    assert play(Sessions()) == ({}, True)


def test_a_conversation_of_thousands_of_turns_does_not_nest():
    turns = [request("0"), *(request(str(i), str(i - 1)) for i in range(1, 5000))]
    arrivals, done = play(Sessions(Session("s", turns)), service_s=0.0)
    assert len(arrivals) == 5000
    assert done
    arrivals, done = play(Sessions(Session("s", turns), limit=10), service_s=0.0)
    assert len(arrivals) == 10
    assert done


SESSIONS = st.lists(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.0, 1.5]), st.floats(0, 9)),
        min_size=1,
        max_size=6,
    ),
    max_size=8,
)


@given(SESSIONS, st.none() | st.integers(1, 4), st.integers(1, 12), st.booleans())
def test_what_is_left_out_is_never_among_the_first(
    made: list[list[tuple[int, float, float]]], concurrency: int | None, limit: int, opened: bool
) -> None:
    """Each request waits for one of those above it, or for none."""
    sessions, services_s = [], {}
    for number, rows in enumerate(made):
        requests: list[RequestSpec] = []
        for place, (back, delay_s, service_s) in enumerate(rows):
            name = f"{number}/{place}"
            after = [requests[place - back].id] if 0 < back <= place else []
            requests.append(request(name, *after, delay_s=delay_s))
            services_s[name] = service_s
        sessions.append(Session(f"{number}", requests, start_s=number / 2 if opened else None))
    whole: dict[str, Any] = {"concurrency": concurrency, "limit": limit}
    first = list(first_sessions(Sessions(*sessions, **whole)))
    assert (
        play(Sessions(*first, **whole), services_s=services_s)[0]
        == (play(Sessions(*sessions, **whole), services_s=services_s)[0])
    )
    assert list(first_sessions(Sessions(*first, **whole))) == first


def test_of_one_client_the_first_requests_are_known():
    sessions = [Session(n, (request(f"{n}1"), request(f"{n}2", f"{n}1"))) for n in "abc"]
    first = first_sessions(Sessions(*sessions, concurrency=1, limit=3))
    assert [r.id for session in first for r in session.requests] == ["a1", "a2", "b1"]
