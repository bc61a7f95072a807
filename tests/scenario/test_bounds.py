"""Sizes far beyond any machine, keys given twice and links to nowhere: refused by name, at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hf_examples import GLM, LLAMA, write

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.hf_config import model_from_config
from hisparse_sim.scenario.loader import load_scenario
from hisparse_sim.scenario.yaml_file import parse_yaml

TEXT = """\
model: glm-5.3
node: 8xh200
engine:
  tp: 8
workload: {kind: stream, concurrency: 4, requests: 8, prompt_tokens: 8k, output_tokens: 100}
"""


@pytest.mark.parametrize(
    ("setting", "most"),
    [
        ("engine.available_kv_gib=1e300", "1,000,000"),
        ("engine.host_pool_gib=1e300", "1,000,000"),
        ("engine.kv_offload_gib=1e12", "1,000,000"),
        ("engine.kv_tokens=" + "9" * 50, "1,000,000,000,000"),
        ("engine.num_gpu_blocks=" + "9" * 20, "1,000,000,000,000"),
        ("engine.tp=1000000000", "100,000"),
        ("model.num_layers=100000000", "10,000"),
        ("model.weights.shared_bytes=" + "9" * 40, "1,000,000,000,000,000,000"),
        ("node.gpu.memory_bytes=" + "9" * 400, "1,000,000,000,000,000,000"),
        ("node.dram_bytes_per_s=1e300", "1,000,000,000,000,000,000"),
    ],
)
def test_a_number_beyond_any_machine_is_refused_with_its_bound(
    tmp_path: Path, setting: str, most: str
) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(TEXT)
    with pytest.raises(InputError) as refusal:
        load_scenario(path, overrides=[setting])
    assert str(refusal.value).startswith(f"--set {setting}: ")
    assert str(refusal.value).endswith(f"is not allowed, must be at most {most}")


def test_a_speed_that_no_machine_is_so_slow_as_to_have_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(TEXT)
    with pytest.raises(InputError, match=r"1e-300 is not allowed, must be at least 1$"):
        load_scenario(path, overrides=["node.gpu.hbm_bytes_per_s=1e-300"])


def test_a_seed_may_be_any_whole_number(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(TEXT)
    assert load_scenario(path, overrides=[f"seed={2**64 - 1}"]).seed == 2**64 - 1


@pytest.mark.parametrize("config", [LLAMA, GLM])
@pytest.mark.parametrize("value", [10**8, 10**30, 1e30])
def test_no_size_of_a_config_is_counted_up_to_before_its_bound(
    tmp_path: Path, config: dict[str, object], value: float
) -> None:
    sizes = [name for name, size in config.items() if isinstance(size, int) and not isinstance(size, bool)]
    for name in sizes:
        wrong = value if name == "num_hidden_layers" else max(value, 10**30)
        with pytest.raises(InputError, match=f"{name}: .*(too large|not a whole number)"):
            model_from_config(write(tmp_path, {**config, name: wrong}))


def test_a_vision_tower_is_bounded_too(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"vision_config: hidden_size .* too large"):
        model_from_config(write(tmp_path, {**LLAMA, "vision_config": {"hidden_size": 10**30}}))


def test_a_key_given_twice_is_refused_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(TEXT.replace("  tp: 8\n", "  tp: 8\n  dp: 1\n  tp: 4\n"))
    with pytest.raises(InputError, match=r"s\.yaml:6: .*tp is given twice, first in line 4"):
        load_scenario(path)
    assert parse_yaml("a: &x {b: 1}\nc: {<<: *x, b: 2}", where="f") == {"a": {"b": 1}, "c": {"b": 2}}


@pytest.mark.parametrize("size", [48, 64, 8, 1])
def test_block_sizes_are_those_of_kernels(tmp_path: Path, size: int) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(TEXT)
    assert load_scenario(path, overrides=[f"engine.block_size={size}"]).engine.block_size == size
    with pytest.raises(InputError, match=r"engine\.block_size=.*a multiple of 16, or 1, 2, 4 or 8"):
        load_scenario(path, overrides=[f"engine.block_size={size + 2 if size > 1 else 3}"])


def test_links_to_nowhere_say_what_they_are(tmp_path: Path) -> None:
    loop, dangling = tmp_path / "loop", tmp_path / "dangling"
    loop.symlink_to("loop")
    dangling.symlink_to("nothing")
    with pytest.raises(InputError, match="loop: cannot be read: Too many levels of symbolic links"):
        load_scenario(loop)
    with pytest.raises(InputError, match="dangling: is a link to a file that is not there"):
        load_scenario(dangling)
    with pytest.raises(InputError, match="cannot be read: File name too long"):
        load_scenario("a" * 5000)
