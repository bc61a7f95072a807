"""Models that would be sized wrongly are refused by name and reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hf_examples import GLM, LLAMA, QWEN2, shared_config, write

from hisparse_sim.errors import UnsupportedModel
from hisparse_sim.scenario.hf_config import model_from_config


@pytest.mark.parametrize(
    ("file", "architecture", "reason"),
    [
        ("90_deepseek-v4-flash_config.json", "DeepseekV4ForCausalLM", "DeepSeek-V4"),
        ("92_kimi-k3_config.json", "KimiLinearForCausalLM", "linear attention"),
        ("94_qwen3.5-27b_config.json", "qwen3_5_text", "linear attention"),
        ("96_nvidia-nemotron-3-nano-30b-a3b-nvfp4_config.json", "NemotronHForCausalLM", "Mamba"),
        ("98_minimax-m3_config.json", "MiniMaxM3ForCausalLM", "block-sparse attention"),
    ],
)
def test_real_configs_are_refused_by_name(file: str, architecture: str, reason: str) -> None:
    path = shared_config("cases", file)
    with pytest.raises(UnsupportedModel) as raised:
        model_from_config(path)
    text = str(raised.value)
    assert file in text and architecture in text and reason in text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sliding_window": 4096}, "sliding-window attention"),
        ({"sliding_window": 4096, "use_sliding_window": True}, "sliding-window attention"),
        ({"layer_types": ["sliding_attention", "full_attention"] * 16}, "sliding-window attention"),
        ({"layer_types": ["full_attention", "linear_attention"] * 16}, "linear attention"),
        ({"layer_types": ["mamba"] * 32}, "Mamba"),
        ({"layer_types": ["strange"] * 32}, "layers of kind 'strange'"),
        ({"attention_chunk_size": 8192}, "chunked"),
        ({"num_kv_shared_layers": 10}, "shared across layers"),
        ({"use_cla": True, "cla_share_factor": 2}, "shared across layers"),
        ({"linear_num_key_heads": 16}, "gated delta net"),
        ({"mamba_d_state": 16}, "Mamba"),
        ({"attn_type_list": [0, 1]}, "lightning"),
        ({"sparse_attention_config": {"use_sparse_attention": True}}, "block-sparse"),
        ({"dual_chunk_attention_config": {"chunk_size": 262144}}, "dual-chunk"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"cross_attention_layers": [3, 8]}, "cross-attention"),
    ],
)
def test_a_giveaway_field_is_refused_and_named(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=reason) as raised:
        model_from_config(write(tmp_path, LLAMA | change))
    assert next(iter(change)) in str(raised.value)
    assert "LlamaForCausalLM" in str(raised.value)


def test_pooled_indexer_keys_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="pooled keys"):
        model_from_config(write(tmp_path, GLM | {"index_kpool": 4}))


@pytest.mark.parametrize(
    "change",
    [
        {"sliding_window": None},
        {"sliding_window": 131072, "use_sliding_window": False},
        {"sliding_window": 131072},  # as long as the longest context: it never cuts anything off
        {"layer_types": ["full_attention"] * 32},
        {"sparse_attention_config": {"use_sparse_attention": False}},
        {"num_kv_shared_layers": 0},
        {"attention_chunk_size": None},
    ],
)
def test_a_feature_that_is_switched_off_is_no_reason(tmp_path: Path, change: dict[str, Any]) -> None:
    assert model_from_config(write(tmp_path, LLAMA | change)).attention == "gqa"


@pytest.mark.parametrize(
    "config",
    [
        LLAMA | {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss"},
        LLAMA | {"architectures": ["Glm5NextForConditionalGeneration"]},
        {**{k: v for k, v in QWEN2.items() if k != "architectures"}, "model_type": "phi9"},
        {"architectures": ["NewForConditionalGeneration"], "text_config": {"hidden_size": 8}},
        {
            "architectures": ["NewForConditionalGeneration"],
            "text_config": {**LLAMA, "architectures": ["NewForCausalLM"]},
        },
    ],
)
def test_an_unknown_architecture_is_refused_by_its_name(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match="unknown architecture") as raised:
        model_from_config(write(tmp_path, config))
    text = str(raised.value)
    assert any(name in text for name in ("GptOss", "Glm5Next", "phi9", "NewForC"))


def test_a_text_model_without_a_name_is_not_guessed_from_its_wrapper(tmp_path: Path) -> None:
    config = {
        "architectures": ["MllamaForConditionalGeneration"],
        "text_config": {
            **{k: v for k, v in LLAMA.items() if k != "architectures"},
            "model_type": "mllama_text",
        },
    }
    with pytest.raises(UnsupportedModel, match="mllama_text"):
        model_from_config(write(tmp_path, config))
