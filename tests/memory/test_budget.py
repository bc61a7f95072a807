"""Pool sizes against published numbers and real start-up logs, and the laws they obey.

Logs (what vLLM printed): Kimi-K2-Thinking on 8 x H200 (vllm-project/recipes, moonshotai/Kimi-K2-Think.md),
Qwen2-7B on 2 x A100 (dennislee22/vLLM-benchmarking), Qwen3-30B-A3B on H100 (kolyangg/mlops-assignment),
Qwen3-14B (LMCache issue #1739), Kimi-K2.5 on 8 x H100 (InferenceX issue #1587), Llama-3.1-8B under V0
(vllm issue #10517), GLM-5.3-FP8 on 8 x H200 (vllm-project/recipes PR #893).
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_models import GIB, dsa, glm_5_3, gqa, kimi_k2, leaders, node

from hisparse_sim.errors import Infeasible, InputError, UnsupportedModel
from hisparse_sim.memory.budget import derived_kv_bytes, size_pools, weights_per_gpu
from hisparse_sim.memory.host import host_pool_copies, place
from hisparse_sim.memory.reserve import activation_bytes, reserve_bytes
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.model import WeightsSpec

H200 = node()
PUBLISHED = EngineSpec(
    mode="hisparse", kv_cache_dtype="fp8", host_pool_gib=384, max_num_batched_tokens=32_768
)


def test_glm_5_3_leaves_what_vllm_measured_on_h200():
    # vLLM 0.28 printed 25.94 GiB; the page's 141e9 bytes would leave 17.8.
    assert derived_kv_bytes(glm_5_3(), H200, PUBLISHED) / GIB == pytest.approx(25.94, rel=0.015)
    page = node(memory_bytes=141 * 10**9)
    assert derived_kv_bytes(glm_5_3(), page, PUBLISHED) / GIB == pytest.approx(17.8, abs=0.05)


def test_weights_follow_tp_dp_and_expert_parallelism():
    def gib(**engine: object) -> float:
        return round(weights_per_gpu(glm_5_3(), H200, EngineSpec(**engine)) / GIB, 2)

    shared, routed = 19.556, 684.167
    assert gib(tp=8) == gib(tp=8, ep=False) == round(shared / 8 + routed / 8, 2) == 87.97
    assert gib(tp=8, dp=2) == round(shared / 8 + routed / 16, 2)
    assert gib(tp=8, dp=2, ep=False) == 87.97
    assert gib(tp=1, dp=8) == round(shared + routed / 8, 2)


def test_the_published_hisparse_pool_on_h200():
    sizes = size_pools(glm_5_3(), H200, PUBLISHED)
    assert sizes.block_bytes == 209_920
    assert sizes.host_block_bytes == 3_276_800
    assert sizes.num_host_blocks == 384 * GIB // 3_276_800
    assert sizes.admission_window_pages == 1024
    assert (
        size_pools(
            glm_5_3(), H200, PUBLISHED.model_copy(update={"async_scheduling": False})
        ).admission_window_pages
        == 512
    )
    assert sizes.transition_watermark_blocks == sizes.num_gpu_blocks // 10


def test_the_worked_example_of_logged_and_steady_concurrency():
    # GLM-like (offset 2), 36 GiB, 1M tokens, 8192 a step: 9.02 logged, 10.21 in the steady state.
    model = dsa(78, leaders(78, 4, 2))
    engine = EngineSpec(
        mode="hisparse",
        kv_cache_dtype="fp8",
        available_kv_gib=36,
        async_scheduling=False,
        max_model_len=2**20,
    )
    sizes = size_pools(model, node(dram_gib=8192), engine)
    assert sizes.num_gpu_blocks == 184_140
    assert sizes.max_concurrency == pytest.approx(184_140 / 20_416)
    assert sizes.steady_concurrency == pytest.approx(1 + (184_140 - 20_416) / 17_770)


def test_classic_offload_divides_its_total_by_the_tp_ranks():
    engine = EngineSpec(mode="offload", kv_cache_dtype="fp8", kv_offload_gib=512)
    sizes = size_pools(glm_5_3(), H200, engine)
    chunk = -(-3_452_160 // 4096) * 4096
    assert sizes.num_cpu_chunks == 64 * GIB // chunk
    assert sizes.num_cpu_chunks * 64 / 86_110 == pytest.approx(14.8, abs=0.1)  # 13-turn conversations


@pytest.mark.parametrize(
    ("model", "engine", "tokens", "per_request", "concurrency"),
    [
        (kimi_k2(), {"available_kv_gib": 46.80, "kv_cache_dtype": "bf16"}, 715_072, 262_144, None),
        (gqa(28, 4), {"tp": 2, "available_kv_gib": 12.02}, 450_192, 16_384, 27.48),
        (gqa(28, 4), {"tp": 2, "available_kv_gib": 31.83}, 1_192_160, 16_384, 72.76),
        (gqa(28, 4), {"tp": 2, "available_kv_gib": 11.03}, 412_944, 16_384, 25.20),
        (gqa(48, 4), {"tp": 1, "available_kv_gib": 8.68}, 94_784, 6_144, 15.43),
        (gqa(40, 8), {"tp": 1, "available_kv_gib": 6.51}, 42_656, 32_768, 1.30),
        (gqa(32, 8), {"tp": 1, "available_kv_gib": 3.81}, 31_232, 20_000, 1.56),
    ],
    ids=["kimi-k2", "qwen2-0.25", "qwen2-0.50", "qwen2-2nodes", "qwen3-30b", "qwen3-14b", "llama-v0"],
)
def test_printed_tokens_and_concurrency_are_reproduced(model, engine, tokens, per_request, concurrency):
    sizes = size_pools(model, H200, EngineSpec(max_model_len=per_request, **engine))
    assert sizes.logged_tokens == pytest.approx(tokens, rel=0.005)
    if concurrency:
        assert sizes.max_concurrency == pytest.approx(concurrency, rel=0.005)


def test_kimi_k2_5_is_refused_with_the_length_that_vllm_estimated():
    engine = EngineSpec(kv_cache_dtype="fp8", available_kv_gib=0.9, max_model_len=262_144)
    with pytest.raises(Infeasible) as error:
        size_pools(kimi_k2(), H200, engine)
    assert "(8.58 GiB)" in error.value.message
    assert "27,392" in error.value.message
    auto = size_pools(kimi_k2(), H200, engine.model_copy(update={"max_model_len": "auto"}))
    assert auto.max_model_len == 27_392


def test_a_v0_start_that_was_refused_is_refused():
    # 1,478 blocks hold 23,648 tokens, of 29,000 asked.
    engine = EngineSpec(tp=1, num_gpu_blocks=1478, max_model_len=29_000)
    with pytest.raises(Infeasible, match=r"1,813 GPU blocks.*1,477 free"):
        size_pools(gqa(32, 8), H200, engine)


def test_each_override_fixes_the_pool_and_they_agree():
    blocks = EngineSpec(kv_cache_dtype="fp8", num_gpu_blocks=8000)
    tokens = EngineSpec(kv_cache_dtype="fp8", kv_tokens=8000 * 64)
    gib = EngineSpec(kv_cache_dtype="fp8", available_kv_gib=8000 * 3_452_160 / GIB)
    sizes = [size_pools(glm_5_3(), H200, e) for e in (blocks, tokens, gib)]
    assert {s.num_gpu_blocks for s in sizes} == {8000}
    hisparse = PUBLISHED.model_copy(update={"num_gpu_blocks": 90_000})
    assert size_pools(glm_5_3(), H200, hisparse).num_gpu_blocks == 90_000


def test_a_private_pool_takes_a_rank_each_and_auto_shrinks_accordingly():
    auto = PUBLISHED.model_copy(update={"host_pool_gib": "auto"})
    shared = size_pools(glm_5_3(), H200, auto)
    private = size_pools(glm_5_3(), H200, auto.model_copy(update={"shared_host_pool": False}))
    assert shared.host_pool_bytes == int(0.95 * 2048 * GIB)
    assert private.host_pool_bytes == shared.host_pool_bytes // 8
    assert private.host_block_bytes == 3_274_752  # not rounded to OS pages
    indexer = size_pools(glm_5_3(), H200, auto.model_copy(update={"indexer_offload_gib": 128.0}))
    assert indexer.host_pool_bytes == pytest.approx(shared.host_pool_bytes - 128 * GIB, abs=2)
    assert indexer.num_indexer_chunks == 16 * GIB // (-(-209_920 // 4096) * 4096)


def test_replicas_share_the_nodes_memory():
    assert host_pool_copies(place(H200, EngineSpec(tp=4, dp=2)), EngineSpec()) == 2
    assert host_pool_copies(place(H200, EngineSpec(tp=1, dp=8)), EngineSpec()) == 8
    two_nodes = place(H200, EngineSpec(tp=16))
    assert (two_nodes.nodes, two_nodes.replica_on_one_node) == (2, False)
    assert host_pool_copies(two_nodes, EngineSpec()) == 8
    assert place(H200, EngineSpec(tp=8, dp=4)).nodes == 4


@pytest.mark.parametrize(
    ("engine", "error", "field"),
    [
        (PUBLISHED.model_copy(update={"host_pool_gib": 2000.0}), Infeasible, "engine.host_pool_gib"),
        (
            PUBLISHED.model_copy(update={"host_pool_gib": 384.0, "shared_host_pool": False}),
            Infeasible,
            "engine.host_pool_gib",
        ),
        (
            EngineSpec(mode="offload", kv_offload_gib=3000, kv_cache_dtype="fp8"),
            Infeasible,
            "engine.kv_offload_gib",
        ),
        (EngineSpec(max_model_len=2_000_000, kv_cache_dtype="fp8"), InputError, "engine.max_model_len"),
        (EngineSpec(tp=1, ep=False), Infeasible, "model"),
        (EngineSpec(tp=32, dp=3, kv_cache_dtype="fp8"), None, None),
        (EngineSpec(tp=64, dp=1, kv_cache_dtype="fp8"), None, None),
    ],
)
def test_what_cannot_start_is_refused_by_field(engine, error, field):
    if error is None:
        assert size_pools(glm_5_3(), H200, engine).num_gpu_blocks > 0
        return
    with pytest.raises(error) as caught:
        size_pools(glm_5_3(), H200, engine)
    assert caught.value.where == field


def test_the_refusal_of_a_model_names_bytes_needed_and_available():
    with pytest.raises(Infeasible, match=r"glm-5\.3 does not fit on 8xtest: .* bytes .* available"):
        size_pools(glm_5_3(), H200, EngineSpec(tp=4))


def test_ranks_that_do_not_fill_nodes_are_refused():
    for engine in (EngineSpec(tp=12), EngineSpec(tp=3, dp=4)):
        with pytest.raises(InputError) as caught:
            place(H200, engine)
        assert caught.value.where == "engine.tp"


def test_hisparse_is_refused_without_an_indexer_and_off_nvidia():
    with pytest.raises(UnsupportedModel):
        size_pools(kimi_k2(), H200, EngineSpec(mode="hisparse", available_kv_gib=10))
    with pytest.raises(Infeasible, match="NVIDIA"):
        size_pools(glm_5_3(), node(vendor="amd", generation="cdna4"), PUBLISHED)


def test_auto_max_model_len_is_the_largest_that_starts():
    engine = PUBLISHED.model_copy(update={"available_kv_gib": 5.0})
    longest = size_pools(glm_5_3(), H200, engine).max_model_len
    assert 64 < longest < 2**20
    size_pools(glm_5_3(), H200, engine.model_copy(update={"max_model_len": longest}))
    with pytest.raises(Infeasible):
        size_pools(glm_5_3(), H200, engine.model_copy(update={"max_model_len": longest + 1}))
    with pytest.raises(Infeasible):
        size_pools(glm_5_3(), H200, engine.model_copy(update={"available_kv_gib": 0.01}))


def test_the_host_pool_can_be_what_limits_the_length():
    sizes = size_pools(glm_5_3(), H200, PUBLISHED.model_copy(update={"host_pool_gib": 10.0}))
    assert sizes.max_model_len == (sizes.num_host_blocks - 2) * 64


def test_vllm_030_states_less_and_starts_with_more():
    asked = PUBLISHED.model_copy(update={"max_model_len": 2**20})
    new = size_pools(glm_5_3(), H200, asked)
    old = size_pools(glm_5_3(), H200, asked.model_copy(update={"version": "0.30"}))
    # 16,384 indexer blocks, a hot region, and in each group resident pages: up to the window, or all.
    hot, groups = new.hot_blocks, new.resident_groups
    assert new.max_concurrency == new.num_gpu_blocks / (2**14 + groups * new.admission_window_pages + hot)
    assert old.max_concurrency == new.num_gpu_blocks / (2**14 + groups * 2**14 + hot)
    assert (new.steady_concurrency > new.max_concurrency, old.steady_concurrency) == (True, None)
    # A host pool that does not hold one request is refused by 0.33 alone.
    small = asked.model_copy(update={"host_pool_gib": 16.0})
    with pytest.raises(Infeasible):
        size_pools(glm_5_3(), H200, small)
    assert size_pools(glm_5_3(), H200, small.model_copy(update={"version": "0.30"})).num_host_blocks < 2**14


def test_activations_are_those_of_two_profiled_runs():
    llama = gqa(32, 8)
    for tokens, gib in ((20_000, 17.06 - 14.99), (29_000, 17.98 - 14.99)):
        found = activation_bytes(llama, EngineSpec(max_num_batched_tokens=tokens), 1)
        assert found / GIB == pytest.approx(gib, rel=0.01)


def test_the_reserve_of_small_models_is_near_the_logs_and_not_below():
    # available = utilisation x total - weights - reserve; graphs come on top in these versions.
    a100 = 79.25 * 0.50 - 7.1217 - 31.83 + 0.65
    qwen2 = gqa(28, 4, hidden_size=3584, intermediate_size=18_944, vocab_size=152_064, num_heads=28)
    found = reserve_bytes(qwen2, EngineSpec(max_num_batched_tokens=2048), 2) / GIB
    assert a100 <= found <= a100 + 1.2
    h100 = 71.26 - 56.9342 - 8.68 + 0.69
    qwen3 = gqa(
        48,
        4,
        hidden_size=2048,
        intermediate_size=6144,
        vocab_size=151_936,
        dense_layers=0,
        num_experts=128,
        experts_per_token=8,
        moe_intermediate_size=768,
    )
    found = reserve_bytes(qwen3, EngineSpec(max_num_seqs=1024), 1) / GIB
    assert h100 <= found <= h100 + 0.3
    assert reserve_bytes(qwen3, EngineSpec(reserve_gib=2.5), 1) == int(2.5 * GIB)


lengths = st.integers(min_value=64, max_value=2**20)


@given(
    kv=st.floats(min_value=2, max_value=90),
    more=st.floats(min_value=0, max_value=50),
    host=st.floats(min_value=8, max_value=1800),
    length=lengths,
    mode=st.sampled_from(["resident", "offload", "hisparse"]),
)
def test_more_memory_never_means_less(kv, more, host, length, mode):
    def sizes(kv_gib: float, host_gib: float):
        engine = EngineSpec(
            mode=mode,
            kv_cache_dtype="fp8",
            available_kv_gib=kv_gib,
            host_pool_gib=host_gib,
            kv_offload_gib=host_gib,
        )
        return size_pools(glm_5_3(), H200, engine)

    try:
        small = sizes(kv, host)
    except Infeasible:
        return
    large = sizes(kv + more, host + more)
    for field in ("num_gpu_blocks", "num_host_blocks", "num_cpu_chunks", "max_model_len"):
        assert 0 <= getattr(small, field) <= getattr(large, field)


@given(
    weights=st.integers(min_value=0, max_value=2000 * GIB),
    tp=st.sampled_from([1, 2, 4, 8]),
    dp=st.sampled_from([1, 2, 4, 8]),
)
def test_a_pool_is_positive_or_refused(weights, tp, dp):
    model = dsa(78, leaders(78, 4, 3), weights=WeightsSpec(shared_bytes=weights, dtype="fp8"))
    try:
        sizes = size_pools(model, H200, EngineSpec(kv_cache_dtype="fp8", tp=tp, dp=dp))
    except Infeasible:
        return
    assert sizes.num_gpu_blocks > 0
    total = sizes.kv_bytes + sizes.weights_bytes + sizes.reserve_bytes
    assert total <= H200.gpu.memory_bytes * 0.92
