"""What is recorded of requests' loads and preemptions, and of hot buffers."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from small_runs import CONVERSATIONS, run

# Eight clients whose long answers outgrow a pool of three or four of their conversations.
GROWING = CONVERSATIONS | {
    "concurrency": 8,
    "conversations": 12,
    "first_prompt_tokens": 1000,
    "output_tokens": 400,
}
FULL = {"num_gpu_blocks": 130, "max_model_len": 3800, "kv_offload_gib": 16}


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    folder: Path = tmp_path_factory.mktemp("run")
    run(GROWING, mode="offload", engine=FULL).write(folder)
    return pd.read_parquet(folder / "requests.parquet")


def test_a_load_lies_between_arrival_and_first_schedule(requests: pd.DataFrame) -> None:
    loaded = requests.dropna(subset=["load_start_s"])
    assert 0 < len(loaded) < len(requests)
    times = loaded[["arrival_s", "load_start_s", "load_end_s", "first_scheduled_s"]].to_numpy()
    assert (times[:, 1:] >= times[:, :-1]).all()
    assert (loaded["load_end_s"] > loaded["load_start_s"]).all()


def test_each_preemption_has_its_end(requests: pd.DataFrame) -> None:
    assert requests["preemptions"].sum() > 0
    for row in requests.itertuples():
        out_and_in = list(row.preempted_s)
        assert len(out_and_in) == 2 * row.preemptions
        assert out_and_in == sorted(out_and_in)
        assert not out_and_in or row.first_scheduled_s <= out_and_in[0] <= out_and_in[-1] <= row.finish_s


def test_a_run_without_preemptions_has_the_same_columns(tmp_path: Path, requests: pd.DataFrame) -> None:
    run(CONVERSATIONS).write(tmp_path)
    pd.testing.assert_series_equal(pd.read_parquet(tmp_path / "requests.parquet").dtypes, requests.dtypes)


def test_hot_buffers_are_there_while_pages_are_on_the_host_only() -> None:
    result = run(CONVERSATIONS, engine={"num_gpu_blocks": 7000})
    groups = result.summary["pools"]["resident_groups"]
    assert groups == 20
    assert any(row.hot_blocks for row in result.step_rows)
    for row in result.step_rows:
        assert row.hot_blocks % groups == 0
        assert row.hot_blocks or not row.host_only_pages
        assert row.hot_blocks + row.resident_pages + row.host_only_pages <= 7000
    assert run(CONVERSATIONS, mode="resident").summary["pools"]["resident_groups"] is None
