"""The figures: each as it is defined, on queues and requests made by hand."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import CONVERSATIONS, POISSON, run, scenario

from hisparse_sim.cost.work import StepCost
from hisparse_sim.scenario.scenario import SloSpec
from hisparse_sim.simulation import summary as figures
from hisparse_sim.simulation.columns import StepLog
from hisparse_sim.simulation.record import RequestRecord
from hisparse_sim.simulation.recorder import Recorder
from hisparse_sim.simulation.replica import build_replica
from hisparse_sim.simulation.run import simulate
from hisparse_sim.simulation.served import goodput, spread

PROMISED = [
    "running_mean",
    "running_time_weighted",
    "waiting_mean",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "total_tokens_per_s_per_gpu",
    "ttft_s",
    "tpot_s",
    "itl_s",
    "e2e_s",
    "preemptions",
    "prefix_hit_rate",
    "host_to_device_bytes",
    "device_to_host_bytes",
    "hot_hit_rate",
    "gpu_kv_usage_mean",
    "gpu_kv_usage_max",
    "host_usage_max",
    "requests_completed",
    "requests_failed",
    "goodput",
    "verdict",
    "sim_time_s",
]


def record(arrival_s: float, ttft_s: float, e2e_s: float, *, tokens: int = 11) -> RequestRecord:
    return RequestRecord(
        "r",
        "s",
        arrival_s,
        100,
        tokens,
        first_scheduled_s=arrival_s,
        first_token_s=arrival_s + ttft_s,
        last_token_s=arrival_s + e2e_s,
        finish_s=arrival_s + e2e_s,
        sampled=tokens,
        hit_tokens=0,
        status="completed",
    )


COUNTS = (4, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0)
"""Of a step of 4 running requests."""


def summarise(recorder: Recorder, *, end_s: float = 100.0, open_loop: bool = False):
    asked = scenario(CONVERSATIONS)
    return figures.summarise(
        asked,
        build_replica(asked),
        recorder,
        StepLog(recorder.rows),
        figures.Totals([(1000, 1000)]),
        end_s=end_s,
        complete=True,
        open_loop=open_loop,
    )


# -- samples ------------------------------------------------------------------------------------


def sampled(queue, end_s):
    """Running requests as a scraper sees them."""
    gauge = figures.gauges(queue)
    return figures.samples(gauge.times_s, gauge.running, end_s)


def test_a_run_under_600_seconds_is_sampled_at_20_equal_intervals():
    queue = [(0.0, 1, 0), (300.0, 3, 0), (598.0, 0, 0)]
    found = sampled(queue, 599.0)
    assert len(found) == 20
    assert found.tolist() == [1] * 10 + [3] * 9 + [0]


def test_a_longer_run_is_sampled_every_30_seconds_from_30_on():
    queue = [(0.0, 2, 0), (100.0, 5, 0)]
    assert sampled(queue, 600.0).tolist() == [2] * 3 + [5] * 17
    assert len(sampled(queue, 629.9)) == 20
    assert len(sampled(queue, 630.0)) == 21


def test_a_sample_at_the_moment_of_a_change_sees_what_was_before():
    assert sampled([(0.0, 1, 0), (30.0, 9, 0)], 600.0)[:2].tolist() == [1, 9]


@given(end_s=st.integers(1, 10**15).map(lambda ns: ns / 1e9))
def test_the_last_sample_is_not_after_the_end(end_s):
    # A twentieth of a time, twenty times, may be a little more than it.
    assert sampled([(0.0, 7, 0), (end_s, 0, 0)], end_s).all()


def test_running_mean_drops_zeros_and_the_waiting_share_does_not():
    recorder = Recorder(requests=[record(0, 1, 600)], queue=[(0.0, 4, 2), (150.0, 0, 0), (450.0, 2, 0)])
    summary = summarise(recorder, end_s=600.0)
    assert summary["running_mean"] == pytest.approx((5 * 4 + 5 * 2) / 10)
    assert summary["waiting_share"] == pytest.approx(5 / 20)
    assert summary["running_time_weighted"] == pytest.approx((150 * 4 + 150 * 2) / 600)
    assert summary["waiting_mean"] == pytest.approx(150 * 2 / 600)


def test_before_anything_arrives_there_is_nothing_to_weigh():
    recorder = Recorder(requests=[record(50, 1, 50)], queue=[(0.0, 0, 0), (50.0, 2, 0)])
    assert summarise(recorder)["running_time_weighted"] == 2


def test_nothing_ever_running_is_zero():
    assert summarise(Recorder(), end_s=0.0)["running_mean"] == 0
    assert summarise(Recorder(queue=[(0.0, 0, 3)]), end_s=100.0)["running_mean"] == 0


def test_loading_requests_wait_and_do_not_run():
    # The GPU holds one conversation of the two: the other's next turn has to be loaded, slowly.
    work = CONVERSATIONS | {"concurrency": 2, "conversations": 2, "think_time_s": 1.0}
    asked = scenario(work, mode="offload", engine={"num_gpu_blocks": 70, "max_model_len": 3800})
    link = asked.node.host_link.model_copy(update={"copy_h2d_bytes_per_s": 1e7})
    slow = asked.model_copy(update={"node": asked.node.model_copy(update={"host_link": link})})
    summary = simulate(slow).summary
    assert summary["waiting_mean"] > 5 * summary["running_time_weighted"]
    assert summary["verdict"] == "backlogged"
    assert summary["waiting_for_s"]["loads"] > 0.1 * summary["sim_time_s"]


# -- latencies and rates ------------------------------------------------------------------------


def test_latencies_are_means_and_interpolated_percentiles_of_completed_requests():
    records = [record(i, 1 + i, 11 + 2 * i) for i in range(5)]
    records.append(RequestRecord("failed", "s", 0.0, 10, 10, status="failed"))
    summary = summarise(Recorder(requests=records))
    ttft = [1, 2, 3, 4, 5]
    assert summary["ttft_s"]["mean"] == 3
    assert summary["ttft_s"]["p90"] == pytest.approx(np.percentile(ttft, 90))
    assert summary["e2e_s"]["p50"] == 15
    # (E2E - TTFT) / (tokens - 1)
    assert summary["tpot_s"]["mean"] == pytest.approx(np.mean([(10 + i) / 10 for i in range(5)]))
    assert summary["requests_completed"] == 5
    assert summary["requests_failed"] == 1


@given(values=st.lists(st.floats(0, 1e6), min_size=1, max_size=40))
def test_percentiles_are_those_of_numpy(values):
    found = spread(values)
    assert found.pop("mean") == pytest.approx(np.mean(values))
    for name, value in found.items():
        assert value == pytest.approx(np.percentile(values, float(name[1:])))


def test_a_single_token_has_no_time_per_token():
    summary = summarise(Recorder(requests=[record(0, 1, 1, tokens=1)]))
    assert summary["tpot_s"] == dict.fromkeys(("mean", "p50", "p90", "p95", "p99"))
    assert summary["itl_s"]["mean"] is None
    assert summary["ttft_s"]["mean"] == 1


def test_tokens_per_second_are_from_first_arrival_to_last_completion():
    summary = summarise(Recorder(requests=[record(10, 1, 20), record(15, 1, 25)]), end_s=40.0)
    assert summary["output_tokens_per_s"] == pytest.approx(22 / 30)
    assert summary["total_tokens_per_s"] == pytest.approx(222 / 30)
    assert summary["total_tokens_per_s_per_gpu"] == pytest.approx(222 / 30 / 8)


def test_inter_token_latencies_are_counted():
    recorder = Recorder(requests=[record(0, 1, 2)])
    recorder.gaps.add(0, np.array([0.010, 1.0]), np.array([98.0, 2.0]))
    itl = summarise(recorder)["itl_s"]
    assert itl["mean"] == pytest.approx((0.98 + 2) / 100)
    assert [itl[p] for p in ("p50", "p90", "p95", "p99")] == [0.010, 0.010, 0.010, 1.0]


# -- goodput ------------------------------------------------------------------------------------


def test_goodput_counts_requests_that_meet_every_goal():
    done = [record(0, 1, 11), record(0, 3, 13), record(0, 1, 51), record(0, 1, 1, tokens=1)]
    assert goodput(SloSpec(), done, 10.0) is None
    assert goodput(SloSpec(ttft_s=2), done, 10.0) == pytest.approx(0.3)
    # One token has no TPOT to miss.
    assert goodput(SloSpec(ttft_s=2, tpot_s=1), done, 10.0) == pytest.approx(0.2)
    assert goodput(SloSpec(e2e_s=0.5), done, 10.0) == 0
    assert goodput(SloSpec(e2e_s=0.5), [], 0.0) is None


def test_goals_of_the_scenario_give_a_goodput():
    free = run(CONVERSATIONS).summary
    assert free["goodput"] is None
    easy = run(CONVERSATIONS, slo={"e2e_s": 1e6}).summary
    assert easy["goodput"] == pytest.approx(18 / easy["sim_time_s"])
    assert run(CONVERSATIONS, slo={"ttft_s": 1e-6}).summary["goodput"] == 0


# -- verdict and limit --------------------------------------------------------------------------


def arrivals(waiting: list[int], *, rate_per_s: float = 1.0) -> Recorder:
    """Requests at a steady rate over 100 s, and what waited in each tenth of them."""
    count = int(100 * rate_per_s)
    return Recorder(
        requests=[record(i / rate_per_s, 1, 2) for i in range(count + 1)],
        queue=[(10.0 * i, 4, n) for i, n in enumerate(waiting)],
    )


@pytest.mark.parametrize(
    ("waiting", "verdict"),
    [
        ([0] * 10, "stable"),
        ([0, 3, 0, 0, 5, 0, 0, 4, 0, 0], "stable"),
        ([5, 6, 4, 7, 5, 6, 5, 7, 6, 5], "backlogged"),
        ([0, 1, 3, 5, 7, 9, 11, 13, 15, 17], "overloaded"),
        ([40, 30, 20, 10, 5, 4, 3, 2, 2, 2], "backlogged"),
    ],
)
def test_an_open_loop_is_overloaded_when_its_queue_grows(waiting, verdict):
    assert summarise(arrivals(waiting), open_loop=True)["verdict"] == verdict


def test_the_same_growth_of_a_closed_loop_is_a_backlog():
    assert summarise(arrivals(list(range(0, 20, 2))))["verdict"] == "backlogged"


def test_a_failed_request_makes_the_verdict_infeasible():
    recorder = arrivals([0] * 10)
    recorder.requests[3].status = "failed"
    assert summarise(recorder, open_loop=True)["verdict"] == "infeasible"


@pytest.mark.parametrize(("load", "verdict"), [(0.5, "stable"), (2.0, "overloaded")])
def test_poisson_arrivals_at_half_and_at_twice_what_is_served(load, verdict):
    work = POISSON | {"requests": 120, "prompt_tokens": 2000, "output_tokens": 1}
    engine = {"max_num_seqs": 1}
    served_s = run(work | {"requests": 1}, engine=engine).summary["ttft_s"]["mean"]
    summary = run(work | {"rate_per_s": load / served_s}, engine=engine).summary
    assert summary["verdict"] == verdict
    if verdict == "overloaded":
        assert re.match(r"max_num_seqs \(\d\d+ % of the time\)", summary["limit"])


def test_the_limit_is_what_most_waiting_was_for():
    recorder = Recorder(requests=[record(0, 1, 100)])
    recorder.queue_is(0.0, 4, 3, "GPU blocks")
    recorder.queue_is(60.0, 4, 3, "max_num_batched_tokens")
    recorder.queue_is(80.0, 4, 0)
    recorder.step(COUNTS, 0.0, 90.0, 0, StepCost(attention_s=60, moe_s=30))
    recorder.settle()
    summary = summarise(recorder)
    assert summary["waiting_for_s"] == {"GPU blocks": 60, "max_num_batched_tokens": 20}
    assert summary["limit"] == "GPU memory for KV (60 % of the time)"


def test_without_waiting_the_clients_are_the_limit():
    recorder = Recorder(requests=[record(0, 1, 100)])
    recorder.step(COUNTS, 0.0, 90.0, 0, StepCost(attention_s=60, moe_s=30))
    recorder.settle()
    assert summarise(recorder)["limit"] == "the clients: requests rarely wait; attention is 67 % of step time"
    assert summarise(recorder, end_s=300)["limit"] == "the clients: the engine is idle 70 % of the time"


def test_time_in_steps_that_no_part_explains_is_the_links():
    recorder = Recorder(requests=[record(0, 1, 100)])
    recorder.step(COUNTS, 0.0, 10.0, 0, StepCost(attention_s=4), waits=True)
    recorder.settle()
    assert summarise(recorder)["step_time_s"] == {"attention": 4, "link": 6}


# -- the file -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["resident", "offload", "hisparse"])
def test_the_summary_has_all_its_keys_and_no_nan(mode):
    summary = run(CONVERSATIONS, mode=mode).summary
    assert set(PROMISED) <= set(summary)
    text = json.dumps(summary, allow_nan=False)
    assert json.loads(text) == summary
    for key in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
        assert list(summary[key]) == ["mean", "p50", "p90", "p95", "p99"]
        assert all(isinstance(v, float) for v in summary[key].values())
    assert (summary["hot_hit_rate"] is None) == (summary["host_to_device_bytes"] == 0 or mode == "offload")


def test_a_run_in_which_nothing_ran_is_all_nulls_and_zeros():
    summary = run(CONVERSATIONS, engine={"max_model_len": 100}).summary
    json.dumps(summary, allow_nan=False)
    assert summary["requests_failed"] == 18
    assert summary["running_mean"] == 0
    assert summary["sim_time_s"] == 0
    assert summary["limit"] == "3,040 tokens exceed max_model_len 100"
    undefined = {k for k, v in summary.items() if v is None}
    assert {"output_tokens_per_s", "gpu_kv_usage_mean", "prefix_hit_rate", "waiting_mean"} <= undefined


def test_every_key_is_written_down_once():
    keys = set()
    _, _, rows, _ = re.split(r"^=[= ]+\n", figures.__doc__ or "", flags=re.MULTILINE)
    for line in rows.splitlines():
        for name in line.split("  ")[0].split(", "):
            if match := re.fullmatch(r"(\w*)\((\w+)\|(\w+)\)(\w*)", name):  # a(b|c)d
                keys |= {match[1] + middle + match[4] for middle in match.group(2, 3)}
            elif match := re.fullmatch(r"(\w+)\((\w+)\)", name):  # a(b)
                keys |= {match[1], match[1] + match[2]}
            elif name and not line.startswith(" "):
                keys.add(name)
    assert keys == set(run(CONVERSATIONS).summary)


def test_a_run_of_decades_is_sampled_a_million_times():
    queue = [(0.0, 1, 0), (1e300, 0, 0)]
    assert len(sampled(queue, 2e9)) == len(sampled(queue, 1e300)) == 10**6
    assert len(sampled(queue, 3e7 - 1)) == 10**6 - 1
    assert len(sampled(queue, 599.0)) == len(sampled(queue, 600.0)) == 20
