"""Means over seeds and their intervals."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from hisparse_sim.planning.spread import intervals, t_95


def test_quantiles_are_those_of_students_t() -> None:
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    for degrees in (1, 2, 7, 30, 31, 50, 100, 10_000):
        assert t_95(degrees) == pytest.approx(float(stats.t.ppf(0.975, degrees)), rel=4e-4)


def test_a_point_has_mean_and_interval_over_its_seeds() -> None:
    frame = pd.DataFrame(
        {
            "status": ["done"] * 4 + ["refused"],
            "x": [1, 1, 1, 2, 3],
            "m": [1.0, 2.0, 3.0, 5.0, math.nan],
            "none": [math.nan] * 5,
        }
    )
    found = intervals(frame, ["x"], ["m", "none"]).set_index("x")
    assert list(found.index) == [1, 2]
    assert set(found["metric"]) == {"m"}
    assert found.loc[1, "mean"] == 2
    assert found.loc[1, "high"] - 2 == pytest.approx(4.303 / math.sqrt(3))
    assert found.loc[2, "n"] == 1
    assert math.isnan(found.loc[2, "low"])


def test_without_a_varied_field_all_seeds_are_one_point() -> None:
    frame = pd.DataFrame({"status": ["done"] * 2, "m": [1.0, 3.0]})
    assert intervals(frame, [], ["m"])["mean"].tolist() == [2.0]
    assert intervals(frame.assign(status="refused"), [], ["m"]).empty
