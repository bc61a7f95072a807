"""A pool that holds nothing, or cannot be: the refusal names the field that made it so."""

from __future__ import annotations

import pytest
from memory_models import dsa, glm_5_3, leaders, node

from hisparse_sim.errors import Infeasible, InputError, PoolTooSmall
from hisparse_sim.memory.budget import size_pools
from hisparse_sim.scenario.check import check_engine
from hisparse_sim.scenario.engine import EngineSpec

H200 = node()


def engine(**fields: object) -> EngineSpec:
    return EngineSpec.model_validate({"mode": "hisparse", "kv_cache_dtype": "fp8", **fields})


@pytest.mark.parametrize("mode", ["resident", "offload", "hisparse"])
def test_a_block_larger_than_the_pool_is_named_as_that(mode):
    with pytest.raises(
        PoolTooSmall, match=r"one KV block of 1,000,000 tokens .* larger than the pool"
    ) as caught:
        size_pools(glm_5_3(), H200, engine(mode=mode, block_size=1_000_000))
    assert caught.value.where == "engine.block_size"


def test_absurdly_many_layers_are_the_models_fault():
    with pytest.raises(PoolTooSmall) as caught:
        size_pools(dsa(10_000, leaders(10_000, 4, 3)), H200, engine(gpu_memory_utilization=0.2))
    assert caught.value.where == "model"
    assert "does not fit" not in caught.value.message


@pytest.mark.parametrize(
    "field", [{"available_kv_gib": 141.0}, {"kv_tokens": 10_000_000}, {"num_gpu_blocks": 1_000_000}]
)
def test_more_kv_than_the_gpu_has_memory_is_infeasible(field):
    with pytest.raises(Infeasible, match=r"of KV a GPU; H200 has 140\.4 GiB in all") as caught:
        size_pools(glm_5_3(), H200, engine(**field))
    assert caught.value.where == f"engine.{next(iter(field))}"


def test_more_kv_than_derived_is_believed():
    assert size_pools(glm_5_3(), H200, engine(available_kv_gib=100.0)).kv_bytes == 100 * 2**30


@pytest.mark.parametrize(
    ("fields", "blamed"),
    [
        ({"num_gpu_blocks": 3}, "num_gpu_blocks"),
        ({"num_gpu_blocks": 3, "max_model_len": 8192}, "num_gpu_blocks"),
        ({"num_gpu_blocks": 1, "version": "0.30"}, "num_gpu_blocks"),
        ({"available_kv_gib": 0.001, "mode": "resident"}, "available_kv_gib"),
        ({"kv_tokens": 10, "mode": "resident"}, "kv_tokens"),
        ({"reserve_gib": 41.2}, "reserve_gib"),
        ({"reserve_gib": 100.0}, "reserve_gib"),
        ({"host_pool_gib": 0.001}, "host_pool_gib"),
        ({"host_pool_gib": "auto", "indexer_offload_gib": 1945.599}, "indexer_offload_gib"),
    ],
)
def test_a_pool_without_room_for_one_request_blames_the_field_that_sized_it(fields, blamed):
    with pytest.raises(PoolTooSmall) as caught:
        size_pools(glm_5_3(), H200, engine(**fields))
    assert caught.value.where == f"engine.{blamed}"


@pytest.mark.parametrize("pool", ["auto", 10.0, 200.0])
def test_an_indexer_offload_that_leaves_no_host_pool_is_named(pool):
    gib = 1900.0 if pool == 200.0 else 2000.0
    with pytest.raises(Infeasible) as caught:
        size_pools(glm_5_3(), H200, engine(host_pool_gib=pool, indexer_offload_gib=gib))
    assert caught.value.where == "engine.indexer_offload_gib"


def test_too_many_draft_tokens_are_no_fault_of_the_hot_buffer():
    with pytest.raises(InputError, match="at most 14 draft tokens") as caught:
        size_pools(glm_5_3(), H200, engine(mtp=100))
    assert caught.value.where == "engine.mtp"
    size_pools(glm_5_3(), H200, engine(mtp=14))
    size_pools(glm_5_3(), H200, engine(mtp=15, hot_rows=32_768))


def test_of_two_settings_that_disagree_the_one_that_was_changed_is_named():
    for fields, blamed in (
        ({"max_num_seqs": 10_000_000}, "max_num_seqs"),
        ({"max_num_batched_tokens": 1}, "max_num_batched_tokens"),
    ):
        with pytest.raises(InputError) as caught:
            check_engine(glm_5_3(), H200, engine(**fields))
        assert caught.value.where == f"engine.{blamed}"
