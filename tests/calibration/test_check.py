"""Scores: strata, targets, rows outside, without a model and without a time; and the noise beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hisparse_sim.calibration.check import Score, check, neighbour_errors
from hisparse_sim.cost.profile import load_profile
from hisparse_sim.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "measured" / "h200"
needs_tables = pytest.mark.skipif(not SHARED.is_dir(), reason="the measured H200 tables are not at hand")
PROFILE = load_profile("h200-published")
KEYS = {
    "name",
    "stratum",
    "n",
    "median_abs_rel",
    "p90_abs_rel",
    "max_abs_rel",
    "target",
    "out_of_domain",
    "unmodelled",
    "zero_latency",
}


def _decode(**columns: Any) -> pd.DataFrame:
    rows = {
        "kernel_source": "FLASHMLA_SPARSE",
        "model": "zai-org/GLM-5",
        "kv_cache_dtype": "fp8",
        "gemm_type": "fp8_block",
        "num_heads": 8,
        "batch_size": [1, 8, 64, 256],
        "isl": 1,
        "tp_size": 1,
        "step": 65_535,
        "device": "NVIDIA H200",
    } | columns
    found = pd.DataFrame(rows)
    at = {
        "batch": found["batch_size"].to_numpy(float),
        "context_tokens": found["step"].to_numpy(float) + 1,
    }
    exact = PROFILE.term("dsa.decode.vllm.glm.h8.fp8").evaluate(at)
    if "latency" not in found:
        found["latency"] = 1e3 * exact
    return found


def _save(folder: Path, rows: pd.DataFrame, name: str = "dsa_decode_module_vllm_0.24.0") -> None:
    rows.to_parquet(folder / f"{name}.parquet")


def _only(folder: Path) -> Score:
    (score,) = check(PROFILE, folder).scores
    return score


def test_rows_that_the_profile_predicts_exactly_have_no_error(tmp_path: Path) -> None:
    _save(tmp_path, _decode())
    score = _only(tmp_path)
    assert (score.name, score.stratum, score.n, score.target) == (
        "dsa_decode_module_vllm_0.24.0", "all", 4, True,
    )  # fmt: skip
    assert score.max_abs_rel == pytest.approx(0.0, abs=1e-9) and score.met is True


def test_errors_are_of_the_measured_time(tmp_path: Path) -> None:
    rows = _decode()
    _save(tmp_path, rows.assign(latency=rows["latency"] * [1.0, 0.5, 1.25, 2.0]))
    score = _only(tmp_path)
    assert score.median_abs_rel == pytest.approx((0.2 + 0.5) / 2)
    assert score.max_abs_rel == pytest.approx(1.0)
    assert score.met is False


def test_rows_outside_unmodelled_and_without_a_time_are_counted_apart(tmp_path: Path) -> None:
    rows = _decode(step=[65_535, 65_535, 65_535, 1_048_575])
    rows["gemm_type"] = ["fp8_block", "int4", "fp8_block", "fp8_block"]
    rows["latency"] = rows["latency"] * [1.0, 1.0, 0.0, 1.0]
    _save(tmp_path, rows)
    score = _only(tmp_path)
    assert (score.n, score.out_of_domain, score.unmodelled, score.zero_latency) == (2, 1, 1, 1)


def test_rows_that_no_law_can_price_are_counted_and_never_stop_a_check(tmp_path: Path) -> None:
    rows = _decode(step=[65_535.0, np.nan, np.inf, -9.0])
    rows["latency"] = 1.0
    _save(tmp_path, rows)
    prefill = _decode(op_name=["x", "x", None, "x"], isl=[1e12, 2048, 2048, 0], model="GLM", latency=2.0)
    _save(
        tmp_path, prefill.assign(kernel_source="sglang_dsa_indexer_flashmla_kv", batch_size=1, step=0),
        "dsa_prefill_module_sglang_0.5.14",
    )  # fmt: skip
    decode, *others = check(PROFILE, tmp_path).scores
    assert (decode.n, decode.unmodelled, decode.zero_latency) == (1, 3, 0)
    assert sum(s.n + s.unmodelled for s in others) == 4 and sum(s.unmodelled for s in others) >= 2
    _save(tmp_path, _decode(latency=[np.nan, np.inf, -1.0, 1.0]))
    found = check(PROFILE, tmp_path)
    assert (found.scores[0].n, found.scores[0].zero_latency) == (1, 3)
    json.dumps(found.as_json(), allow_nan=False)


def test_every_row_is_counted_in_one_stratum_and_each_known_stratum_is_there(tmp_path: Path) -> None:
    rows = pd.DataFrame({"op_name": ["all_reduce", "send"], "num_gpus": 8, "message_size": 2**20})
    rows = rows.assign(nccl_dtype="half", latency=0.03)
    _save(tmp_path, rows, "nccl_2.29.2")
    found = {s.stratum: (s.n, s.unmodelled) for s in check(PROFILE, tmp_path).scores}
    assert found == {
        "all_gather": (0, 0),
        "all_reduce": (1, 0),
        "alltoall": (0, 0),
        "reduce_scatter": (0, 0),
        "send": (0, 1),
    }
    _save(tmp_path, rows[:0], "nccl_2.29.2")
    assert [s.stratum for s in check(PROFILE, tmp_path).scores] == list(found)[:4]


def test_without_scipy_no_target_is_judged_by_rows_the_fit_has_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pd.DataFrame({"num_gpus": 8, "message_size": 2 ** np.arange(8, 26), "backend": "vllm_graph"})
    at = {"bytes": rows["message_size"].to_numpy(float) * 2}
    rows["latency"] = 1e3 * PROFILE.term("allreduce.gpus8").evaluate(at)
    _save(tmp_path, rows, "allreduce_custom_vllm_0.24.0")
    monkeypatch.setattr("hisparse_sim.calibration.check.find_spec", lambda name: None)
    found = check(PROFILE, tmp_path)
    graph = next(s for s in found.scores if s.stratum == "vllm_graph")
    assert (graph.n, graph.method, graph.target, graph.met) == (18, "fitted", True, None)
    assert "hisparse-sim[fit]" in found.warnings[0]


def test_nothing_scored_gives_null_figures(tmp_path: Path) -> None:
    _save(tmp_path, _decode(gemm_type="int4"))
    data = check(PROFILE, tmp_path).as_json()
    (entry,) = data["tables"]
    assert set(entry) >= KEYS
    assert (entry["n"], entry["median_abs_rel"], entry["p90_abs_rel"], entry["max_abs_rel"]) == (
        0, None, None, None,
    )  # fmt: skip
    assert entry["unmodelled"] == 4 and json.dumps(data, allow_nan=False)


def test_prefill_is_split_by_indexer_and_at_1024_new_tokens(tmp_path: Path) -> None:
    rows = _decode(
        op_name=["dsa_context_module", "dsa_context_module", "dsa_context_module", "x_skip_indexer"],
        kernel_source="sglang_dsa_indexer_flashmla_kv",
        model="zai-org/GLM-5-FP8",
        isl=[512, 1024, 2048, 4096],
        batch_size=[2, 2, 1, 1],
        step=4096,
        latency=2.0,
    )
    _save(tmp_path, rows, "dsa_prefill_module_sglang_0.5.14")
    found = {s.stratum: (s.n, s.target) for s in check(PROFILE, tmp_path).scores}
    assert found == {
        "with indexer, above 1,024 new tokens": (2, True),
        "with indexer, to 1,024 new tokens": (1, False),
        "without indexer, above 1,024 new tokens": (1, False),
        "without indexer, to 1,024 new tokens": (0, False),
    }


def test_the_data_of_another_gpu_are_warned_about_with_both_names(tmp_path: Path) -> None:
    _save(tmp_path, _decode(device="NVIDIA B200"))
    (warning,) = check(PROFILE, tmp_path).warnings
    assert "NVIDIA B200" in warning and "NVIDIA H200" in warning


def test_neighbours_are_taken_along_one_axis_with_all_else_equal() -> None:
    batch = np.array([1.0, 1, 1, 8, 8, 8])
    step = np.array([10.0, 100, 1000, 10, 100, 1000])
    seconds = np.array([1.0, 2.0, 4.0, 1.0, 4.0, 4.0])
    errors = neighbour_errors({"batch": batch, "step": step}, seconds)
    assert np.isnan(errors[[0, 2, 3, 5]]).all()
    assert errors[[1, 4]] == pytest.approx([0.0, -0.5])


def test_a_path_without_anything_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no samples file and no table"):
        check(PROFILE, tmp_path)
    with pytest.raises(InputError, match="no such file or folder"):
        check(PROFILE, tmp_path / "absent")


@needs_tables
def test_the_targets_are_met_on_the_tables_at_hand() -> None:
    pytest.importorskip("scipy", reason="leaving rows out needs the extra `fit`")
    scores = check(PROFILE, SHARED).scores
    targets = {(s.name, s.stratum): s for s in scores if s.target}
    assert len(targets) == 6
    assert all(s.met for s in targets.values())
    reduce = targets["allreduce_custom_vllm_0.24.0", "vllm_graph"]
    assert reduce.method == "leave-one-out" and reduce.n == 69
    topk = next(s for s in scores if s.name.startswith("glm5_topk"))
    assert topk.n == 0 and topk.zero_latency == 1818
    noisy = next(s for s in scores if s.stratum == "without indexer, above 1,024 new tokens" and s.n)
    assert noisy.neighbour_p90_abs_rel and noisy.neighbour_p90_abs_rel > 0.3
