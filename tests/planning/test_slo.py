"""Goals are read with their units, or refused by name."""

from __future__ import annotations

import pytest

from hisparse_sim.errors import InputError
from hisparse_sim.planning.slo import parse_goals, slo_of
from hisparse_sim.scenario.scenario import SloSpec


def test_times_are_seconds_whatever_their_unit() -> None:
    goals = parse_goals(["ttft_p95<=30s", "tpot_p99 <= 100ms", "e2e_mean<=2min", "itl_p50<=500us"])
    assert [(g.metric, g.bound) for g in goals] == [
        ("ttft_p95", 30.0),
        ("tpot_p99", 0.1),
        ("e2e_mean", 120.0),
        ("itl_p50", 0.0005),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ttft_p95<=30", "30 has no unit; write 30s or 30ms"),
        ("ttft_p95<=30GiB", "'GiB' is no unit of ttft_p95, a time; one of s, ms, us, min"),
        ("tftt_p95<=30s", "'tftt_p95' is not known; did you mean 'ttft_p95'"),
        ("ttft<=30s", "'ttft' is not known"),
        ("ttft_p95>=30s", "ttft_p95 takes <=, not >="),
        ("ttft_p95", "is not metric<=value"),
        ("ttft_p95<=0s", "can never hold"),
        ("goodput>=95ms", "'ms' is no unit of goodput, a share"),
        ("goodput>=95", "95 is more than all requests; write 95% or 0.95"),
    ],
)
def test_a_goal_that_cannot_be_read_is_refused_with_what_would_be_right(text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        parse_goals([text, "e2e_p99<=1min"])
    assert said in str(error.value)
    assert str(error.value).startswith(f"--slo {text}: ")


def test_one_metric_has_one_goal() -> None:
    with pytest.raises(InputError, match="has a goal already, ttft_p95<=30s"):
        parse_goals(["ttft_p95<=30s", "ttft_p95<=20s"])


def test_goodput_needs_something_that_makes_a_request_good() -> None:
    with pytest.raises(InputError, match="add one"):
        parse_goals(["goodput>=95%", "itl_p99<=1s"])
    goals = parse_goals(["goodput>=95%", "ttft_p95<=30s", "ttft_p50<=5s", "tpot_p99<=100ms"])
    assert slo_of(goals, SloSpec(tpot_s=0.2)) == SloSpec(ttft_s=5.0, tpot_s=0.2)
