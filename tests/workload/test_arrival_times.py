"""Arrival processes: rates, burstiness, schedules and days."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from hisparse_sim.scenario.arrivals import ArrivalsSpec
from hisparse_sim.workload.arrivals import DAY_S, arrival_times_s

spec_of: TypeAdapter[Any] = TypeAdapter(ArrivalsSpec)


def times(spec: dict[str, Any], count: int | None, seed: int = 0) -> np.ndarray[Any, Any]:
    rng = np.random.Generator(np.random.PCG64(seed))
    return np.array(list(arrival_times_s(spec_of.validate_python(spec), rng, count)))


steps = st.lists(
    st.fixed_dictionaries({"duration_s": st.floats(1, 100), "rate_per_s": st.floats(0, 20)}),
    min_size=1,
    max_size=4,
).filter(lambda found: any(step["rate_per_s"] > 0.01 for step in found))
rates = st.floats(0.01, 50)
specs = st.one_of(
    st.fixed_dictionaries({"kind": st.sampled_from(["even", "poisson"]), "rate_per_s": rates}),
    st.fixed_dictionaries({"kind": st.just("gamma"), "rate_per_s": rates, "burstiness": st.floats(0.05, 50)}),
    st.fixed_dictionaries({"kind": st.just("piecewise"), "steps": steps, "repeat": st.booleans()}),
    st.fixed_dictionaries({"kind": st.just("daily"), "mean_rate_per_s": rates, "swing": st.floats(0, 1)}),
)


@given(specs, st.integers(0, 1000))
def test_arrivals_come_in_order_and_a_longer_stream_starts_with_the_shorter_one(
    spec: dict[str, Any], seed: int
) -> None:
    longer = times(spec, 60, seed)
    assert np.all(np.diff(longer) >= 0) and (not len(longer) or longer[0] >= 0)
    assert times(spec, 20, seed).tolist() == longer[:20].tolist()


def test_even_arrivals_keep_their_distance() -> None:
    assert times({"kind": "even", "rate_per_s": 4}, 4).tolist() == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_variation_of_a_gamma(burstiness: float) -> None:
    gaps = np.diff(times({"kind": "gamma", "rate_per_s": 2, "burstiness": burstiness}, 40_000))
    assert gaps.mean() == pytest.approx(0.5, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.03)


SCHEDULE = {
    "kind": "piecewise",
    "steps": [
        {"duration_s": 100, "rate_per_s": 50},
        {"duration_s": 50, "rate_per_s": 0},
        {"duration_s": 200, "rate_per_s": 10},
    ],
}


def test_a_schedule_has_the_rate_of_each_step_and_ends() -> None:
    counts = np.histogram(times(SCHEDULE, None), [0, 100, 150, 350, 1e9])[0]
    assert counts[1] == counts[3] == 0
    assert counts[[0, 2]] == pytest.approx([5000, 2000], rel=0.08)  # 3.5 standard deviations


def test_a_repeated_schedule_goes_on() -> None:
    found = times(SCHEDULE | {"repeat": True}, 21_000)
    counts = np.histogram(found, np.arange(4) * 350)[0]
    assert counts == pytest.approx([7000, 7000, 7000], rel=0.04)
    assert not np.any((found % 350 > 100) & (found % 350 < 150))


def test_a_schedule_of_one_rate_is_poisson() -> None:
    one = {"kind": "piecewise", "steps": [{"duration_s": 10, "rate_per_s": 3}], "repeat": True}
    assert times(one, 50) == pytest.approx(times({"kind": "poisson", "rate_per_s": 3}, 50))


def test_a_day_swings_around_its_mean() -> None:
    spec = {"kind": "daily", "mean_rate_per_s": 0.5, "swing": 0.8, "peak_hour": 14, "start_hour": 8}
    found = times(spec, 86_400)
    assert found[-1] == pytest.approx(2 * DAY_S, rel=0.02)
    by_hour = np.histogram((found / 3600 + 8) % 24, np.arange(25))[0] / 3600 / 2
    assert by_hour[14] == pytest.approx(0.5 * 1.8, rel=0.06)
    assert by_hour[2] == pytest.approx(0.5 * 0.2, rel=0.15)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "piecewise", "steps": [{"duration_s": 5, "rate_per_s": 0}]}, "nothing would ever arrive"),
        ({"kind": "piecewise", "steps": []}, "at least 1 item"),
        ({"kind": "gamma", "rate_per_s": 1, "burstiness": 0}, "greater than 0"),
        ({"kind": "daily", "mean_rate_per_s": 1, "swing": 1.5}, "less than or equal to 1"),
    ],
)
def test_arrivals_that_cannot_be_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        spec_of.validate_python(wrong)


def test_arrivals_are_made_as_they_are_asked_for() -> None:
    rng = np.random.Generator(np.random.PCG64(0))
    spec = spec_of.validate_python({"kind": "poisson", "rate_per_s": 1})
    assert len(list(itertools.islice(arrival_times_s(spec, rng, None), 10))) == 10
