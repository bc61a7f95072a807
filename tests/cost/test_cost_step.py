"""Prices of steps: published figures in bands (none fitted), monotony, and what moves what."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple, replace

from hisparse_sim.cost.domain import Domain, Outside
from hisparse_sim.cost.profile import load_profile
from hisparse_sim.cost.sparse_attention import SparseAttention
from hisparse_sim.cost.step import StepCostModel
from hisparse_sim.cost.work import StepCost, StepWork
from hisparse_sim.errors import UnsupportedModel
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.loader import load_model, load_node


@cache
def cost_model(model: str = "glm-5.3", **engine: Any) -> StepCostModel:
    settings_ = {"kv_cache_dtype": "fp8", **engine}
    return StepCostModel(
        load_model(model), load_node("8xh200"), EngineSpec(**settings_), load_profile("h200-published")
    )


def prompt_s(model: StepCostModel, tokens: int, *, past: int = 0, budget: int = 32_768) -> np.ndarray:
    parts = np.zeros(10)
    while tokens:
        new = min(tokens, budget)
        parts += np.array(model.step(StepWork(prefills=((new, past),), sampled=1)).parts_s[:10])
        past, tokens = past + new, tokens - new
    return parts


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from(["glm-5.3", "llama-3.1-8b", "kimi-k2"]),
    hisparse=st.booleans(),
    batch=st.integers(1, 300),
    context=st.integers(1, 400_000_000),
    rows=st.sampled_from([0.0, 1.5, 40_000.0]),
    steps=st.integers(1, 40),
)
def test_decodes_priced_together_cost_what_each_alone_does_to_the_last_bit(
    name: str, hisparse: bool, batch: int, context: int, rows: float, steps: int
) -> None:
    hisparse = hisparse and name == "glm-5.3"
    model = cost_model(name, **({"mode": "hisparse"} if hisparse else {}))
    work = StepWork(batch, context, sampled=batch)
    if hisparse:
        work = replace(
            work, lookup_rows=rows, miss_rows=rows / 7, miss_rows_max=rows / 9, mirrored_tokens=batch
        )
    contexts = range(context, context + steps * batch, batch)
    model.outside = Outside(model.outside.domain)
    each = [model.step(replace(work, decode_context_tokens=c)) for c in contexts]
    one_by_one, model.outside = model.outside, Outside(model.outside.domain)
    first = model.unnoted(work)
    assert first == each[0]
    if first.mirror_s:
        return  # such steps are taken one by one
    found = [first.with_attention(seconds) for seconds in model.decodes_s(work, steps)]
    model.note_decodes(work, steps)
    assert found == each
    assert [cost.attention_s + first.others_s for cost in found] == [cost.total_s for cost in each]
    assert model.outside.count == one_by_one.count
    assert model.outside.furthest == one_by_one.furthest


# Published figures; nothing in the profile was fitted to any of them.


def test_one_request_of_glm_5_3_decodes_near_the_published_10_87_ms() -> None:
    # vLLM blog 2026-09-08, 13-turn workload at concurrency 1: about 80k tokens in context.
    assert cost_model().decode_tpot_s(1, 80_000) == pytest.approx(10.87e-3, abs=0.6e-3)


def test_hisparse_costs_a_lone_resident_request_about_three_percent_at_most() -> None:
    # The same figure: 11.16 against 10.87 ms.
    ratio = cost_model(mode="hisparse").decode_tpot_s(1, 80_000) / cost_model().decode_tpot_s(1, 80_000)
    assert 1.005 < ratio < 1.04


def test_a_cold_74160_token_prompt_takes_about_eight_and_a_half_seconds() -> None:
    parts = prompt_s(cost_model(), 74_160)
    assert parts.sum() == pytest.approx(8.5, rel=0.1)
    assert parts[:4] == pytest.approx([6.4, 1.5, 0.01, 0.55], rel=0.1)


def test_a_later_turn_of_820_tokens_takes_about_a_seventh_of_a_second() -> None:
    assert prompt_s(cost_model(), 820, past=75_000).sum() == pytest.approx(0.157, rel=0.2)


def test_the_sglang_law_gives_152_us_a_glm_5_layer_at_131k() -> None:
    # aiconfigurator, SGLang 0.5.14, GLM-5 TP8, one request: 152.2 us; 88.0 at 4,096 tokens.
    term = load_profile("h200-published").term("dsa.decode.indexer.glm.h8.fp8")
    times = term.evaluate({"batch": np.ones(2), "context_tokens": np.array([131_073.0, 4_097.0])})
    assert times == pytest.approx([152.2e-6, 88.0e-6], rel=0.06)


def test_vllm_tpots_of_glm_5_2_at_low_concurrency_are_near() -> None:
    # aarora79/agentic-coding-harness-benchmarks PR 51, TP8 on 8xH200: 10.3 ms at concurrency 1, and
    # 13.0 at 8 (about 6.7 running by its token rate), contexts not stated: a wide band.
    model = cost_model("glm-5.2", ep=False)
    assert model.decode_tpot_s(1, 16_000) == pytest.approx(10.3e-3, rel=0.1)
    assert model.decode_tpot_s(7, 16_000) == pytest.approx(13.0e-3, rel=0.35)


def test_the_published_io_time_of_a_resolve_call_is_met() -> None:
    # arXiv 2608.07009: 112 us on H200 at batch 16 and a buffer of twice the top-k.
    model = cost_model("glm-5.1", mode="hisparse")
    cost = model.step(model.decode_work(16, 100_000, 0.0))
    launches = model.step(model.decode_work(16, 100_000, 1.0)).resolve_s
    assert (cost.resolve_s - launches + cost.gather_s) / 78 == pytest.approx(112e-6, rel=0.1)


# Unrolled sums agree with the arrays that the fit used.


@given(st.integers(1, 256), st.integers(2_049, 200_000))
def test_decode_agrees_with_the_fitted_forms(batch: int, context: int) -> None:
    profile = load_profile("h200-published")
    attention = SparseAttention(load_model("glm-5.2"), profile, tp=8, kv="fp8")
    lead, skip, vllm = (profile.term(f"dsa.decode.{kind}.glm.h8.fp8") for kind in ("indexer", "skip", "vllm"))
    at = {"batch": np.array([float(batch)]), "context_tokens": np.array([float(context)])}
    # SGLang's own slopes in the context give way to vLLM's.
    slopes = lead.value("context_s") * batch * context + lead.value("depth_s") * context
    leader = lead.evaluate(at)[0] - slopes + vllm.value("context_s") * batch * context
    follower = skip.evaluate(at)[0] - skip.value("depth_s") * context
    follower -= skip.value("context_s") * batch * context
    assert attention.decode_s(batch, batch * context) == pytest.approx(21 * leader + 57 * follower)


@given(st.integers(1, 8192), st.integers(0, 1_000_000))
def test_a_chunk_agrees_with_the_fitted_forms(new: int, past: int) -> None:
    profile = load_profile("h200-published")
    attention = SparseAttention(load_model("glm-5.2"), profile, tp=8, kv="fp8")
    at = {
        "sequences": np.ones(1),
        "new_tokens": np.array([float(new)]),
        "past_tokens": np.array([float(past)]),
    }
    lead, skip = (profile.term(f"dsa.prefill.{kind}.glm.h8.fp8") for kind in ("indexer", "skip"))
    wanted = 21 * lead.evaluate(at)[0] + 57 * skip.evaluate(at)[0]
    assert attention.prefill_s([(new, past)]) == pytest.approx(wanted)


@given(st.integers(2, 16), st.integers(1, 512), st.integers(0, 200_000))
def test_equal_chunks_of_one_step_agree_with_the_fitted_form(sequences: int, new: int, past: int) -> None:
    profile = load_profile("h200-published")
    attention = SparseAttention(load_model("glm-5"), profile, tp=8, kv="fp8")
    at = {
        "sequences": np.array([float(sequences)]),
        "new_tokens": np.array([float(new)]),
        "past_tokens": np.array([float(past)]),
    }
    wanted = 78 * profile.term("dsa.prefill.indexer.glm.h8.fp8").evaluate(at)[0]
    assert attention.prefill_s([(new, past)] * sequences) == pytest.approx(wanted)


def test_a_long_chunk_costs_what_its_parts_cost_one_after_the_other() -> None:
    attention = SparseAttention(load_model("glm-5.3"), load_profile("h200-published"), tp=8, kv="fp8")
    whole = attention.prefill_s([(20_000, 5_000)])
    parts = [(8192, 5_000), (8192, 13_192), (3616, 21_384)]
    assert whole == pytest.approx(sum(attention.prefill_s([part]) for part in parts))


# More work never costs less.

works = st.builds(
    StepWork,
    decode_requests=st.integers(0, 400),
    decode_context_tokens=st.integers(400, 40_000_000),
    prefills=st.lists(st.tuples(st.integers(1, 40_000), st.integers(0, 1_000_000)), max_size=3).map(tuple),
    sampled=st.integers(0, 400),
    lookup_rows=st.floats(4_096, 800_000),
    miss_rows=st.floats(0, 4_096),
    miss_rows_max=st.floats(0, 2_048),
    staged_tokens=st.integers(0, 1_000_000),
    mirrored_tokens=st.integers(0, 40_000),
    draft_tokens=st.just(0),
    group_tokens=st.just(0) | st.integers(1, 400_000),
)
ENGINES = (
    {"model": "glm-5.3", "mode": "hisparse"},
    {"model": "glm-5.3", "mode": "hisparse", "tp": 1, "dp": 8},
    {"model": "deepseek-v3.2", "mode": "hisparse", "ep": False, "kv_cache_dtype": "bf16"},
    {"model": "kimi-k2"},
    {"model": "llama-3.1-8b", "tp": 1, "kv_cache_dtype": "auto"},
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(ENGINES), works, st.integers(1, 5_000), st.data())
def test_more_work_never_costs_less(
    engine: dict[str, Any], work: StepWork, more: int, data: st.DataObject
) -> None:
    model = cost_model(**engine)
    fields = (
        "decode_requests",
        "decode_context_tokens",
        "sampled",
        "lookup_rows",
        "miss_rows",
        "miss_rows_max",
    )
    what = data.draw(st.sampled_from((*fields, "staged_tokens", "mirrored_tokens", "new", "past", "chunk")))
    if what in ("new", "past") and work.prefills:
        new, past = work.prefills[0]
        first = (new + more, past) if what == "new" else (new, past + more)
        larger = replace(work, prefills=(first, *work.prefills[1:]))
    elif what in ("new", "past", "chunk"):
        larger = replace(work, prefills=(*work.prefills, (more, 10 * more)))
    else:
        larger = replace(work, **{what: getattr(work, what) + more})
    small, large = model.step(work), model.step(larger)
    assert large.total_s >= small.total_s * (1 - 1e-12)
    assert large.h2d_bytes >= small.h2d_bytes and large.d2h_bytes >= small.d2h_bytes


# What moves what.


def test_an_empty_step_costs_nothing() -> None:
    assert cost_model(mode="hisparse").step(StepWork()).total_s == 0.0


def test_a_mixed_step_runs_its_experts_once_on_all_tokens() -> None:
    model = cost_model()
    mixed = model.step(StepWork(decode_requests=32, decode_context_tokens=64_000, prefills=((4096, 0),)))
    assert mixed.moe_s == pytest.approx(model.step(StepWork(prefills=((4128, 0),))).moe_s)


def test_resident_rows_cost_no_resolve_and_no_gather() -> None:
    model = cost_model(mode="hisparse")
    resident, lost = (model.step(model.decode_work(32, 80_000, share)) for share in (1.0, 0.0))
    assert resident.gather_s == resident.misses_rows == 0.0
    assert lost.resolve_s > resident.resolve_s and lost.gather_s > 0.0
    assert lost.lookups_rows == 32 * 2048 * 78
    assert lost.misses_rows == pytest.approx(0.134 * lost.lookups_rows, rel=0.06)  # arXiv 2608.07009


def test_prefetch_hides_followers_gathers_only_in_pure_decode_steps() -> None:
    model = cost_model(mode="hisparse")
    pure = model.decode_work(16, 80_000, 0.0)
    alone, mixed = model.step(pure), model.step(replace(pure, prefills=((64, 0),)))
    assert alone.gather_s < 0.6 * mixed.gather_s
    every_layer_leads = cost_model("glm-5", mode="hisparse")
    pure = every_layer_leads.decode_work(16, 80_000, 0.0)
    mixed_work = replace(pure, prefills=((64, 0),))
    assert every_layer_leads.step(pure).gather_s == every_layer_leads.step(mixed_work).gather_s


def test_a_larger_hot_buffer_and_a_smaller_row_both_lower_the_gather() -> None:
    def gather(**engine: Any) -> float:
        model = cost_model(mode="hisparse", **engine)
        return model.step(model.decode_work(32, 80_000, 0.0)).gather_s

    assert gather(hot_rows=8192) < gather() < gather(kv_cache_dtype="bf16")


def test_the_mirror_is_exposed_only_beyond_the_compute() -> None:
    model = cost_model(mode="hisparse")
    assert model.step(StepWork(prefills=((32_768, 0),), mirrored_tokens=32_768)).mirror_s == 0.0
    spill = model.step(StepWork(decode_requests=1, decode_context_tokens=9, mirrored_tokens=32_768))
    assert spill.d2h_bytes == 32_768 * 78 * 656
    assert spill.total_s == pytest.approx(spill.d2h_bytes / 55e9)


def test_the_parts_add_up_and_each_names_a_source_and_an_uncertainty() -> None:
    model = cost_model(mode="hisparse")
    work = StepWork(8, 640_000, ((8192, 65_536),), 9, 9_000.0, 2_000.0, 65_536, 8_200)
    answer = model.query(work)
    assert answer.seconds == pytest.approx(model.step(work).total_s)
    assert sum(row.seconds for row in answer.parts) == pytest.approx(answer.seconds)
    assert all(row.source and row.grade for row in answer.parts)
    assert all(row.in_domain for row in answer.parts) and answer.in_domain
    assert all(0 < row.uncertainty_s <= row.seconds for row in answer.parts if row.seconds)
    assert max(row.uncertainty_s for row in answer.parts) <= answer.uncertainty_s < 0.2 * answer.seconds


def test_a_query_says_what_was_extrapolated_and_is_less_sure_of_it() -> None:
    model = cost_model()
    inside, outside = (model.query(model.decode_work(8, tokens)) for tokens in (131_072, 1_048_576))
    assert inside.in_domain and not outside.in_domain
    attention = next(row for row in outside.parts if row.part == "attention")
    assert [limit.variable for limit in attention.beyond] == ["tokens in context of a request"]
    assert attention.beyond[0].words() == (
        "1,048,576 tokens in context of a request, measured to 131,073 (8 x)"
    )
    sure, unsure = (
        next(row.uncertainty_s / row.seconds for row in answer.parts if row.part == "attention")
        for answer in (inside, outside)
    )
    assert unsure == pytest.approx(8 * sure, rel=1e-3)
    many = model.query(StepWork(prefills=((32_768, 0),)))
    assert {row.part for row in many.parts if not row.in_domain} == {"moe"}


def test_steps_outside_are_counted_with_the_furthest_of_each_variable() -> None:
    model = cost_model.__wrapped__()
    for tokens in (100_000, 400_000, 200_000):
        model.step(model.decode_work(2, tokens))
    model.step(StepWork(prefills=((20_000, 300_000),)))
    model.query(model.decode_work(2, 900_000))  # a query counts nowhere
    assert model.outside.count == 3
    assert {f.variable: f.value for f in model.outside.furthest} == {
        "tokens in context of a request": 400_000,
        "tokens of a step": 20_000,
        # 20,000 tokens are priced as chunks of 8,192, the last of which has two before it.
        "past tokens of a prefill chunk": 300_000 + 2 * 8_192,
    }
    assert model.outside.words(4) == (
        "3 of 4 steps are priced outside what was measured; furthest: "
        "400,000 tokens in context of a request, measured to 131,073 (3.05 x)"
    )


def test_the_past_of_a_prefill_grows_from_chunk_to_chunk() -> None:
    model = cost_model()
    inside = model.query(StepWork(prefills=((8_192, 202_000),)))
    assert inside.in_domain
    grown = model.query(StepWork(prefills=((16_384, 202_000),)))
    (limit,) = next(row.beyond for row in grown.parts if row.part == "attention")
    assert (limit.variable, limit.value) == ("past tokens of a prefill chunk", 210_192)
    whole, parts = (
        model.attention.prefill_s([(20_000, 5)]),
        [model.attention.prefill_s([chunk]) for chunk in ((8_192, 5), (8_192, 8_197), (3_616, 16_389))],
    )
    assert whole == pytest.approx(sum(parts))


def test_decode_is_bounded_in_the_context_of_one_request_and_of_all_apart() -> None:
    inside = Domain(batch=256, context=131_073, pairs=33_554_432)
    assert not inside.beyond(256, 33_554_432, 256, 0, 256)
    assert [limit.variable for limit in inside.beyond(1, 131_074, 1, 0, 1)] == [
        "tokens in context of a request"
    ]
    all_ = inside.beyond(256, 33_554_433, 256, 0, 256)
    assert [limit.variable for limit in all_] == ["tokens in context of all requests"]
    assert Outside(inside).words(10) == ""


def test_what_stands_in_for_the_unmeasured_is_named_and_counts_as_outside() -> None:
    odd = load_model("glm-5.3").model_copy(update={"num_experts": 160})
    model = StepCostModel(odd, load_node("8xh200"), EngineSpec(), load_profile("h200-published"))
    assert any("experts 6144x2048.e160k8" in text for text in model.warnings)
    model.step(model.decode_work(1, 1_000))
    assert model.outside.count == 1
    answer = model.query(model.decode_work(1, 1_000))
    assert {row.part for row in answer.parts if not row.in_domain} == {"moe"}


def test_a_profile_of_another_gpu_and_unpriced_drafts_are_warned_about() -> None:
    profile = load_profile("h200-published")
    model = StepCostModel(load_model("glm-5.3"), load_node("8xb200"), EngineSpec(mtp=1), profile)
    assert "NVIDIA H200" in model.warnings[0] and "B200" in model.warnings[0]
    assert "mtp" in model.warnings[1]
    assert cost_model().warnings == ()


def test_hisparse_is_refused_for_a_model_without_indexer() -> None:
    with pytest.raises(UnsupportedModel, match="kimi-k2"):
        cost_model("kimi-k2", mode="hisparse")


def test_a_dense_model_reads_its_weights_and_launches_its_attention() -> None:
    # 8.03e9 bf16 weights less the embedding table at the measured share of 4.8 TB/s, 0.775, are 4.0 ms;
    # each layer's attention kernel takes 11 us for a token or two, and 10 us are other kernels.
    model = cost_model("llama-3.1-8b", tp=1, kv_cache_dtype="auto")
    assert model.decode_tpot_s(1, 1) == pytest.approx(15.0e9 / 3.72e12 + 32 * 21.2e-6, rel=0.02)
    assert model.decode_tpot_s(64, 16_000) > 3 * model.decode_tpot_s(1, 16_000)


def test_more_gpus_and_another_sharding_move_the_price() -> None:
    assert cost_model("llama-3.1-8b", tp=4).decode_tpot_s(8, 4000) < cost_model(
        "llama-3.1-8b", tp=1
    ).decode_tpot_s(8, 4000)
    assert cost_model(ep=False).decode_tpot_s(8, 4000) != cost_model().decode_tpot_s(8, 4000)
    assert cost_model(tp=1, dp=8).decode_tpot_s(8, 4000) != cost_model().decode_tpot_s(8, 4000)


def test_a_cost_is_the_sum_of_its_seconds() -> None:
    cost = StepCost(*(2.0**n for n in range(len(StepCost.__struct_fields__))))
    parts = [
        value
        for name, value in zip(StepCost.__struct_fields__, astuple(cost), strict=True)
        if name.endswith("_s")
    ]
    assert cost.parts_s == tuple(parts)
    assert cost.total_s == sum(parts) == cost.attention_s + cost.others_s
