"""Distributions of lengths and times: what they promise, and the mistakes they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from hisparse_sim.scenario.distributions import Count, Distribution, QuantilesSpec
from hisparse_sim.workload.lengths import Quantiles, draw, draw_counts

spec_of: TypeAdapter[Any] = TypeAdapter(Distribution)
count_of: TypeAdapter[Any] = TypeAdapter(Count)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


EXAMPLES = [
    {"kind": "fixed", "value": 7},
    {"kind": "uniform", "low": 3, "high": 90},
    {"kind": "lognormal", "median": 40, "sigma": 1.5, "low": 5, "high": 1000},
    {"kind": "zipf", "low": 2, "high": 500, "exponent": 1.2},
    {"kind": "quantiles", "points": {"min": 3, "p50": 20, "p99.5": 400, "max": 900}},
    {
        "kind": "mixture",
        "parts": [{"weight": 3, "of": 8}, {"weight": 1, "of": {"kind": "uniform", "low": 100, "high": 200}}],
    },
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e["kind"])
def test_a_longer_draw_starts_with_the_shorter_one(example: dict[str, Any]) -> None:
    spec = spec_of.validate_python(example)
    assert draw(spec, rng(), 50).tolist() == draw(spec, rng(), 90).tolist()[:50]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e["kind"])
def test_a_description_survives_json(example: dict[str, Any]) -> None:
    spec = spec_of.validate_python(example)
    assert spec_of.validate_json(spec_of.dump_json(spec)) == spec


def test_a_plain_number_is_always_itself() -> None:
    assert draw_counts(count_of.validate_python(12), rng(), 3).tolist() == [12, 12, 12]


@given(st.integers(0, 1000))
def test_counts_are_at_least_one(seed: int) -> None:
    spec = spec_of.validate_python({"kind": "lognormal", "median": 0.5, "sigma": 3})
    assert draw_counts(spec, rng(seed), 50).min() >= 1


def test_bounds_are_kept() -> None:
    for example, low, high in ((EXAMPLES[1], 3, 90), (EXAMPLES[2], 5, 1000), (EXAMPLES[3], 2, 500)):
        values = draw(spec_of.validate_python(example), rng(), 20_000)
        assert low <= values.min() and values.max() <= high


def test_a_lognormal_has_its_median_and_spread() -> None:
    values = draw(spec_of.validate_python({"kind": "lognormal", "median": 300, "sigma": 0.7}), rng(), 100_000)
    assert np.median(values) == pytest.approx(300, rel=0.02)
    assert np.log(values).std() == pytest.approx(0.7, rel=0.02)


@pytest.mark.parametrize("exponent", [0.8, 1.0, 2.0])
def test_zipf_weights_fall_as_a_power(exponent: float) -> None:
    spec = spec_of.validate_python({"kind": "zipf", "low": 10, "high": 10_000, "exponent": exponent})
    values = draw(spec, rng(), 400_000)
    near = [np.mean((values >= low) & (values < 2 * low)) / low for low in (20, 200)]
    assert np.log(near[0] / near[1]) / np.log(10) == pytest.approx(exponent, abs=0.05)


def test_quantiles_come_out_as_they_were_given() -> None:
    points = {"min": 5, "p10": 40, "p50": 100, "p90": 1000, "p99": 9000, "max": 20_000}
    spec = QuantilesSpec(points=points, samples=1000)
    values = draw(spec, rng(), 200_000)
    assert np.quantile(values, [0.1, 0.5, 0.9, 0.99]) == pytest.approx([40, 100, 1000, 9000], rel=0.03)
    assert (values.min(), values.max()) == pytest.approx((5, 20_000))
    assert Quantiles(spec).at(np.array([0.0, 0.5])) == pytest.approx([5, 100])


def test_a_mixture_draws_its_parts_by_weight() -> None:
    values = draw(spec_of.validate_python(EXAMPLES[5]), rng(), 40_000)
    assert np.mean(values == 8) == pytest.approx(0.75, abs=0.01)
    assert values[values != 8].mean() == pytest.approx(150, rel=0.02)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "uniform", "low": 9, "high": 3}, "low is 9, more than high, 3"),
        ({"kind": "lognormal", "median": 0, "sigma": 1}, "greater than 0"),
        ({"kind": "zipf", "low": 5, "high": 2}, "low is 5, more than high"),
        ({"kind": "quantiles", "points": {"p50": 5}}, "two quantiles or more"),
        ({"kind": "quantiles", "points": {"p50": 5, "p90": 4}}, "p50 is 5, more than p90, 4"),
        ({"kind": "quantiles", "points": {"median": 5, "p90": 9}}, "'median' is not min, max or a perc"),
        ({"kind": "quantiles", "points": {"p0": 5, "p90": 9}}, "'p0' is not"),
        ({"kind": "mixture", "parts": []}, "at least 1 item"),
        ({"kind": "mixture", "parts": [{"weight": 0, "of": 3}]}, "greater than 0"),
        ({"kind": "gaussian"}, "does not match any of the expected tags"),
    ],
)
def test_a_distribution_that_cannot_be_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        spec_of.validate_python(wrong)
