"""How many requests fit: against vLLM's own formulas and published runs, and the laws of any answer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse_sim.errors import Infeasible, InputError
from hisparse_sim.estimate.answer import answer, longest_context
from hisparse_sim.estimate.concurrency import min_host_bytes, mode_pools, overhead_variants
from hisparse_sim.memory.budget import size_pools
from hisparse_sim.memory.host import GIB
from hisparse_sim.scenario.catalogue import load_model, load_node
from hisparse_sim.scenario.engine import EngineSpec

GLM, H200 = load_model("glm-5.3"), load_node("8xh200")
FP8 = EngineSpec(kv_cache_dtype="fp8")
PUBLISHED = EngineSpec(
    kv_cache_dtype="fp8", max_num_batched_tokens=32_768, host_pool_gib=384, indexer_offload_gib=128
)


def count(mode, tokens, engine=FP8, model=GLM, node=H200) -> int:
    return mode_pools(model, node, engine, mode).count(tokens).requests


def test_six_conversations_of_86k_are_resident_as_in_the_published_run():
    # vLLM blog of 2026-09-08: 6.0 running without HiSparse at concurrency 24 and 32.
    assert count("resident", 86_060, PUBLISHED) == 6
    assert count("hisparse", 86_060, PUBLISHED) > 32


def test_classic_offload_fits_what_resident_fits():
    engine = FP8.model_copy(update={"kv_offload_gib": 512.0})
    assert [count("offload", t, engine) for t in (8192, 131_072)] == [
        count("resident", t) for t in (8192, 131_072)
    ]


def test_hisparse_counts_are_vllms_steady_state_formula():
    fixed = FP8.model_copy(update={"max_model_len": 2**20, "mode": "hisparse"})
    sizes = size_pools(GLM, H200, fixed)
    found = mode_pools(GLM, H200, fixed, "hisparse").count(2**20)
    assert found.requests == int(sizes.steady_concurrency)


def test_short_requests_that_stay_on_the_gpu_need_no_hot_buffer():
    found = mode_pools(GLM, H200, FP8, "hisparse").count(2048)
    assert found.stays_resident
    # 32 pages in 1 + 20 groups, nine tenths of the pool.
    sizes = mode_pools(GLM, H200, FP8, "hisparse").sizes
    assert found.requests == (sizes.num_gpu_blocks - 1 - sizes.transition_watermark_blocks) // (32 * 21)


@pytest.mark.parametrize(("requests", "share"), [(1, 1.00), (8, 0.54), (16, 0.23), (32, 0.07)])
def test_resident_share_is_near_what_the_scheduler_holds(requests, share):
    # vLLM's scheduler on the published workload, 74k to 86k tokens.
    pools = mode_pools(GLM, H200, PUBLISHED, "hisparse")
    assert pools.resident_share(86_060, requests) == pytest.approx(share, abs=0.03)


def test_what_does_not_fit_is_0_with_its_limit():
    small = load_node("8xh100")
    for mode in ("resident", "offload", "hisparse"):
        found = mode_pools(GLM, small, FP8, mode)
        assert (found.count(8192).requests, found.count(8192).limit) == (0, "weights")
        assert "8xh100" in found.reason


def test_hisparse_is_refused_by_name_not_by_error():
    found = mode_pools(load_model("kimi-k2"), H200, FP8, "hisparse")
    assert (found.count(8192).requests, found.count(8192).limit) == (0, "unsupported")
    assert "index_topk" in found.reason
    found = mode_pools(GLM, load_node("8xmi350x"), FP8, "hisparse")
    assert "NVIDIA" in found.reason


def test_max_num_seqs_can_be_what_limits():
    found = mode_pools(GLM, H200, FP8.model_copy(update={"max_num_seqs": 4}), "hisparse").count(8192)
    assert (found.requests, found.limit) == (4, "max_num_seqs")


def test_the_host_pool_can_be_what_limits():
    found = mode_pools(GLM, H200, FP8.model_copy(update={"host_pool_gib": 40.0}), "hisparse").count(81_920)
    assert (found.requests, found.limit) == (10, "host_pool")


def test_a_fixed_length_that_does_not_start_says_which_pool_is_short():
    long = FP8.model_copy(update={"max_model_len": 2**20})
    found = mode_pools(GLM, H200, long, "resident").count(8192)
    assert (found.requests, found.limit) == (0, "hbm")
    found = mode_pools(GLM, H200, long.model_copy(update={"host_pool_gib": 20.0}), "hisparse").count(8192)
    assert (found.requests, found.limit) == (0, "host_pool")


def test_a_host_pool_beyond_dram_is_an_error():
    with pytest.raises(Infeasible):
        mode_pools(GLM, H200, FP8.model_copy(update={"host_pool_gib": 4000.0}), "hisparse")


def test_the_least_host_pool_is_enough_and_no_smaller_one_is():
    pools = mode_pools(GLM, H200, FP8, "hisparse")
    want = pools.count(131_072)
    need = min_host_bytes(pools, 131_072, want.gpu)
    enough = FP8.model_copy(update={"host_pool_gib": need / GIB})
    assert count("hisparse", 131_072, enough) == want.requests
    less = FP8.model_copy(update={"host_pool_gib": need / GIB - 0.1})
    assert count("hisparse", 131_072, less) == want.requests - 1


def test_an_override_in_blocks_of_one_mode_means_the_same_bytes_in_the_others():
    hisparse = FP8.model_copy(update={"mode": "hisparse", "num_gpu_blocks": 132_680})
    for mode in ("resident", "hisparse"):
        found = mode_pools(GLM, H200, hisparse, mode).sizes
        assert found.kv_bytes == pytest.approx(132_680 * 209_920, rel=1e-6)


def test_the_range_spans_a_tenth_of_the_reserve():
    low, high = overhead_variants(GLM, H200, FP8, "resident")
    assert low.sizes.kv_bytes == pytest.approx(
        mode_pools(GLM, H200, FP8, "resident").sizes.kv_bytes - 1.5 * GIB
    )
    given = FP8.model_copy(update={"available_kv_gib": 25.94})
    low, high = overhead_variants(GLM, H200, given, "resident")
    assert low.sizes == high.sizes


def test_counts_are_totals_over_replicas():
    two = answer(GLM, H200, FP8.model_copy(update={"dp": 2}), [131_072])
    assert two.nodes == 2
    for found in two.rows[0].modes.values():
        assert found.requests == 2 * found.per_dp


def test_users_ask_back_for_length_and_memory():
    found = answer(GLM, H200, FP8, [131_072], users=20)
    longest = found.longest_tokens["hisparse"]
    pools = found.pools["hisparse"]
    assert pools.count(longest).requests >= 20 > pools.count(longest + 64).requests
    assert found.rows[0].users_host_gib_per_dp == -(-(20 * 2048 + 1) * 3_276_800 // GIB)
    assert longest_context(GLM, FP8, pools, 100_000) == 0


def test_a_context_beyond_the_model_is_refused():
    with pytest.raises(InputError) as error:
        answer(GLM, H200, FP8, [2_000_000])
    assert error.value.where == "--context"


def test_a_smaller_token_budget_is_recommended_where_it_frees_requests():
    wide = answer(GLM, H200, FP8.model_copy(update={"max_num_batched_tokens": 32_768}), [2**20]).rows[0]
    assert wide.batched_tokens == (8192, 7)
    assert wide.modes["hisparse"].requests == 6
    assert answer(GLM, H200, FP8, [2**20]).rows[0].batched_tokens == (8192, 7)


def test_what_one_unit_more_gives_is_what_it_then_gives():
    row = answer(GLM, H200, FP8, [8192]).rows[0]
    gib = next(g for g in row.gains if "HBM" in g.change)
    kv = mode_pools(GLM, H200, FP8, "hisparse").sizes.kv_bytes / GIB
    assert gib.requests == count("hisparse", 8192, FP8.model_copy(update={"available_kv_gib": kv + 1}))
    assert gib.gain == pytest.approx(gib.per_unit, abs=1)
    host = next(g for g in row.gains if "host" in g.change)
    assert host.gain == 0 == host.per_unit
    poor = answer(GLM, H200, FP8.model_copy(update={"host_pool_gib": 64.0}), [2**20]).rows[0]
    assert next(g for g in poor.gains if "host" in g.change).gain == 1


modes = st.sampled_from(["resident", "offload", "hisparse"])
lengths = st.integers(min_value=1, max_value=2**20)
engines = st.builds(
    lambda tp, dp, mtp, budget, host, kv: EngineSpec(
        kv_cache_dtype="fp8",
        tp=tp,
        dp=dp,
        mtp=mtp,
        max_num_batched_tokens=budget,
        host_pool_gib=host,
        available_kv_gib=kv,
    ),
    st.sampled_from([4, 8]),
    st.sampled_from([1, 2]),
    st.sampled_from([0, 1, 3]),
    st.sampled_from([2048, 8192, 32_768]),
    st.floats(min_value=1, max_value=800),
    st.floats(min_value=0.5, max_value=120),
)


@settings(max_examples=80, deadline=None)
@given(engine=engines, mode=modes, tokens=lengths, more=st.floats(min_value=0, max_value=20))
def test_more_memory_never_means_fewer_requests(engine, mode, tokens, more):
    now = count(mode, tokens, engine)
    assert now >= 0
    hbm = engine.model_copy(update={"available_kv_gib": engine.available_kv_gib + more})
    assert count(mode, tokens, hbm) >= now
    host = engine.model_copy(update={"host_pool_gib": engine.host_pool_gib + more})
    assert count(mode, tokens, host) >= now


@settings(max_examples=80, deadline=None)
@given(engine=engines, mode=modes, tokens=lengths, shorter=st.floats(min_value=0, max_value=1))
def test_a_shorter_context_never_means_fewer_requests(engine, mode, tokens, shorter):
    assert count(mode, max(1, int(tokens * shorter)), engine) >= count(mode, tokens, engine)


@settings(max_examples=60, deadline=None)
@given(engine=engines, mode=modes, tokens=lengths)
def test_what_is_counted_fits_the_pools_that_are_sized(engine, mode, tokens):
    pools = mode_pools(GLM, H200, engine, mode)
    found = pools.count(tokens)
    if not found.requests:
        return
    sizes = size_pools(GLM, H200, engine.model_copy(update={"mode": mode}))
    assert pools.sizes == sizes
    if found.stays_resident or found.limit == "max_num_seqs":
        return
    used = (found.requests - 1) * pools.blocks_per_request(tokens) + pools.admission(tokens)
    assert used <= sizes.num_gpu_blocks - 1
    pages = -(-tokens // sizes.block_size)
    if mode == "hisparse":
        assert found.requests * pages <= sizes.num_host_blocks - 1
