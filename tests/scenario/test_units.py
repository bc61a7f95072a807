"""Counts of tokens with k and M."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.units import human_bytes, parse_tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("8192", 8192),
        (8192, 8192),
        ("8k", 8192),
        ("128K", 131072),
        ("1M", 1048576),
        ("1m", 1048576),
        ("0.5k", 512),
        ("1.5M", 1572864),
        ("81,920", 81920),
        ("1_000_000", 1000000),
        (" 4 k ", 4096),
    ],
)
def test_k_is_1024_and_m_is_1048576(text: str | int, tokens: int) -> None:
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize("text", ["", "0", "-8k", "8q", "8kk", "k", "1e6", "8 192", "0.3", "inf", "8KiB"])
def test_what_is_no_number_of_tokens_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match=r"--context: .*8k \(k = 1,024\)"):
        parse_tokens(text, where="--context")


@given(st.integers(1, 10**9))
def test_every_whole_number_reads_back(tokens: int) -> None:
    assert parse_tokens(str(tokens)) == parse_tokens(f"{tokens:,}") == tokens
    assert parse_tokens(f"{tokens}k") == tokens * 1024


@given(st.text(max_size=12))
def test_any_text_is_a_number_or_an_input_error(text: str) -> None:
    with contextlib.suppress(InputError):
        assert parse_tokens(text) > 0


def test_bytes_are_shown_in_binary_units() -> None:
    assert human_bytes(143_771 * 2**20) == "140.4 GiB"
    assert human_bytes(2 * 2**40) == "2.0 TiB"
    assert human_bytes(656) == "656 B"
