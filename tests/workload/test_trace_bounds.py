"""No number of a trace or a workload is too large to be said so in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.validate import build
from hisparse_sim.scenario.workload import SeededWorkload, TraceSpec
from hisparse_sim.workload import make_workload
from hisparse_sim.workload.lengths import draw_counts

HUGE = ["99999999999999999999", "1000000000000000", "1e15", "1e400", "inf", "9" * 5000]


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        make_workload(TraceSpec(path=path), 0)
    assert caught.value.where is not None and str(path) in caught.value.where
    return str(caught.value)


@pytest.mark.parametrize("huge", HUGE)
@pytest.mark.parametrize("column", [1, 2])
def test_no_table_has_a_length_beyond_bounds(tmp_path: Path, huge: str, column: int) -> None:
    row = ["2023-11-16 18:17:03.9799600", "10", "10"]
    row[column] = huge
    path = tmp_path / "t.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + ",".join(row) + "\n")
    assert f"{path}:2: " in refused(path)


@pytest.mark.parametrize("huge", ["99999999999999999999", "1000000000000000", "1e15", "1e400"])
@pytest.mark.parametrize("field", ["prompt_tokens", "output_tokens", "arrival_s", "delay_s", "priority"])
def test_no_line_has_a_number_beyond_bounds(tmp_path: Path, huge: str, field: str) -> None:
    row = {"arrival_s": "0", "prompt_tokens": "9", "output_tokens": "9", "session": '"a"', "delay_s": "0"}
    path = tmp_path / "t.jsonl"
    lines = [row, row | {"session": '"b"', field: huge}]
    path.write_text("".join("{" + ", ".join(f'"{k}": {v}' for k, v in r.items()) + "}\n" for r in lines))
    assert f"{path}:2: " in refused(path)


@pytest.mark.parametrize("column", ["arrival_s", "prompt_tokens", "output_tokens"])
def test_no_parquet_has_a_number_beyond_bounds(tmp_path: Path, column: str) -> None:
    row = {"arrival_s": 0.0, "prompt_tokens": 10, "output_tokens": 10} | {column: 10**15}
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({name: [value] for name, value in row.items()}), path)
    refused(path)


@pytest.mark.parametrize(
    "change", [{"in": 10**20}, {"out": 10**20}, {"t": 1e300}, {"api_time": 1e300}, {"think_time": 1e300}]
)
def test_no_session_has_a_number_beyond_bounds(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "s.json"
    request = {"t": 0, "in": 64, "out": 3, "hash_ids": [1]} | change
    path.write_text(json.dumps({"id": "s", "block_size": 64, "requests": [request]}))
    assert "at most" in refused(path)


@pytest.mark.parametrize("change", [{"input_lens": [10**20]}, {"output_lens": [1e300]}])
def test_no_benchmark_has_a_number_beyond_bounds(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "b.json"
    path.write_text(json.dumps({"input_lens": [9], "output_lens": [9], "max_concurrency": 1} | change))
    assert "at most" in refused(path)


@pytest.mark.parametrize("date", ["9999-11-16 10:00:00", "1600-11-16 10:00:00"])
def test_a_date_outside_the_clock_is_refused(tmp_path: Path, date: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"timestamp,prompt_tokens,output_tokens\n2023-11-16 10:00:00,1,1\n{date},1,1\n")
    assert "it must be a number or a time" in refused(path)


CONVERSATIONS = {
    "kind": "conversations",
    "turns": 2,
    "first_prompt_tokens": 10,
    "new_tokens_per_turn": 10,
    "output_tokens": 10,
}
LOGNORMAL = {"kind": "lognormal", "median": 1e300, "sigma": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"think_time_s": 1e300},
        {"think_time_s": {"kind": "fixed", "value": 1e10}},
        {"think_time_s": LOGNORMAL},
        {
            "think_time_s": {
                "kind": "mixture",
                "parts": [{"weight": 1, "of": {"kind": "fixed", "value": 1e10}}],
            }
        },
        {"first_prompt_tokens": 10**20},
        {"output_tokens": LOGNORMAL},
        {"shared_prefix_tokens": 10**20},
        {"ramp_up_s": 1e10},
        {"arrivals": {"kind": "even", "rate_per_s": 1e-300}, "conversations": 2},
        {"arrivals": {"kind": "even", "rate_per_s": 1e300}, "conversations": 2},
        {"arrivals": {"kind": "piecewise", "steps": [{"duration_s": 1e300, "rate_per_s": 1}]}},
        {"tools": {"share": 1, "result_tokens": 1, "time_s": 1e10}},
        {"tenants": [{"name": "a", "share": 1e300}]},
    ],
)
def test_no_workload_has_a_number_beyond_bounds(change: dict[str, Any]) -> None:
    build(SeededWorkload, {"workload": CONVERSATIONS}, file="")
    with pytest.raises(InputError, match="workload"):
        build(SeededWorkload, {"workload": CONVERSATIONS | change}, file="")


@pytest.mark.parametrize("field", ["from_s", "to_s", "time_scale"])
def test_no_cut_or_stretch_is_beyond_bounds(field: str) -> None:
    with pytest.raises(InputError, match=field):
        build(SeededWorkload, {"workload": {"kind": "trace", "path": "x", field: 1e300}}, file="")


def test_a_wide_distribution_stays_within_whole_numbers() -> None:
    import numpy as np

    from hisparse_sim.scenario.distributions import LognormalSpec

    values = draw_counts(LognormalSpec(median=1000, sigma=1000), np.random.default_rng(0), 1000)
    assert values.min() >= 1 and values.max() <= 10**12
