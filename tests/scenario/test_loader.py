"""Scenarios from YAML: resolution, overrides, and one clear message for whatever is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hf_examples import LLAMA, write
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse_sim.cost.profile import load_profile
from hisparse_sim.errors import HiSparseError, Infeasible, InputError
from hisparse_sim.scenario.loader import list_scenarios, load_model, load_node, load_scenario
from hisparse_sim.scenario.overrides import apply_overrides, parse_override
from hisparse_sim.scenario.vllm_log import read_log

TEXT = """\
model: glm-5.3
node: 8xh200
engine:
  mode: hisparse
  max_num_batched_tokens: 8192
  host_pool_gib: 384
workload:
  kind: stream
  concurrency: 4
  requests: 8
  prompt_tokens: 128k
  output_tokens: 100
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(TEXT)
    return path


def test_names_become_records_and_the_file_gives_the_name(scenario: Path) -> None:
    loaded = load_scenario(scenario)
    assert loaded.name == "mine"
    assert loaded.model == load_model("glm-5.3")
    assert loaded.node == load_node("8xh200")
    assert loaded.tp == 8
    assert loaded.workload.kind == "stream" and loaded.workload.prompt_tokens == 131072


@pytest.mark.parametrize("name", list_scenarios())
def test_every_shipped_scenario_loads_by_name(name: str) -> None:
    assert load_scenario(name).name == name


def test_a_config_beside_the_scenario_is_found(scenario: Path) -> None:
    write(scenario.parent, LLAMA, "llama.json")
    text = TEXT.replace("glm-5.3", "llama.json").replace("mode: hisparse", "mode: resident")
    scenario.write_text(text)
    assert load_scenario(scenario).model.architecture == "LlamaForCausalLM"


def test_an_inline_model_and_node_are_read(scenario: Path) -> None:
    data = yaml.safe_load(TEXT)
    data["model"] = load_model("glm-5.3").model_dump(mode="json")
    data["node"] = load_node("8xb200").model_dump(mode="json")
    scenario.write_text(yaml.safe_dump(data))
    loaded = load_scenario(scenario)
    assert loaded.model == load_model("glm-5.3") and loaded.node.name == "8xb200"


def test_a_resolved_scenario_reads_back_to_itself(scenario: Path) -> None:
    loaded = load_scenario(scenario)
    again = scenario.with_name("again.yaml")
    again.write_text(yaml.safe_dump(loaded.model_dump(mode="json")))
    assert load_scenario(again) == loaded


def test_a_trace_beside_the_scenario_is_found(scenario: Path) -> None:
    (scenario.parent / "sessions").mkdir()
    override = "workload={kind: trace, path: sessions}"
    loaded = load_scenario(scenario, overrides=[override])
    assert loaded.workload.kind == "trace" and loaded.workload.path == scenario.parent / "sessions"


def test_anchors_are_plain_yaml(scenario: Path) -> None:
    scenario.write_text(
        TEXT.replace("requests: 8", "requests: &n 8").replace("output_tokens: 100", "output_tokens: *n")
    )
    loaded = load_scenario(scenario)
    assert loaded.workload.kind == "stream" and loaded.workload.output_tokens == 8


def test_overrides_are_laid_over_in_order(scenario: Path) -> None:
    loaded = load_scenario(
        scenario,
        overrides=[
            "engine.max_model_len=128k",
            "engine.max_num_seqs=16",
            "engine.max_num_seqs=32",
            "engine.async_scheduling=false",
            "engine.version=0.30",
            "workload.prompt_tokens=4k",
            "slo.ttft_s=2.5",
            "seed=7",
            "node=8xb200",
            "node.dram_bytes=4398046511104",
            "model=glm-5.2",
            "model.max_context_tokens=256k",
        ],
    )
    engine = loaded.engine
    assert (engine.max_model_len, engine.max_num_seqs, engine.async_scheduling) == (131072, 32, False)
    assert (engine.version, loaded.seed, loaded.slo.ttft_s) == ("0.30", 7, 2.5)
    assert (loaded.node.name, loaded.node.dram_bytes) == ("8xb200", 2**42)
    assert (loaded.model.name, loaded.model.max_context_tokens) == ("glm-5.2", 262144)
    assert loaded.workload.kind == "stream" and loaded.workload.prompt_tokens == 4096


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("engine.hot_row=4096", "unknown field; did you mean 'hot_rows'"),
        ("engin.hot_rows=4096", "unknown field; did you mean 'engine'"),
        ("workload.turns=3", "unknown field; known are concurrency, kind, length_jitter, limit"),
        ("engine.hot_rows=-1", "-1 is not allowed, must be more than 0"),
        ("engine.hot_rows=4096.5", "4096.5 is not a whole number"),
        ("engine.hot_rows=many", "'many' is not a number of tokens"),
        ("engine.watermark=1", "1 is not allowed, must be less than 1"),
        ("engine.gpu_memory_utilization=92%", "'92%' is not a number"),
        ("engine.mode=hisparze", "one of 'resident', 'offload' or 'hisparse'; did you mean 'hisparse'"),
        ("engine.enable_prefix_caching=maybe", "'maybe' is not true or false"),
        ("engine.tp=yes", "tp: true is a yes or no, which this field is not"),
        ("engine.host_pool_gib=384GB", "has a unit; this field is in GiB, write 357.6"),
        ("engine.host_pool_gib=384GiB", "has a unit; this field is in GiB, write 384"),
        ("engine.host_pool_gib=lots", "'lots' is not a number, and 'lots' is not one of 'auto'"),
        ("engine.host_pool_gib=.nan", "nan is not a finite number"),
        ("engine.max_model_len=0", "0 is not allowed, must be more than 0"),
        ("engine.max_model_len=128q", "'128q' is not a number of tokens"),
        ("engine.version=0.31", "vLLM 0.31 is not modelled; known are 0.30 and 0.33"),
        ("engine=3", "3 is not a mapping of fields"),
        ("slo.ttft_s=5ms", "has a unit; this field is in seconds, write 0.005"),
        ("node.dram_bytes=2TiB", "has a unit; this field is in bytes, write 2199023255552"),
        ("workload.prompt_tokens=74q", "'74q' is not a number of tokens"),
        ("workload.kind=poison", "kind 'poison' is unknown; one of conversations, poisson, stream, trace"),
        ("workload={requests: 3}", "kind is missing; one of conversations, poisson, stream, trace"),
        ("seed=-1", "-1 is not allowed, must be at least 0"),
        ("seed.x=1", "seed holds 1, which has no fields"),
        ("model=glm-5.4", "unknown model 'glm-5.4'; did you mean 'glm-5.3'"),
        ("node=9xh200", "unknown node '9xh200'; did you mean '8xh200'"),
        ("engine.tp", "is not path=value, as in"),
        ("=3", "is not path=value, as in"),
        ("engine..tp=3", "is not path=value, as in"),
        ("engine.tp=[1", "not valid YAML"),
    ],
)
def test_a_wrong_override_is_one_message_that_names_it(scenario: Path, override: str, message: str) -> None:
    scenario.write_text(TEXT + "seed: 1\n")
    with pytest.raises(InputError) as raised:
        load_scenario(scenario, overrides=[override])
    text = str(raised.value)
    assert message in text
    assert f"--set {override}" in text
    assert "\n" not in text and "pydantic" not in text and "validation error" not in text


@pytest.mark.parametrize(
    ("old", "new", "where", "message"),
    [
        ("mode: hisparse", "mod: hisparse", ":4: engine.mod", "unknown field; did you mean 'mode'"),
        (
            "concurrency: 4",
            "concurrency: 0",
            ":9: workload.concurrency",
            "0 is not allowed, must be more than 0",
        ),
        ("  requests: 8\n", "", ":7: workload.requests", "missing; it has no default"),
        ("model: glm-5.3\n", "", ": model", "missing; it has no default"),
        ("model: glm-5.3", "model: glm-9", ":1: model", "unknown model 'glm-9'"),
        ("model: glm-5.3", "model: nope.json", "nope.json", "no such file"),
        ("prompt_tokens: 128k", "prompt_tokens: 128x", ":11: workload.prompt_tokens", "number of tokens"),
        ("node: 8xh200", "node: [8]", ":2: node", "[8] is not a mapping of fields"),
        ("engine:\n", "engine: none\nx:\n", ":4: x", "unknown field"),
    ],
)
def test_an_error_names_file_line_field_and_remedy(
    scenario: Path, old: str, new: str, where: str, message: str
) -> None:
    assert old in TEXT
    scenario.write_text(TEXT.replace(old, new))
    with pytest.raises(InputError) as raised:
        load_scenario(scenario)
    assert message in str(raised.value)
    assert where in str(raised.value.where)


def test_several_errors_come_in_one_message(scenario: Path) -> None:
    wrong = "engine: {hot_rows: -1, max_num_seqs: 0, watermark: 2, block_size: 0, version: 1}\n"
    scenario.write_text(TEXT.split("engine:")[0] + wrong + "workload:" + TEXT.split("workload:")[1])
    with pytest.raises(InputError, match=r"hot_rows|version") as raised:
        load_scenario(scenario)
    assert "and 1 more" in str(raised.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds nothing, not a mapping"),
        (b"- 1\n- 2\n", "holds a list, not a mapping"),
        (b"just text", "holds a str, not a mapping"),
        (b"a: [1\nb: 2\n", "not valid YAML"),
        (b"a: 1\n\tb: 2\n", "not valid YAML"),
        (b"1: 2\n", "field name 1 is not text"),
        (b"\xff\xfe\x80", "not UTF-8 text"),
        (b"a: \x00", "not valid YAML"),
        (b"a: !!python/object:os.system {}\n", "not valid YAML"),
        (b"[" * 20_000, "not valid YAML"),
    ],
)
def test_a_file_that_is_no_scenario_is_one_message(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as raised:
        load_scenario(path)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


def test_missing_files_folders_and_large_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_scenario(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="is a folder"):
        load_scenario(tmp_path)
    with pytest.raises(InputError, match="unknown scenario 'agentic'; known are"):
        load_scenario("agentic")
    large = tmp_path / "large.yaml"
    with large.open("wb") as file:
        file.truncate(17 * 2**20)
    with pytest.raises(InputError, match="17 MiB, too large"):
        load_scenario(large)


def test_a_length_beyond_the_model_s_names_both(scenario: Path) -> None:
    with pytest.raises(
        InputError, match=r"2,097,152 tokens is longer than glm-5.3 allows, at most 1,048,576"
    ):
        load_scenario(scenario, overrides=["engine.max_model_len=2M"])
    scenario.write_text(TEXT.replace("mode: hisparse", "max_model_len: 2M"))
    with pytest.raises(InputError, match=r"mine.yaml:4: engine.max_model_len: 2,097,152"):
        load_scenario(scenario)


def test_host_memory_beyond_the_node_s_is_infeasible(scenario: Path) -> None:
    with pytest.raises(Infeasible, match=r"4,000 GiB is more than the host memory of 8xh200, 2,048 GiB"):
        load_scenario(scenario, overrides=["engine.host_pool_gib=4000"])
    offload = ["engine.mode=offload", "engine.kv_offload_gib=3000"]
    with pytest.raises(Infeasible, match=r"kv_offload_gib=3000: 3,000 GiB is more"):
        load_scenario(scenario, overrides=offload)
    assert load_scenario(scenario, overrides=[*offload, "engine.tp=16"]).tp == 16  # two nodes


def test_a_token_budget_below_the_seats_is_refused_as_vllm_does(scenario: Path) -> None:
    with pytest.raises(InputError, match=r"max_num_batched_tokens.*128 is less than max_num_seqs, 256"):
        load_scenario(scenario, overrides=["engine.max_num_batched_tokens=128"])


def test_only_one_size_of_the_pool_may_be_given(scenario: Path) -> None:
    overrides = ["engine.available_kv_gib=3", "engine.kv_tokens=1000"]
    with pytest.raises(InputError, match="give only one of available_kv_gib, kv_tokens") as raised:
        load_scenario(scenario, overrides=overrides)
    assert all(o in str(raised.value) for o in overrides)


names = st.text("abc_", min_size=1, max_size=4)


@given(path=st.lists(names, min_size=1, max_size=4), value=st.integers() | st.booleans() | st.none())
def test_an_override_sets_its_path_and_nothing_else(path: list[str], value: Any) -> None:
    before = {"other": {"x": 1}, "zz": 2}
    after = apply_overrides(before, [f"{'.'.join(path)}={yaml.safe_dump(value).split()[0]}"])
    place: Any = after
    for key in path:
        place = place[key]
    assert place == value
    assert before == {"other": {"x": 1}, "zz": 2}
    assert {k: v for k, v in after.items() if k != path[0]} == {
        k: v for k, v in before.items() if k != path[0]
    }


@given(st.text(max_size=20))
def test_any_text_is_an_override_or_an_input_error(text: str) -> None:
    try:
        keys, _ = parse_override(text)
        assert all(keys)
    except InputError as error:
        assert str(error).startswith("--set ")


fields = [
    "engine.tp",
    "engine.host_pool_gib",
    "engine.max_model_len",
    "engine.mode",
    "engine",
    "model",
    "model.weights",
    "model.indexer_layers",
    "node.gpu",
    "workload",
    "workload.kind",
    "workload.prompt_tokens",
    "slo",
    "seed",
    "name",
    "calibration",
    "locality",
]


@given(field=st.sampled_from(fields), value=st.data())
@settings(max_examples=120, deadline=None)
def test_no_value_escapes_as_another_kind_of_error(field: str, value: st.DataObject) -> None:
    scalars = (
        st.none()
        | st.booleans()
        | st.integers(-5, 10**7)
        | st.floats(-5, 1e7)
        | st.text("aB1 k.", max_size=6)
    )
    drawn = value.draw(scalars | st.lists(scalars, max_size=2) | st.dictionaries(names, scalars, max_size=2))
    try:
        load_scenario(
            "agentic-13turn-8xh200", overrides=[f"{field}={yaml.safe_dump(drawn, default_flow_style=True)}"]
        )
    except HiSparseError as error:
        assert error.where


def test_a_device_is_no_scenario() -> None:
    with pytest.raises(InputError, match="/dev/zero: is a pipe or device"):
        load_scenario("/dev/zero")


def test_an_empty_trace_path_is_not_the_folder_of_the_scenario(scenario: Path) -> None:
    with pytest.raises(InputError, match=r"workload"):
        load_scenario(scenario, overrides=["workload={kind: trace, path: ''}"])


def test_a_device_is_no_log_and_no_profile() -> None:
    for read in (read_log, load_profile):
        with pytest.raises(InputError, match="/dev/zero: is a pipe or device"):
            read("/dev/zero")
