"""Flags are read the way vLLM's parser reads them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hisparse_sim.errors import InputError
from hisparse_sim.serve import flags as table
from hisparse_sim.serve.parse import ServeFlags, parse_flags


def parsed(text: str) -> ServeFlags:
    return parse_flags(shlex.split(text), where="--serve")


@pytest.mark.parametrize(
    "text",
    [
        "m --tensor-parallel-size 8",
        "m --tensor_parallel_size=8",
        "--model m -tp 8",
        "m -tp=8",
        "m -tp 2 --tensor-parallel-size 8",
    ],
)
def test_ways_to_say_the_same(text: str) -> None:
    found = parsed(text)
    assert (found.model, found.whole("tensor-parallel-size", 1)) == ("m", 8)


def test_a_switch_is_on_off_or_not_given() -> None:
    assert parsed("m --enable-prefix-caching").switch("enable-prefix-caching", False)
    assert not parsed("m --no-enable-prefix-caching").switch("enable-prefix-caching", True)
    assert parsed("m").switch("enable-prefix-caching", True)


def test_a_bare_token_takes_no_value_from_the_flag_behind_it() -> None:
    assert parsed("m --hf-token --max-num-seqs 8").whole("max-num-seqs", 0) == 8


def test_numbers_have_vllms_units() -> None:
    assert parsed("m --max-model-len 142k").whole("max-model-len", 0) == 142_000
    assert parsed("m --max-model-len 128K").whole("max-model-len", 0) == 131_072


def test_dotted_keys_fill_a_mapping() -> None:
    found = parsed(
        "m --kv-transfer-config.kv_connector X "
        "--kv_transfer_config.kv_connector_extra_config.host_pool_gib=384"
    )
    assert found.mapping("kv-transfer-config") == {
        "kv_connector": "X",
        "kv_connector_extra_config": {"host_pool_gib": 384},
    }
    assert found.replaced == ()


def test_dotted_keys_replace_a_mapping_that_is_given_whole() -> None:
    found = parsed("""m --kv-transfer-config '{"kv_role":"kv_both"}' --kv-transfer-config.kv_connector X""")
    assert found.mapping("kv-transfer-config") == {"kv_connector": "X"}
    assert found.replaced == ("kv-transfer-config",)


def test_a_config_file_gives_flags_that_the_command_line_overrides(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("tensor-parallel-size: 4\nmax_num_seqs: 16\nenable-prefix-caching: false\n")
    found = parsed(f"m --config {path} -tp 8")
    assert found.whole("tensor-parallel-size", 1) == 8
    assert found.whole("max-num-seqs", 1) == 16
    assert found.given["enable-prefix-caching"] is False


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("m --max-modl-len 3", "--max-modl-len is no flag .* did you mean '--max-model-len'"),
        ("m --no-enable-prefix-cachin", "did you mean '--no-enable-prefix-caching'"),
        ("m --max-model-len", "--max-model-len needs a value"),
        ("-tp 8", "names no model"),
        ("m other", "'other' belongs to no flag"),
        ("m --enable-prefix-caching=true", "takes no value"),
        (
            "m --kv-transfer-config {a:1}",
            r"--kv-transfer-config, word 3: not valid JSON at character 2 .*quotes away.*'{a:1}'",
        ),
        ("""m --kv-transfer-config '{"a":1,}'""", "at character 8"),
        ("m --kv-transfer-config 3", "no JSON mapping"),
        ("m --nothing.at.all 3", "--nothing is no flag"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parsed(text)


@pytest.mark.parametrize(
    ("text", "said"), [("eight", "not a whole number"), ("$TP", "variable that is not set"), ("1.5", "whole")]
)
def test_a_value_that_is_no_number_names_its_flag(text: str, said: str) -> None:
    with pytest.raises(InputError, match=rf"--tensor-parallel-size .*{said}"):
        parse_flags(["m", "-tp", text], where="--serve").whole("tensor-parallel-size", 1)


def test_each_flag_stands_in_one_table() -> None:
    kinds = [table.values(), table.switches(), table.JSON]
    assert sum(map(len, kinds)) == len(frozenset().union(*kinds))
    assert table.values() >= table.MANY
    assert {name.removeprefix("--") for name in table.SHORT.values()} <= frozenset().union(*kinds)
