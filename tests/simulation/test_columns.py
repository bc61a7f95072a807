"""What Parquet files hold is what was written, whatever is missing, empty or not Unicode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse_sim.simulation.arrow import lists, numbers, strings
from hisparse_sim.simulation.columns import request_batches, write_batches
from hisparse_sim.simulation.record import RequestRecord

WHOLE = st.none() | st.integers(-(2**62), 2**62)
FLOATS = st.floats(allow_nan=False)


@given(st.lists(WHOLE, max_size=70), st.lists(st.none() | FLOATS, max_size=70))
def test_numbers_are_the_same_with_and_without_nulls(whole, floats):
    for values, kind in ((whole, np.int64), (floats, np.float64)):
        array = numbers(values, kind)
        array.validate(full=True)
        assert array.to_pylist() == values


@given(st.lists(st.none() | st.text(), max_size=20), st.lists(st.lists(FLOATS, max_size=4), max_size=20))
def test_texts_and_lists_are_the_same(texts, several):
    for array, values in ((strings(texts), texts), (lists(several), several)):
        array.validate(full=True)
        assert array.to_pylist() == values


def test_text_that_is_no_unicode_is_escaped():
    assert strings(["é", None, "a\udcff"]).to_pylist() == ["é", None, r"a\udcff"]


RECORDS = [
    RequestRecord("日本", "s", 0.5, 10, 3, 1.0, 2.0, 4.0, 4.0, 3, 0, status="completed", tenant="金"),
    RequestRecord("", "", 1.5, 20, 3, preempted_s=(2.0, 3.0, 4.0)),
    RequestRecord("x", "s", 2.5, 30, 3, status="failed", reason="größer"),
]


@pytest.mark.parametrize("count", range(len(RECORDS) + 1))
def test_requests_read_back_the_same_with_pyarrow_and_pandas(tmp_path: Path, count: int) -> None:
    path = tmp_path / "requests.parquet"
    write_batches(path, request_batches(RECORDS[:count], "under way"))
    table, frame = pq.read_table(path), pd.read_parquet(path)
    table.validate(full=True)
    expected = {
        "request_id": ["日本", "", "x"],
        "tenant": ["金", None, None],
        "hit_tokens": [0, None, None],
        "ttft_s": [1.5, None, None],
        "preempted_s": [[], [2.0, 3.0, 4.0], []],
        "reason": ["", "under way", "größer"],
    }
    for name, values in expected.items():
        assert table[name].to_pylist() == values[:count]
        assert [None if np.size(v) == 1 and pd.isna(v) else v for v in frame[name].map(_plain)] == values[
            :count
        ]
    assert frame["hit_tokens"].dtype == "Int64"


def _plain(value: object) -> object:
    return value.tolist() if isinstance(value, np.ndarray) else value
