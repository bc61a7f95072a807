"""SGLang's pools against what its users' logs and reports print."""

from __future__ import annotations

import pytest

from hisparse_sim.errors import Infeasible, InputError, UnsupportedModel
from hisparse_sim.memory.budget import PoolSizes, size_pools
from hisparse_sim.memory.layout import kv_layout
from hisparse_sim.memory.sglang_pools import cell_bytes, metadata_bytes, static_fraction
from hisparse_sim.scenario.catalogue import load_model, load_node
from hisparse_sim.scenario.check import check_engine
from hisparse_sim.scenario.engine import EngineSpec

GLM51, GLM52 = load_model("glm-5.1"), load_model("glm-5.2")
H200, RTX = load_node("8xh200"), load_node("8xrtxpro6000")


def sglang(**fields: object) -> EngineSpec:
    return EngineSpec(kind="sglang", **{"mode": "hisparse", **fields})  # type: ignore[arg-type]


def pools(engine: EngineSpec) -> PoolSizes:
    return size_pools(GLM51, H200, engine)


REPORTED = sglang(
    device_buffer_size=4096, host_to_device_ratio=5, max_total_tokens=49_152, disaggregation_mode="decode"
)
"""sglang issue 23704, 2026-05-13: GLM-5.1-FP8, TP8, decode instance on 8 H200. The report names a ratio of 11
and a host pool of 49,152 x 5 = 245,760 tokens, prompts of 46,000 to 63,000; seven were in flight when host
allocation failed, after 38 that succeeded."""


def test_the_host_pool_of_issue_23704_has_245_760_tokens() -> None:
    found = pools(REPORTED)
    assert found.logged_tokens == 49_152
    assert (found.num_host_blocks - 1) * found.block_size == 245_760


def test_the_host_pool_of_issue_30401_takes_65_gb_a_rank() -> None:
    # GLM-5.2, 8 x H20, bf16 rows: 181,946 device tokens "even with ~65 GB of host offload", at ratio 4.
    engine = sglang(host_to_device_ratio=4, kv_cache_dtype="bf16")
    layout = kv_layout(GLM52, engine, H200)
    assert layout.num_layers * layout.row_bytes * 4 * 181_946 == pytest.approx(65e9, rel=0.01)


def test_464_768_tokens_of_glm_5_2_take_23_9_gib() -> None:
    # SemiAnalysisAI/InferenceX PR 2335: SGLang 0.5.15 with Triton MLA, whose fp8 rows are 576 bytes.
    engine = sglang(mode="resident")
    layout = kv_layout(GLM52, engine, RTX)
    cell = cell_bytes(GLM52, engine, layout) - layout.num_layers * (layout.row_bytes - 576)
    assert 464_768 * cell / 2**30 == pytest.approx(23.91, abs=0.01)


def test_static_fractions_are_those_of_server_args() -> None:
    h100 = load_node("8xh100").model_copy(update={"gpus": 8})
    in_mib = h100.gpu.model_copy(update={"memory_bytes": 81_920 * 2**20})
    node = h100.model_copy(update={"gpu": in_mib})
    # Published walk-throughs of server_args: TP 1, 512 + 12,288 + 512 + 128 MiB; TP 8, 14,848 MiB.
    assert static_fraction(node, sglang(tp=1)) == pytest.approx(0.836, abs=5e-4)
    assert static_fraction(node, sglang(tp=8)) == pytest.approx(0.819, abs=5e-4)
    assert static_fraction(node, sglang(mem_fraction_static=0.7)) == 0.7


def test_tables_of_a_request_take_5_9_mb_with_6144_rows_and_131072_tokens() -> None:
    engine = sglang(device_buffer_size=6144, context_length=131_072, max_running_requests=1)
    tables = metadata_bytes(GLM51, engine, kv_layout(GLM51, engine, H200), pools(engine))
    assert tables == pytest.approx(5.9e6, rel=0.01)


def test_rows_are_bf16_on_hopper_and_packed_fp8_after_it() -> None:
    assert kv_layout(GLM51, sglang(), H200).row_bytes == 1152
    assert kv_layout(GLM51, sglang(), load_node("8xb200")).row_bytes == 656
    assert kv_layout(GLM51, sglang(kv_cache_dtype="fp8"), H200).row_bytes == 656


def test_a_ratio_whose_pools_exceed_host_memory_is_refused_by_name() -> None:
    small = H200.model_copy(update={"dram_bytes": 256 * 2**30})
    with pytest.raises(Infeasible, match="10 of which stay free") as refused:
        size_pools(GLM51, small, sglang(host_to_device_ratio=10))
    assert refused.value.where == "engine.host_to_device_ratio"


def test_host_pools_that_fit_start() -> None:
    # sglang issue 38156: 8 x (164 + 33) GiB on a host of 1,772 GiB fit, and its guard let them start or not.
    pinned = 8 * pools(sglang(host_to_device_ratio=10)).host_pool_bytes
    exact = H200.model_copy(update={"dram_bytes": pinned + 10 * 2**30})
    assert size_pools(GLM51, exact, sglang(host_to_device_ratio=10)).host_pool_bytes * 8 == pinned


def test_a_larger_ratio_takes_device_tokens_for_the_indexer() -> None:
    assert pools(sglang(host_to_device_ratio=8)).logged_tokens < pools(sglang()).logged_tokens


def test_a_prompt_must_fit_the_device_pool_unless_it_was_prefilled_elsewhere() -> None:
    alone = sglang(host_to_device_ratio=5, mem_fraction_static=0.8)
    fed = alone.model_copy(update={"disaggregation_mode": "decode"})
    assert pools(alone).max_model_len == pools(alone).logged_tokens - 6
    assert pools(fed).max_model_len == GLM51.max_context_tokens


def test_the_other_engines_settings_are_refused_by_name() -> None:
    for engine, field in (
        (sglang(max_num_seqs=256), "max_num_seqs"),
        (EngineSpec(device_buffer_size=4096), "device_buffer_size"),
    ):
        with pytest.raises(InputError) as refused:
            check_engine(GLM51, H200, engine)
        assert refused.value.where == f"engine.{field}"


def test_a_written_engine_reads_again() -> None:
    for engine in (sglang(host_to_device_ratio=3), EngineSpec(mode="hisparse")):
        again = EngineSpec(**engine.model_dump(mode="json"))
        assert again == engine
        check_engine(GLM51, H200, again)


def test_models_without_an_indexer_are_refused() -> None:
    with pytest.raises(UnsupportedModel):
        size_pools(load_model("llama-3.1-8b"), H200, sglang(mode="resident"))
