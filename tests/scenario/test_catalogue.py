"""The shipped models and nodes: names, sources of every field, and figures that must not drift."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.base import Record
from hisparse_sim.scenario.loader import list_models, list_nodes, load_model, load_node
from hisparse_sim.scenario.model import ModelSpec

MIB, GIB = 2**20, 2**30
GRADES = {"measured", "driver", "config", "datasheet", "published", "derived"}


def leaves(record: type[BaseModel], prefix: str = "") -> set[str]:
    """Dotted names of all plain fields of a record but its name and sources."""
    out: set[str] = set()
    for name, field in record.model_fields.items():
        if not prefix and name in ("name", "sources"):
            continue
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Record):
            out |= leaves(kind, f"{prefix}{name}.")
        else:
            out.add(prefix + name)
    return out


def test_the_models_are_the_eight_of_the_catalogue() -> None:
    names = "deepseek-v3.2 glm-5 glm-5.1 glm-5.2 glm-5.3 kimi-k2 llama-3.1-8b qwen2.5-7b"
    assert list_models() == names.split()


def test_the_nodes_are_the_nine_of_the_catalogue() -> None:
    names = "1xgb200 8xb200 8xb300 8xh100 8xh200 8xmi350x 8xrtxpro6000 gb200-nvl4 gb300-nvl4"
    assert list_nodes() == names.split()


@pytest.mark.parametrize(
    "load,name", [(load_model, n) for n in list_models()] + [(load_node, n) for n in list_nodes()]
)
def test_every_field_has_a_source_and_no_source_speaks_of_nothing(load: Any, name: str) -> None:
    record = load(name)
    assert record.name == name
    fields = leaves(type(record))
    named = [f for source in record.sources for f in source.fields]
    assert {f for f in fields if any(f == n or f.startswith(n + ".") for n in named)} == fields
    assert all(any(f == n or f.startswith(n + ".") for f in fields) for n in named)
    assert len(named) == len(set(named))
    assert all(s.grade in GRADES and len(s.source) > 10 for s in record.sources)


@pytest.mark.parametrize("name", list_nodes())
def test_a_grade_of_gpu_memory_is_the_one_of_its_source(name: str) -> None:
    node = load_node(name)
    source = next(s for s in node.sources if "gpu.memory_bytes" in s.fields)
    assert source.grade == node.gpu.memory_grade


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("8xh100", 81_559),
        ("8xh200", 143_771),
        ("8xb200", 183_359),
        ("8xb300", 275_040),
        ("1xgb200", 189_471),
        ("gb200-nvl4", 189_471),
        ("gb300-nvl4", 284_208),
        ("8xrtxpro6000", 97_887),
    ],
)
def test_gpu_memory_is_what_nvidia_smi_reports(name: str, mib: int) -> None:
    gpu = load_node(name).gpu
    assert gpu.memory_bytes == mib * MIB
    assert gpu.memory_grade == "driver"


@pytest.mark.parametrize(("name", "decimal_gb"), [("8xh200", 141), ("8xb200", 180), ("8xb300", 288)])
def test_marketing_bytes_are_those_of_the_vllm_calculator(name: str, decimal_gb: int) -> None:
    assert load_node(name).gpu.marketing_bytes == decimal_gb * 10**9


@pytest.mark.parametrize("name", list_nodes())
def test_a_node_is_physically_sane(name: str) -> None:
    node = load_node(name)
    link = node.host_link
    assert abs(node.gpu.memory_bytes / node.gpu.marketing_bytes - 1) < 0.08
    assert link.gather_per_request_bytes_per_s <= link.gather_bytes_per_s <= link.copy_h2d_bytes_per_s
    assert link.both_ways_bytes_per_s <= link.copy_h2d_bytes_per_s + link.copy_d2h_bytes_per_s
    assert link.copy_h2d_bytes_per_s < node.dram_bytes_per_s < node.gpu.hbm_bytes_per_s * node.gpus
    assert node.gpu.fp8_flops >= node.gpu.bf16_flops
    assert node.dram_bytes >= 400 * GIB


def test_only_nvidia_nodes_run_hisparse_and_have_step_times() -> None:
    nodes = [load_node(n) for n in list_nodes()]
    assert {n.name for n in nodes if not n.hisparse} == {"8xmi350x"}
    assert all(n.hisparse == (n.gpu.vendor == "nvidia") for n in nodes)
    assert all(bool(n.calibration) == (n.gpu.vendor == "nvidia") for n in nodes)


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("llama-3.1-8b", 131_072),
        ("qwen2.5-7b", 32_768),
        ("kimi-k2", 131_072),
        ("deepseek-v3.2", 163_840),
        ("glm-5", 202_752),
        ("glm-5.1", 202_752),
        ("glm-5.2", 1_048_576),
        ("glm-5.3", 1_048_576),
    ],
)
def test_the_longest_context_is_the_config_s(name: str, tokens: int) -> None:
    assert load_model(name).max_context_tokens == tokens


def test_indexers_are_shared_in_glm_5_2_and_5_3_and_nowhere_else() -> None:
    counts = {n: load_model(n).num_indexers for n in list_models()}
    assert counts["glm-5.2"] == counts["glm-5.3"] == 21
    assert counts["glm-5"] == counts["glm-5.1"] == 78
    assert counts["deepseek-v3.2"] == 61
    assert counts["kimi-k2"] == counts["llama-3.1-8b"] == counts["qwen2.5-7b"] == 0


def test_weights_are_the_known_totals() -> None:
    def gib(name: str) -> float:
        weights = load_model(name).weights
        return (weights.shared_bytes + weights.routed_bytes) / GIB

    assert gib("glm-5.3") == pytest.approx(19.556 + 684.167, abs=0.001)
    assert gib("deepseek-v3.2") == pytest.approx(638.7, abs=0.1)  # 671.9e9 in fp8 with the MTP layer
    assert gib("kimi-k2") == pytest.approx(958.5, abs=0.1)
    assert gib("llama-3.1-8b") == pytest.approx(8.03e9 * 2 / GIB, rel=0.001)
    assert gib("qwen2.5-7b") == pytest.approx(7.616e9 * 2 / GIB, rel=0.001)


@pytest.mark.parametrize("load", [load_model, load_node])
def test_a_misspelt_name_is_answered_with_the_nearest(load: Any) -> None:
    name = "glm53" if load is load_model else "8xh20"
    near = "glm-5.3" if load is load_model else "8xh200"
    with pytest.raises(InputError, match=f"unknown .* '{name}'; did you mean '{near}'"):
        load(name)


def test_a_name_like_nothing_is_answered_with_all_names() -> None:
    with pytest.raises(InputError, match=r"known are deepseek-v3.2, glm-5, "):
        load_model("xyzzy")
    with pytest.raises(InputError, match="'' is no name"):
        load_model("")


def test_names_are_read_in_any_case() -> None:
    assert load_model("GLM-5.3") == load_model("glm-5.3")


def test_a_model_file_of_one_s_own_is_read_and_checked(tmp_path: Path) -> None:
    import yaml

    own = load_model("llama-3.1-8b").model_dump(mode="json", exclude_defaults=True) | {"name": "mine"}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(own))
    assert load_model(path).name == "mine"
    path.write_text(yaml.safe_dump(own | {"head_dim": 0}))
    with pytest.raises(InputError, match=r"mine\.yaml: attention gqa needs head_dim"):
        load_model(path)
    path.write_text(yaml.safe_dump(own | {"num_layer": 3}, sort_keys=False))
    with pytest.raises(
        InputError, match=r"mine\.yaml:\d+: num_layer: unknown field; did you mean 'num_layers'"
    ):
        load_model(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indexer_layers": ()}, "indexer_layers belong to attention dsa"),
        ({"indexer_layers": (1, 2)}, "must rise from layer 0"),
        ({"indexer_layers": (0, 5, 3)}, "must rise from layer 0"),
        ({"indexer_layers": (0, 78)}, "must rise from layer 0 to at most 77"),
        ({"attention": "mla"}, "indexer_layers belong to attention dsa"),
        ({"kv_lora_rank": 0}, "attention dsa needs kv_lora_rank"),
        ({"experts_per_token": 300}, "300 experts a token of 256"),
        ({"dense_layers": 79}, "79 dense layers of 78"),
        ({"attention": "gqa", "indexer_layers": (), "head_dim": 64, "num_kv_heads": 7}, "7 KV heads"),
    ],
)
def test_a_model_that_contradicts_itself_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelSpec.model_validate(load_model("glm-5.3").model_dump() | change)
