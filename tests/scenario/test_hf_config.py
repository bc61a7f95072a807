"""Reading Hugging Face configs: what is recognised, what it weighs, and clear answers to broken files."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hf_examples import GLM, GLM_LEADERS, LLAMA, QWEN2, SHARED, shared_config, write
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse_sim.errors import HiSparseError, InputError
from hisparse_sim.scenario.hf_config import model_from_config
from hisparse_sim.scenario.loader import list_models, load_model
from hisparse_sim.scenario.model import ModelSpec


def parameters(model: ModelSpec, *, mtp: bool = True) -> float:
    """Billions of parameters of a model stored in 16 bits."""
    weights = model.weights
    size = weights.shared_bytes + weights.routed_bytes
    return (size - (0 if mtp else weights.mtp_shared_bytes + weights.mtp_routed_bytes)) / 2e9


def test_llama_is_grouped_query_attention_of_8_billion_parameters(tmp_path: Path) -> None:
    model = model_from_config(write(tmp_path, LLAMA))
    assert (model.attention, model.num_kv_heads, model.head_dim) == ("gqa", 8, 128)
    assert model.max_context_tokens == 131072
    assert parameters(model) == pytest.approx(8.030, abs=0.001)


def test_qwen2_with_an_unused_sliding_window_is_accepted(tmp_path: Path) -> None:
    model = model_from_config(write(tmp_path, QWEN2))
    assert parameters(model) == pytest.approx(7.616, abs=0.001)
    assert model.max_context_tokens == 32768


def test_glm_shares_indexers_by_frequency_and_offset(tmp_path: Path) -> None:
    model = model_from_config(write(tmp_path, GLM))
    assert model.attention == "dsa"
    assert model.indexer_layers == GLM_LEADERS
    assert (model.num_layers, model.dense_layers, model.mtp_layers) == (78, 3, 1)
    assert parameters(model, mtp=False) == pytest.approx(743, abs=1)


@pytest.mark.parametrize(
    "sharing",
    [
        {"index_topk_pattern": "".join("F" if i in GLM_LEADERS else "S" for i in range(78))},
        {"indexer_types": ["full" if i in GLM_LEADERS else "shared" for i in range(78)]},
        {
            "indexer_types": ["full" if i in GLM_LEADERS else "shared" for i in range(78)],
            "index_topk_freq": 4,
            "index_skip_topk_offset": 3,
        },
    ],
)
def test_every_spelling_of_index_sharing_gives_the_same_leaders(
    tmp_path: Path, sharing: dict[str, Any]
) -> None:
    bare = {k: v for k, v in GLM.items() if k not in ("index_topk_freq", "index_skip_topk_offset")}
    assert model_from_config(write(tmp_path, bare | sharing)).indexer_layers == GLM_LEADERS


def test_without_sharing_each_layer_has_an_indexer(tmp_path: Path) -> None:
    bare = {k: v for k, v in GLM.items() if k not in ("index_topk_freq", "index_skip_topk_offset")}
    assert model_from_config(write(tmp_path, bare)).num_indexers == 78


def test_index_sharing_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    config = GLM | {"indexer_types": ["full"] * 78}
    with pytest.raises(InputError, match=r"indexer_types: has 78 full layers, but .* gives 21"):
        model_from_config(write(tmp_path, config))


@given(layers=st.integers(1, 90), every=st.integers(1, 9), offset=st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_leaders_repeat_every_freq_layers_after_the_offset(
    tmp_path_factory: pytest.TempPathFactory, layers: int, every: int, offset: int
) -> None:
    config = GLM | {"num_hidden_layers": layers, "index_topk_freq": every, "index_skip_topk_offset": offset}
    try:
        leaders = model_from_config(write(tmp_path_factory.mktemp("hf"), config)).indexer_layers
    except InputError as error:  # a first layer that has nothing to share from
        assert offset == 0 and every > 1, error
        return
    assert leaders[: min(layers, max(offset, 1))] == tuple(range(min(layers, max(offset, 1))))
    later = [i for i in leaders if i >= max(offset, 1)]
    assert all(b - a == every for a, b in itertools.pairwise(later))


def test_mla_without_indexer_is_dense(tmp_path: Path) -> None:
    config = {k: v for k, v in GLM.items() if not k.startswith("index")}
    model = model_from_config(write(tmp_path, config | {"architectures": ["DeepseekV3ForCausalLM"]}))
    assert (model.attention, model.index_topk, model.indexer_layers) == ("mla", 0, ())


def test_a_nested_text_config_is_read(tmp_path: Path) -> None:
    wrapper = {"architectures": ["LlavaForConditionalGeneration"], "text_config": LLAMA}
    assert model_from_config(write(tmp_path, wrapper)).architecture == "LlamaForCausalLM"
    bare = {k: v for k, v in LLAMA.items() if k != "architectures"}
    wrapper = {"architectures": ["LlavaForConditionalGeneration"], "text_config": bare}
    assert model_from_config(write(tmp_path, wrapper)).num_kv_heads == 8


def test_a_vision_tower_adds_weight_but_no_kv(tmp_path: Path) -> None:
    tower = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27}
    plain = model_from_config(write(tmp_path, LLAMA)).weights.shared_bytes
    seen = model_from_config(write(tmp_path, {"text_config": LLAMA, "vision_config": tower}))
    assert 0.7e9 < seen.weights.shared_bytes - plain < 0.9e9


def test_tied_embeddings_are_counted_once(tmp_path: Path) -> None:
    plain = model_from_config(write(tmp_path, LLAMA)).weights.shared_bytes
    tied = model_from_config(write(tmp_path, LLAMA | {"tie_word_embeddings": True})).weights.shared_bytes
    assert plain - tied == 2 * 128256 * 4096


@pytest.mark.parametrize(
    ("scaling", "tokens"),
    [
        (None, 32768),
        ({"rope_type": "llama3", "factor": 8.0}, 32768),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        ({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 8192}, 32768),
        ({"type": "linear", "factor": 2.0}, 65536),
        ({"rope_type": "default", "rope_theta": 1e6}, 32768),
    ],
)
def test_the_longest_context_counts_rope_scaling_as_vllm_does(
    tmp_path: Path, scaling: dict[str, Any] | None, tokens: int
) -> None:
    config = QWEN2 | {"rope_scaling": scaling}
    assert model_from_config(write(tmp_path, config)).max_context_tokens == tokens


def test_dense_layers_follow_every_spelling(tmp_path: Path) -> None:
    moe = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 768,
    }
    base = {k: v for k, v in LLAMA.items() if k != "architectures"} | moe
    for extra, dense in (
        ({}, 0),
        ({"mlp_only_layers": [0, 5]}, 2),
        ({"decoder_sparse_step": 2}, 16),
        ({"moe_layer_freq": [0] * 3 + [1] * 29}, 3),
        ({"first_k_dense_replace": 1, "moe_layer_freq": 1}, 1),
        ({"mlp_layer_types": ["dense"] * 4 + ["sparse"] * 28}, 4),
    ):
        assert model_from_config(write(tmp_path, base | extra)).dense_layers == dense, extra


def test_a_folder_is_read_through_its_config_json(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    write(folder, LLAMA)
    assert model_from_config(folder).name == "my-model"
    assert model_from_config(folder / "config.json").name == "my-model"


def test_a_quantisation_file_beside_the_config_is_read(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}},
        "hf_quant_config.json",
    )
    model = model_from_config(write(tmp_path, LLAMA))
    assert (model.weights.dtype, model.kv_dtype_of_checkpoint) == ("fp8", "fp8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, r"config\.json: hidden_size: missing"),
        ({"hidden_size": "4096"}, r"hidden_size: '4096' is not a whole number"),
        ({"num_hidden_layers": 0}, r"num_hidden_layers: 0 is too small, at least 1"),
        ({"num_attention_heads": True}, r"num_attention_heads: True is not a whole number"),
        ({"num_key_value_heads": 5}, r"num_key_value_heads: 5 KV heads do not divide 32"),
        ({"architectures": "Llama"}, r"architectures: 'Llama' is not a list of names"),
        ({"architectures": []}, r"architectures: \[\] is not a list of names"),
        ({"rope_scaling": [1]}, r"rope_scaling: \[1\] is not a mapping"),
        ({"rope_scaling": {"type": "yarn", "factor": "x"}}, r"factor 'x' is not a positive number"),
        ({"quantization_config": "fp8"}, r"quantization_config: 'fp8' is not a mapping"),
        ({"tie_word_embeddings": "yes"}, r"tie_word_embeddings: 'yes' is not true or false"),
        ({"text_config": 3}, r"text_config: 3 is not a mapping"),
    ],
)
def test_a_broken_field_is_named_with_its_file(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        model_from_config(write(tmp_path, LLAMA | change))
    assert str(tmp_path) in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"config\.json:1: not valid JSON"),
        ('{"a": 1,\n "b": }', r"config\.json:2: not valid JSON"),
        ("[1, 2]", r"holds a mapping, this is a list"),
        ("{}", r"names no architecture"),
        ("[" * 100_000, r"not valid JSON"),
    ],
)
def test_a_broken_file_is_one_message(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        model_from_config(write(tmp_path, text))


def test_a_missing_file_and_bytes_that_are_no_text_are_said_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        model_from_config(tmp_path / "nope.json")
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InputError, match="not UTF-8 text"):
        model_from_config(tmp_path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**7) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


@given(base=st.sampled_from([LLAMA, QWEN2, GLM]), change=st.data())
@settings(max_examples=150, deadline=None)
def test_no_value_of_any_field_escapes_as_another_kind_of_error(
    tmp_path_factory: pytest.TempPathFactory, base: dict[str, Any], change: st.DataObject
) -> None:
    extra = ["quantization_config", "rope_scaling", "text_config", "moe_layer_freq", "indexer_types"]
    key = change.draw(st.sampled_from([*base, *extra]))
    config = base | {key: change.draw(json_values)}
    try:
        model_from_config(write(tmp_path_factory.mktemp("hf"), config))
    except HiSparseError as error:
        assert error.where


def test_every_real_config_of_the_catalogue_is_accepted() -> None:
    if not (SHARED / "model_configs").is_dir():
        pytest.skip("no model_configs beside this checkout")
    seen = {p.name: model_from_config(p) for p in sorted((SHARED / "model_configs").glob("*.json"))}
    assert len(seen) >= 13
    kinds = {name.split("_config")[0]: model.attention for name, model in seen.items()}
    assert kinds["deepseek-ai--DeepSeek-V3.2"] == "dsa"
    assert kinds["moonshotai--Kimi-K2.5"] == "mla"
    assert kinds["Qwen--Qwen3-235B-A22B-FP8"] == "gqa"


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("glm-5", "zai-org--GLM-5-FP8_config.json"),
        ("glm-5.1", "zai-org--GLM-5.1-FP8_config.json"),
        ("glm-5.2", "zai-org--GLM-5.2-FP8_config.json"),
        ("glm-5.3", "zai-org--GLM-5.3-FP8_config.json"),
        ("deepseek-v3.2", "deepseek-ai--DeepSeek-V3.2_config.json"),
        ("kimi-k2", "moonshotai--Kimi-K2-Instruct_config.json"),
        ("llama-3.1-8b", "meta-llama--Meta-Llama-3.1-8B_config.json"),
    ],
)
def test_the_catalogue_says_what_the_real_config_says(name: str, file: str) -> None:
    own = {"name", "hf_id", "sources", "locality"}
    real = model_from_config(shared_config("model_configs", file)).model_dump(exclude=own)
    assert load_model(name).model_dump(exclude=own) == real


@pytest.mark.parametrize(
    ("file", "billions", "mtp"),
    [
        ("zai-org--GLM-5_config.json", 753.9, True),  # the model card says 754B
        ("zai-org--GLM-5_config.json", 744, False),  # and the report 744B
        ("Qwen--Qwen3-30B-A3B_config.json", 30.53, True),
        ("meta-llama--Meta-Llama-3.1-8B_config.json", 8.03, True),
    ],
)
def test_parameter_counts_are_the_published_ones(file: str, billions: float, mtp: bool) -> None:
    model = model_from_config(shared_config("model_configs", file))
    assert parameters(model, mtp=mtp) == pytest.approx(billions, rel=0.001)


def test_qwen3_30b_weighs_what_vllm_logged() -> None:
    # "Model loading took 56.9342 GiB" on one H100 (bf16)
    model = model_from_config(shared_config("model_configs", "Qwen--Qwen3-30B-A3B_config.json"))
    total = model.weights.shared_bytes + model.weights.routed_bytes
    assert total / 2**30 == pytest.approx(56.9342, rel=0.002)


def test_kimi_k2_5_in_int4_weighs_its_files() -> None:
    # 595 GB on disk
    model = model_from_config(shared_config("model_configs", "moonshotai--Kimi-K2.5_config.json"))
    assert model.weights.dtype == "int4"
    assert (model.weights.shared_bytes + model.weights.routed_bytes) / 1e9 == pytest.approx(595, rel=0.005)
    assert model.max_context_tokens == 262144


def test_names_of_the_catalogue_do_not_depend_on_the_reader() -> None:
    assert all(re.fullmatch(r"[a-z0-9.-]+", name) for name in list_models())
    assert json.loads(load_model("glm-5.3").model_dump_json())["name"] == "glm-5.3"
