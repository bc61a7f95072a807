"""Bytes a block, against published constants.

Sources: vLLM's HiSparse calculator page (fp8 and bf16 constants of GLM-5.3), vLLM's own KV-cache
configuration of GLM-like and DeepSeek-V3.2-like models (0.33.0), arithmetic for the MTP layer.
"""

from __future__ import annotations

import pytest
from memory_models import dsa, glm_5_3, gqa, kimi_k2, leaders, node

from hisparse_sim.errors import InputError, UnsupportedModel
from hisparse_sim.memory.layout import HiSparseLayout, KVLayout, kv_layout, require_hisparse
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.model import ModelSpec

HOPPER = node()
BLACKWELL = node(name="B200", generation="blackwell")


def layout(model: ModelSpec, dtype: str = "fp8", machine=HOPPER, **engine) -> KVLayout:
    return kv_layout(model, EngineSpec(kv_cache_dtype=dtype, **engine), machine)


def sparse(model: ModelSpec, dtype: str = "fp8", machine=HOPPER, **engine) -> HiSparseLayout:
    return require_hisparse(layout(model, dtype, machine, **engine), model)


@pytest.mark.parametrize(
    ("dtype", "machine", "base", "hisparse", "host"),
    [
        ("fp8", BLACKWELL, 3_052_800, 184_320, 2_875_392),
        ("fp8", HOPPER, 3_452_160, 209_920, 3_274_752),
        ("fp8_ds_mla", BLACKWELL, 3_452_160, 209_920, 3_274_752),
        ("bf16", HOPPER, 5_928_192, 294_912, 5_750_784),
    ],
)
def test_glm_5_3_blocks_are_the_published_ones(dtype, machine, base, hisparse, host):
    model = glm_5_3()
    assert layout(model, dtype, machine).block_bytes == base
    found = sparse(model, dtype, machine)
    assert (found.block_bytes, found.host_block_bytes) == (hisparse, host)
    assert (found.resident_groups, found.hot_blocks_per_group, found.hot_blocks) == (20, 64, 1280)


def test_an_index_group_is_its_leader_and_the_layers_that_follow():
    assert leaders(78, 4, 3) == (0, 1, *range(2, 78, 4))
    groups = sparse(glm_5_3()).groups
    assert groups[:3] == ((0, 1), (2, 3, 4, 5), (6, 7, 8, 9))
    assert groups[-1] == (74, 75, 76, 77)


def test_with_offset_2_glm_has_21_sets_and_a_request_1344_hot_blocks():
    found = sparse(dsa(78, leaders(78, 4, 2)))
    assert found.groups[0] == (0,)
    assert found.groups[1] == (1, 2, 3, 4)
    assert found.groups[-1] == (77,)
    assert (found.resident_groups, found.hot_blocks, found.block_bytes) == (21, 1344, 209_920)
    assert found.indexer_page_bytes == 177_408


@pytest.mark.parametrize(
    ("layers", "offset", "freq", "sets"),
    [(8, 2, 4, ((0,), (1, 2, 3, 4), (5, 6, 7))), (12, 1, 1, None)],
)
def test_small_models_are_packed_as_vllm_packs_them(layers, offset, freq, sets):
    found = sparse(dsa(layers, leaders(layers, freq, offset), index_topk=128))
    if sets:
        assert found.groups == sets
    else:
        assert [len(g) for g in found.groups] == [2] * 6


def test_deepseek_v3_2_packs_12_layers_a_set():
    found = sparse(dsa(61, tuple(range(61)), num_heads=128, num_kv_heads=128))
    assert [len(g) for g in found.groups] == [12] * 5 + [1]
    assert (found.indexer_page_bytes, found.block_bytes) == (515_328, 545_792)


def test_glm_5_without_index_sharing_has_5_sets():
    found = sparse(dsa(78, tuple(range(78))), machine=BLACKWELL)
    assert (found.resident_groups, found.block_bytes) == (5, 663_552)


def test_the_mtp_layer_adds_a_layer_and_an_indexer():
    found = layout(glm_5_3(), "fp8", BLACKWELL, mtp=3)
    assert (found.num_layers, found.num_indexers, found.block_bytes) == (79, 22, 3_098_112)
    hisparse = sparse(glm_5_3(), "fp8", BLACKWELL, mtp=3)
    assert (hisparse.host_block_bytes, hisparse.block_bytes) == (2_912_256, 221_184)
    assert (hisparse.hot_rows, hisparse.hot_blocks_per_group) == (10_240, 160)
    # 656-byte rows: 79 x 656 + 22 x 132 bytes a token.
    assert layout(glm_5_3(), "fp8", HOPPER, mtp=1).token_bytes == 54_728


def test_fp8_means_656_bytes_for_sparse_mla_on_hopper_and_576_elsewhere():
    rows = {
        (m.attention, n.gpu.generation): layout(m, "fp8", n).row_bytes
        for m in (glm_5_3(), kimi_k2())
        for n in (
            HOPPER,
            BLACKWELL,
            node(generation="blackwell-sm120"),
            node(vendor="amd", generation="cdna4"),
        )
    }
    assert rows == {
        ("dsa", "hopper"): 656,
        ("dsa", "blackwell"): 576,
        ("dsa", "blackwell-sm120"): 656,
        ("dsa", "cdna4"): 576,
        ("mla", "hopper"): 576,
        ("mla", "blackwell"): 576,
        ("mla", "blackwell-sm120"): 576,
        ("mla", "cdna4"): 576,
    }


def test_a_checkpoint_that_brings_fp8_kv_makes_auto_mean_fp8():
    plain, quantised = gqa(32, 8), gqa(32, 8, kv_dtype_of_checkpoint="fp8")
    assert layout(plain, "auto", tp=1).row_bytes == 4096
    assert layout(quantised, "auto", tp=1).row_bytes == 2048


def test_the_indexer_key_is_132_bytes_whatever_the_kv_dtype():
    assert {layout(glm_5_3(), d).indexer_row_bytes for d in ("bf16", "fp8")} == {132}


def test_kv_heads_are_sharded_over_tp_and_never_below_one():
    assert [layout(gqa(28, 4), "bf16", tp=t).row_bytes for t in (1, 2, 4, 8)] == [2048, 1024, 512, 512]


def test_blocks_hold_64_tokens_of_mla_and_16_of_gqa_unless_told_otherwise():
    assert layout(glm_5_3()).block_size == layout(kimi_k2()).block_size == 64
    assert layout(gqa(28, 4), "bf16").block_size == 16
    assert layout(gqa(28, 4), "bf16", block_size=32).block_size == 32


@pytest.mark.parametrize(
    ("model", "engine", "field"),
    [
        (kimi_k2(), {"kv_cache_dtype": "fp8_ds_mla"}, "engine.kv_cache_dtype"),
        (glm_5_3(), {"hot_rows": 1024}, "engine.hot_rows"),
        (glm_5_3(), {"hot_rows": 40_000}, "engine.hot_rows"),
        (glm_5_3(), {"hot_rows": 4096, "mtp": 3}, "engine.hot_rows"),
        (kimi_k2(), {"mtp": 1}, "engine.mtp"),
        (gqa(28, 4), {"tp": 3}, "engine.tp"),
    ],
)
def test_settings_that_vllm_refuses_are_refused_by_field(model, engine, field):
    with pytest.raises(InputError) as error:
        kv_layout(model, EngineSpec(**engine), HOPPER)
    assert error.value.where == field


def test_hisparse_needs_an_indexer():
    with pytest.raises(UnsupportedModel, match="index_topk"):
        require_hisparse(layout(kimi_k2()), kimi_k2())
