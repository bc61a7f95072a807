"""Plans, expectations, anatomies and sensitivities in Python."""

from __future__ import annotations

import pytest

import hisparse_sim as hs

SMALL = {
    "workload.concurrency": 4,
    "workload.turns": 2,
    "workload.first_prompt_tokens": 9000,
    "workload.output_tokens": 20,
}


@pytest.fixture(scope="module")
def small() -> object:
    return hs.scenario("agentic-13turn-8xh200", SMALL)


@pytest.fixture(scope="module")
def plan(small: object) -> hs.Plan:
    return hs.plan(
        small,  # type: ignore[arg-type]
        slo=["ttft_p95<=20s"],
        vary={"engine.host_pool_gib": "64..128:2", "engine.mode": ["hisparse"]},
        nodes=[1, 2],
        prices={"8xh200": 30},
        bisect=1,
    )


def test_a_plan_is_a_text_a_table_a_command_and_a_scenario(plan: hs.Plan) -> None:
    assert "recommended: " in repr(plan)
    assert "<pre" in plan._repr_html_()
    first = plan.table.iloc[0]
    assert first["verdict"] == "recommended"
    assert first["engine.host_pool_gib"] == 64
    assert first["ttft_p95"] <= 20
    assert first["hourly"] == 30
    assert plan.command.startswith("vllm serve ")
    assert plan.data["recommended"]["command"] == plan.command
    assert plan.scenario.engine.host_pool_gib == 64
    assert plan.scenario.workload.concurrency == 4


def test_the_scenario_of_a_plan_has_one_machines_share(small: object) -> None:
    two = hs.plan(small, slo=["ttft_p95<=20s"], nodes=2, runs=1, bisect=0)  # type: ignore[arg-type]
    assert two.best.found.nodes == 2
    assert two.scenario.workload.concurrency == 2


def test_a_plan_that_nothing_holds_says_so_when_it_is_asked_for(small: object) -> None:
    # The estimate rules out nothing here, the simulation all.
    found = hs.plan(small, slo=["ttft_p90<=1.5s"], runs=1, bisect=0)  # type: ignore[arg-type]
    assert found.answer.best is None
    assert set(found.table["verdict"]) == {"does not hold"}
    with pytest.raises(hs.HiSparseError, match="no combination"):
        _ = found.command


def test_what_is_expected_is_near_what_a_run_shows(small: object) -> None:
    found = hs.expected(small)  # type: ignore[arg-type]
    run = hs.simulate(small)  # type: ignore[arg-type]
    for name, rel in (
        ("e2e", 0.05),
        ("ttft", 0.3),
    ):  # prompts that share a step: it tells them apart less well
        assert found[f"{name}_mean"] == pytest.approx(run.summary[f"{name}_s"]["mean"], rel=rel)
    assert "limit" in repr(found)
    assert "<table>" in found._repr_html_()
    with pytest.raises(hs.HiSparseError, match="'speed' is not known"):
        found["speed"]
    with pytest.raises(hs.HiSparseError, match="tokens"):
        hs.expected(hs.scenario("stream-1m-8xh200", {"engine.mode": "resident"}))


def test_an_anatomy_adds_up_and_is_drawn(small: object) -> None:
    found = hs.explain(small, batch=3, context="8k", chunk=1024, past=0)  # type: ignore[arg-type]
    sums = found.table.groupby("step")["seconds"].sum()
    assert sums["decode"] == pytest.approx(found.data[0]["seconds"])
    assert sums["prefill"] == pytest.approx(found.data[1]["seconds"])
    assert "3 requests of 8,192 tokens" in repr(found)
    assert "prefill: 1,024 tokens after 0" in found._repr_html_()
    assert found.plot().get_axes()
    with pytest.raises(hs.HiSparseError, match="context: 'much'"):
        hs.explain(small, context="much")  # type: ignore[arg-type]


def test_a_sensitivity_is_a_table_with_the_widest_first(small: object) -> None:
    found = hs.sensitivity(small, "ttft_p95")  # type: ignore[arg-type]
    assert found.table["swing"].is_monotonic_decreasing
    assert "ttft_p95" in repr(found)
    assert "<pre>" in found._repr_html_()
    assert found.plot().get_axes()[0].get_xlabel() in ("ttft_p95, ms", "ttft_p95, s")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: hs.plan("stream-1m-8xh200"), "slo: missing; give slo="),
        (lambda: hs.plan("stream-1m-8xh200", slo=["ttft_p95<=30GB"]), "'GB' is no unit"),
        (lambda: hs.plan("stream-1m-8xh200", slo=["ttft_p95<=9s"], runs=-1), "runs: -1 is no number"),
        (lambda: hs.plan("stream-1m-8xh200", slo=["ttft_p95<=9s"], nodes=0), "0 is no count of machines"),
        (
            lambda: hs.plan("stream-1m-8xh200", slo=["ttft_p95<=9s"], vary={"engine.magic": [1]}),
            "engine.magic",
        ),
        (lambda: hs.sensitivity("stream-1m-8xh200", "speed"), "'speed' is not known"),
        (lambda: hs.estimate(settings={"workload.turns": 3}), "is no field of engine, model or node"),
    ],
)
def test_what_is_wrong_names_what_would_be_right(wrong: object, words: str) -> None:
    assert callable(wrong)
    with pytest.raises(hs.HiSparseError, match=words):
        wrong()


def test_an_estimate_takes_fields_of_the_node() -> None:
    slow, fast = (
        hs.estimate(settings={"node.host_link.gather_bytes_per_s": rate}, kv_cache_dtype="fp8")
        for rate in (1e10, 1e11)
    )
    tpot = [found.table.set_index("mode").loc["hisparse", "tpot_s"] for found in (slow, fast)]
    assert tpot[0] > tpot[1]


def test_a_picture_shows_itself_in_jupyter_without_pyplot(small: object) -> None:
    figure = hs.explain(small).plot()  # type: ignore[arg-type]
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
