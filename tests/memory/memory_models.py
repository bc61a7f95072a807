"""Models and a machine for the tests of layout and budget, written out so that they stand alone."""

from __future__ import annotations

from typing import Any

from hisparse_sim.scenario.model import ModelSpec, WeightsSpec
from hisparse_sim.scenario.node import GpuSpec, HostLinkSpec, NodeSpec

GIB = 2**30

H200 = GpuSpec(
    name="H200",
    vendor="nvidia",
    generation="hopper",
    memory_bytes=143_771 * 2**20,
    memory_grade="driver",
    marketing_bytes=141 * 10**9,
    hbm_bytes_per_s=4.8e12,
    bf16_flops=0.99e15,
    fp8_flops=1.98e15,
)
LINK = HostLinkSpec(
    kind="pcie5",
    copy_h2d_bytes_per_s=55e9,
    copy_d2h_bytes_per_s=55e9,
    gather_bytes_per_s=45e9,
    gather_per_request_bytes_per_s=20e9,
    both_ways_bytes_per_s=83e9,
)


def node(gpus: int = 8, *, dram_gib: float = 2048, **gpu: Any) -> NodeSpec:
    """A machine of H200-like GPUs; keywords replace fields of the GPU."""
    return NodeSpec(
        name=f"{gpus}xtest",
        gpus=gpus,
        gpu=H200.model_copy(update=gpu),
        host_link=LINK,
        nvlink_bytes_per_s=450e9,
        dram_bytes=int(dram_gib * GIB),
        dram_bytes_per_s=6e11,
        hisparse=gpu.get("vendor") != "amd",
    )


def leaders(num_layers: int, freq: int, offset: int) -> tuple[int, ...]:
    """Layers with an indexer: ``max(i - offset + 1, 0) % freq == 0``."""
    return tuple(i for i in range(num_layers) if max(i - offset + 1, 0) % freq == 0)


def dsa(num_layers: int, indexer_layers: tuple[int, ...], **fields: Any) -> ModelSpec:
    """A sparse-MLA model of GLM's row sizes; without weights unless given."""
    given = {
        "name": "dsa-test",
        "architecture": "GlmMoeDsaForCausalLM",
        "attention": "dsa",
        "num_layers": num_layers,
        "hidden_size": 6144,
        "num_heads": 64,
        "num_kv_heads": 64,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "index_heads": 32,
        "index_head_dim": 128,
        "index_topk": 2048,
        "indexer_layers": indexer_layers,
        "intermediate_size": 12288,
        "vocab_size": 154_880,
        "max_context_tokens": 1_048_576,
        "mtp_layers": 1,
        "weights": WeightsSpec(shared_bytes=0, dtype="fp8"),
    }
    return ModelSpec.model_validate(given | fields)


def glm_5_3() -> ModelSpec:
    """GLM-5.3-FP8: 78 layers, 21 indexers, the calculator page's weights."""
    weights = WeightsSpec(shared_bytes=int(19.556 * GIB), routed_bytes=int(684.167 * GIB), dtype="fp8")
    return dsa(78, leaders(78, 4, 3), name="glm-5.3", weights=weights)


def gqa(num_layers: int, kv_heads: int, **fields: Any) -> ModelSpec:
    """A dense model with grouped-query attention and heads of 128."""
    given = {
        "name": "gqa-test",
        "architecture": "Qwen2ForCausalLM",
        "attention": "gqa",
        "num_layers": num_layers,
        "dense_layers": num_layers,
        "hidden_size": 4096,
        "num_heads": 32,
        "num_kv_heads": kv_heads,
        "head_dim": 128,
        "intermediate_size": 14_336,
        "vocab_size": 128_256,
        "max_context_tokens": 131_072,
        "weights": WeightsSpec(shared_bytes=15 * GIB, dtype="bf16"),
    }
    return ModelSpec.model_validate(given | fields)


def kimi_k2() -> ModelSpec:
    """Kimi-K2 family: 61 layers of dense MLA, no indexer; weights left out."""
    return ModelSpec(
        name="kimi-k2",
        architecture="DeepseekV3ForCausalLM",
        attention="mla",
        num_layers=61,
        dense_layers=1,
        hidden_size=7168,
        num_heads=64,
        num_kv_heads=64,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        num_experts=384,
        experts_per_token=8,
        shared_experts=1,
        moe_intermediate_size=2048,
        intermediate_size=18_432,
        vocab_size=163_840,
        max_context_tokens=262_144,
        weights=WeightsSpec(shared_bytes=0, dtype="int4"),
    )
