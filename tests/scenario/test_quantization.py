"""What quantised checkpoints weigh, and when they turn on fp8 KV by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hf_examples import GLM, LLAMA, shared_config, write
from hypothesis import given
from hypothesis import strategies as st

from hisparse_sim.errors import InputError, UnsupportedModel
from hisparse_sim.scenario.hf_config import model_from_config
from hisparse_sim.scenario.quantization import BF16, Format, Quantization, read_quantization

FP8_BLOCK = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
INT4 = {"num_bits": 4, "type": "int", "group_size": 32, "symmetric": True, "strategy": "group"}


def read(config: dict[str, Any]) -> Quantization:
    return read_quantization(config, where="c.json: quantization_config")


def compressed(weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, **more}


def test_glm_5_2_in_fp8_weighs_its_safetensors_files() -> None:
    # 755,632,050,320 bytes of files; their JSON headers are some 15 MB
    weights = model_from_config(shared_config("model_configs", "zai-org--GLM-5.2-FP8_config.json")).weights
    assert 0 < 755_632_050_320 - (weights.shared_bytes + weights.routed_bytes) < 20e6


def test_glm_5_2_splits_as_the_vllm_calculator_counts() -> None:
    weights = model_from_config(shared_config("model_configs", "zai-org--GLM-5.2-FP8_config.json")).weights
    assert round(weights.shared_bytes / 2**30, 3) == 19.556
    assert round(weights.routed_bytes / 2**30, 3) == 684.167


def test_mtp_layers_are_part_of_the_sums(tmp_path: Path) -> None:
    weights = model_from_config(write(tmp_path, GLM)).weights
    assert weights.mtp_routed_bytes * 76 == weights.routed_bytes
    assert 0 < weights.mtp_shared_bytes < weights.shared_bytes / 50


@pytest.mark.parametrize(
    ("fmt", "rows", "columns", "size"),
    [
        (BF16, 3, 5, 30),
        (Format("fp8", 8), 256, 256, 65536),
        (Format("fp8", 8, 4, (128, 128)), 256, 256, 65536 + 16),
        (Format("fp8", 8, 4, (128, 128)), 129, 1, 129 + 8),
        (Format("fp8", 8, 4, (1, 0)), 10, 128, 1280 + 40),
        (Format("int4", 4, 2, (1, 32)), 10, 64, 320 + 40),
        (Format("nvfp4", 4, 1, (1, 16)), 10, 64, 320 + 40),
        (Format("mxfp4", 4, 1, (1, 32)), 10, 64, 320 + 20),
    ],
)
def test_a_matrix_weighs_its_weights_and_scales(fmt: Format, rows: int, columns: int, size: int) -> None:
    assert fmt.matrix_bytes(rows, columns) == size


@given(rows=st.integers(1, 5000), columns=st.integers(1, 5000), more=st.integers(0, 300))
def test_a_larger_matrix_never_weighs_less(rows: int, columns: int, more: int) -> None:
    for fmt in (BF16, Format("fp8", 8, 4, (128, 128)), Format("int4", 4, 2.5, (1, 128))):
        assert fmt.matrix_bytes(rows, columns) <= fmt.matrix_bytes(rows + more, columns)
        assert fmt.matrix_bytes(rows, columns) <= fmt.matrix_bytes(rows, columns + more)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (FP8_BLOCK, "fp8"),
        (compressed(INT4), "int4"),
        (compressed({**INT4, "num_bits": 8}), "int8"),
        (compressed({"num_bits": 8, "type": "float", "strategy": "channel"}), "fp8"),
        (compressed({"num_bits": 4, "type": "float", "group_size": 16}), "nvfp4"),
        (
            compressed({"num_bits": 4, "type": "float", "group_size": 32}, format="mxfp4-pack-quantized"),
            "mxfp4",
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quantization": {"quant_algo": "FP8"}}, "fp8"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4"),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8"),
    ],
)
def test_known_formats_are_recognised(config: dict[str, Any], name: str) -> None:
    assert read(config).format_of("layers.0.mlp.experts.0.up_proj").name == name


@pytest.mark.parametrize(
    ("ignored", "module", "kept"),
    [
        (["model.layers.0.mlp"], "layers.0.mlp.up_proj", True),
        (["model.layers.0.mlp"], "layers.1.mlp.up_proj", False),
        (["model.layers.1"], "layers.10.mlp.up_proj", False),
        (["re:.*self_attn.*"], "layers.0.self_attn.o_proj", True),
        ([r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"], "layers.0.mlp.experts.0.up_proj", False),
        ([r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"], "layers.0.mlp.up_proj", True),
        (["re:model.layers.0.*"], "layers.0.mlp.up_proj", True),
        (["language_model.model.layers.2.self_attn"], "layers.2.self_attn.q_proj", True),
        (["model.layers.3*"], "layers.3.mlp.up_proj", True),
        (["*self_attn*"], "layers.3.self_attn.q_proj", True),
    ],
)
def test_modules_left_out_stay_in_16_bits(ignored: list[str], module: str, kept: bool) -> None:
    quantization = read(compressed(INT4, ignore=ignored))
    assert (quantization.format_of(module) is BF16) is kept


def test_groups_with_targets_of_their_own_are_told_apart() -> None:
    config = {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "a": {"targets": ["re:.*experts.*"], "weights": INT4},
            "b": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}},
        },
    }
    quantization = read(config)
    assert quantization.format_of("layers.0.mlp.experts.0.up_proj").name == "int4"
    assert quantization.format_of("layers.0.self_attn.o_proj").name == "fp8"


@pytest.mark.parametrize(
    ("config", "fp8"),
    [
        (FP8_BLOCK, False),
        (compressed(INT4, kv_cache_scheme=None), False),
        (compressed(INT4, kv_cache_scheme={"num_bits": 8, "type": "float"}), True),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}, True),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": None}, False),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "NVFP4",
                "kv_cache_scheme": {"num_bits": 8, "type": "float"},
            },
            True,
        ),
    ],
)
def test_a_checkpoint_that_turns_on_fp8_kv_is_recognised(
    tmp_path: Path, config: dict[str, Any], fp8: bool
) -> None:
    model = model_from_config(write(tmp_path, LLAMA | {"quantization_config": config}))
    assert model.kv_dtype_of_checkpoint == ("fp8" if fp8 else None)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "quantisation 'bitsandbytes' is not sized"),
        ({}, "quantisation None is not sized"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "'W4A8_AWQ' is not sized"),
        (compressed({"num_bits": 3, "type": "int"}), "3 bits"),
        (compressed(INT4, kv_cache_scheme={"num_bits": 4}), "kv_cache_scheme of 4 bits"),
        (
            {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"},
            "kv_cache_quant_algo NVFP4",
        ),
    ],
)
def test_an_unknown_format_is_refused_by_name(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read(config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**FP8_BLOCK, "weight_block_size": [128]}, "weight_block_size"),
        ({**FP8_BLOCK, "modules_to_not_convert": "lm_head"}, "not a list"),
        ({**FP8_BLOCK, "modules_to_not_convert": [3]}, "not a module name"),
        (compressed(INT4, ignore=["re:("]), "not a regular expression"),
        ({"quant_method": "compressed-tensors"}, "without config_groups"),
        (compressed({**INT4, "group_size": "x"}), "group_size 'x'"),
    ],
)
def test_a_malformed_quantisation_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(config)
