"""Fields and values of a sweep, as people write them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse_sim.errors import InputError
from hisparse_sim.planning.axes import Axis, combined, crossed, paired, parse_axis, read_csv


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("128,256,512", (128, 256, 512)),
        ("1..4", (1, 2, 3, 4)),
        ("1..64:log", (1, 2, 4, 8, 16, 32, 64)),
        ("1..50:log", (1, 2, 4, 8, 16, 32, 50)),
        ("3..3:log", (3,)),
        ("0..1:5", (0, 0.25, 0.5, 0.75, 1)),
        ("0.5..2.5:3", (0.5, 1.5, 2.5)),
        ("1..100:log3", (1, 10, 100)),
        ("8,1..4:log,64", (8, 1, 2, 4, 64)),
        ("hisparse,offload", ("hisparse", "offload")),
        ("true,false", (True, False)),
        ("8k,auto", ("8k", "auto")),
        ("{kind: uniform, low: 1, high: 2},7", ({"kind": "uniform", "low": 1, "high": 2}, 7)),
    ],
)
def test_values_are_listed_counted_or_doubled(text: str, values: tuple[Any, ...]) -> None:
    found = parse_axis(f"a.b={text}").values
    whole = text.startswith("0..1:5")
    assert found == ((0, 1) if whole else values)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a.b", "is not path=values"),
        ("=1", "is not path=values"),
        ("a.b=", "holds no value"),
        ("a.b=1,,2", "not valid YAML"),
        ("a.b=8..1", "runs backwards"),
        ("a.b=0..8:log", "begins at 0"),
        ("a.b=0.5..8", "say how many"),
        ("a.b=0..9999999", "more than 1,000,000 values"),
        ("a.b=0..1:0", "give 1 to"),
        ("a.b=~", "empty value"),
    ],
)
def test_what_is_no_list_of_values_is_named(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_axis(text)


@given(low=st.integers(1, 10**6), more=st.integers(0, 10**6))
def test_doubling_begins_and_ends_where_it_is_told_and_never_falls(low: int, more: int) -> None:
    values = parse_axis(f"x={low}..{low + more}:log").values
    assert (values[0], values[-1]) == (low, low + more)
    assert all(a < b <= 2 * a for a, b in pairwise(values))


def test_a_grid_has_every_combination_and_pairs_go_together() -> None:
    axes = [Axis("a", (1, 2)), Axis("b", ("x", "y"))]
    assert crossed(axes) == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"}]
    assert paired(axes) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    with pytest.raises(InputError, match="a has 2, b has 1"):
        paired([Axis("a", (1, 2)), Axis("b", (1,))])
    with pytest.raises(InputError, match="varied twice"):
        crossed([Axis("a", (1,)), Axis("a", (2,))])


def test_a_csv_gives_a_point_a_row_which_a_grid_multiplies(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    path.write_text("engine.tp, workload.concurrency\n8, 1\n4, 2\n\n")
    rows = read_csv(path)
    assert rows == [
        {"engine.tp": 8, "workload.concurrency": 1},
        {"engine.tp": 4, "workload.concurrency": 2},
    ]
    assert len(combined(crossed([Axis("seed", (1, 2, 3))]), rows)) == 6
    with pytest.raises(InputError, match="column of the CSV file"):
        combined([{"engine.tp": 1}], rows)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\n", "holds no points"),
        ("a,a\n1,2\n", "points.csv:1: column 'a' stands there twice"),
        ("a b\n1\n", "is no field"),
        ("a,b\n1\n", "points.csv:2: has 1 cells and the header 2"),
        ("a,b\n1,\n", "points.csv:2: b: is empty"),
    ],
)
def test_what_is_wrong_with_a_csv_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "points.csv").write_text(text)
    with pytest.raises(InputError, match=said):
        read_csv(tmp_path / "points.csv")
