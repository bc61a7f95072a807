"""``calibrate import|fit|check|show|diff|schema``: what they print, and one line for each mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hisparse_sim.calibration import tables
from hisparse_sim.cli.main import run
from hisparse_sim.cost.profile import load_profile

H200 = load_profile("h200-published")


def _rows(folder: Path, *, slower: float = 1.0) -> Path:
    rows = pd.DataFrame({"batch_size": [1, 2, 4, 8, 16, 32], "step": 8191})
    at = {
        "batch": rows["batch_size"].to_numpy(float),
        "context_tokens": rows["step"].to_numpy(float) + 1,
    }
    rows["latency"] = 1e3 * slower * H200.term("dsa.decode.vllm.glm.h8.fp8").evaluate(at)
    fixed = {
        "kernel_source": "FLASHMLA_SPARSE", "model": "zai-org/GLM-5", "kv_cache_dtype": "fp8",
        "gemm_type": "fp8_block", "num_heads": 8, "isl": 1, "tp_size": 1, "device": "NVIDIA H200",
    }  # fmt: skip
    rows.assign(**fixed).to_parquet(folder / "dsa_decode_module_vllm_0.24.0.parquet")
    return folder


def _samples(path: Path, *, gpu: str = "NVIDIA H200", **changes: Any) -> Path:
    samples = [
        {"name": "copy_h2d", "parameters": {"bytes": 4096 << i}, "unit": "s", "median_s": t, "p10_s": t,
         "p90_s": t, "n": 21, "status": "ok"}
        for i in range(16)
        for t in [3e-6 + (4096 << i) / 52e9]
    ]  # fmt: skip
    samples[3] |= changes
    data = {"schema": "hisparse-sim/samples/1", "hardware": {"gpu": gpu}, "samples": samples}
    path.write_text(json.dumps(data))
    return path


def test_check_prints_a_line_a_stratum_and_its_exit_code_says_whether_targets_are_met(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["calibrate", "check", "h200-published", "--samples", str(_rows(tmp_path))]) == 0
    out = capsys.readouterr().out
    assert "dsa_decode_module_vllm_0.24.0" in out and "met" in out
    _rows(tmp_path, slower=1.2)
    assert run(["calibrate", "check", "h200-published", "--samples", str(tmp_path), "--json"]) == 1
    (entry,) = json.loads(capsys.readouterr().out)["tables"]
    assert entry["median_abs_rel"] == pytest.approx(1 - 1 / 1.2, abs=1e-6)
    assert entry["target"] is True and entry["n"] == 6
    file = tmp_path / "dsa_decode_module_vllm_0.24.0.parquet"
    assert run(["calibrate", "check", "h200-published", "--samples", str(file), "--json"]) == 1
    capsys.readouterr()
    assert (
        run(["calibrate", "check", "h200-published", "--samples", str(file), "--rows", "kept-out", "--json"])
        == 1
    )
    (kept,) = json.loads(capsys.readouterr().out)["tables"]
    assert kept["n"] == 2


def test_fit_writes_a_profile_that_lies_over_the_published_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("scipy", reason="fitting needs the extra `fit`")
    samples, out = _samples(tmp_path / "s.json"), tmp_path / "box.json"
    assert run(["calibrate", "fit", str(samples), "--out", str(out), "--over", "h200-published"]) == 0
    shown = capsys.readouterr()
    assert "link.h2d" in shown.out and "1 terms" in shown.err and "warning" not in shown.err
    whole = load_profile(out)
    assert whole.id == "box" and 1 / whole.term("link.h2d").value("per_unit_s") == pytest.approx(
        52e9, rel=1e-3
    )
    assert whole.find("overhead.layer") is not None
    assert run(["calibrate", "check", str(out), "--samples", str(samples), "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["tables"]
    assert (entry["name"], entry["stratum"], entry["n"]) == ("s", "link.h2d", 16)
    assert entry["max_abs_rel"] < 1e-3


def test_samples_of_another_gpu_than_the_profile_below_are_warned_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("scipy", reason="fitting needs the extra `fit`")
    samples, out = _samples(tmp_path / "s.json", gpu="NVIDIA H100 80GB HBM3"), tmp_path / "box.json"
    assert run(["calibrate", "fit", str(samples), "--out", str(out), "--over", "h200-published"]) == 0
    warning = capsys.readouterr().err
    assert "NVIDIA H200" in warning and "NVIDIA H100 80GB HBM3" in warning
    at = ["run", "agentic-13turn-8xh200", "--limit", "1", "--no-plots", "--out", str(tmp_path / "r")]
    assert run([*at, "--set", f"calibration={out}"]) == 0
    warning = capsys.readouterr().err
    assert "was measured on NVIDIA H100 80GB HBM3, the node has H200 SXM5 141GB" in warning


def test_show_lists_terms_and_tells_everything_about_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", "show", "h200-published"]) == 0
    listed = capsys.readouterr().out
    assert listed.startswith("h200-published: published, NVIDIA H200") and "allreduce.gpus8" in listed
    assert run(["calibrate", "show", "h200-published", "overhead.layer"]) == 0
    one = capsys.readouterr().out
    assert "uncertainty: 60.0 %" in one and "No measurement found" in one
    assert run(["calibrate", "show", "h200-published", "allreduce.", "--json"]) == 0
    assert [t["id"] for t in json.loads(capsys.readouterr().out)] == [f"allreduce.gpus{n}" for n in (2, 4, 8)]


def test_diff_tells_what_changed_and_what_it_does_to_a_scenario(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads(H200.model_dump_json(by_alias=True))
    layer = next(t for t in data["terms"] if t["id"] == "overhead.layer")
    layer["params"]["value"] *= 2
    data["terms"].remove(next(t for t in data["terms"] if t["id"] == "nccl.all_gather.gpus2"))
    other = tmp_path / "other.json"
    other.write_text(json.dumps(data))
    args = ["calibrate", "diff", "h200-published", str(other), "--scenario", "agentic-13turn-8xh200"]
    assert run([*args, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {t["term"]: t["what"] for t in found["terms"]} == {
        "overhead.layer": "changed", "nccl.all_gather.gpus2": "only in the first",
    }  # fmt: skip
    assert found["terms"][1]["ratio"] == pytest.approx(2.0) or found["terms"][0]["ratio"] == pytest.approx(
        2.0
    )
    for step in found["tpot"]:
        assert step["after_s"] - step["before_s"] == pytest.approx(78 * 10e-6)
    assert run(args) == 0
    assert "overhead.layer" in capsys.readouterr().out
    assert run(["calibrate", "diff", "h200-published", "h200-published"]) == 0
    assert capsys.readouterr().out.strip() == "no term differs"


def test_schemas_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", "schema"]) == 0
    profile = json.loads(capsys.readouterr().out)
    assert run(["calibrate", "schema", "--samples"]) == 0
    samples = json.loads(capsys.readouterr().out)
    assert "terms" in profile["properties"] and "samples" in samples["properties"]
    assert {"unit", "status"} <= set(samples["$defs"]["Sample"]["required"])


MISTAKES = {
    "no gpu": (["import"], "calibrate import: name a GPU of h200"),
    "unknown gpu": (["import", "h201"], "did you mean 'h20"),
    "no package": (["import", "h200"], "hisparse-sim[aiconfigurator]"),
    "many of one folder": (
        ["import", "h200", "h100", "--tables", "."],
        "--tables: holds the tables of one GPU",
    ),
    "no such tables": (["import", "h200", "--tables", "nowhere"], "nowhere: no such folder of tables"),
    "no profile": (["check", "h300", "--samples", "."], "no such calibration profile"),
    "nothing to check": (
        ["check", "h200-published", "--samples", "nowhere"],
        "nowhere: no such file or folder",
    ),
    "which rows": (
        ["check", "h200-published", "--samples", ".", "--rows", "some"],
        "--rows: 'some' is not one of",
    ),
    "no samples": (["fit", "nowhere.json", "--out", "x.json"], "nowhere.json: cannot be read"),
    "gate": (["fit", "s.json", "--out", "x.json", "--gate", "-1"], "--gate: -1 is not allowed"),
    "form": (
        ["fit", "s.json", "--out", "x.json", "--model", "copy_h2d"],
        "--model: 'copy_h2d' is not NAME=FORM",
    ),
    "unknown form": (
        ["fit", "s.json", "--out", "x.json", "--model", "copy_h2d=alpha"],
        "--model: unknown form 'alpha'; did you mean",
    ),
    "no folder": (["fit", "s.json", "--out", "no/x.json"], "no/x.json: cannot be written"),
    "term": (["show", "h200-published", "overhead.lair"], "did you mean 'overhead.layer'"),
    "empty": (["fit", "s.json", "--out", ""], "is empty"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tables, "find_spec", lambda name: None)
    _samples(tmp_path / "s.json")
    args, said = MISTAKES[mistake]
    assert run(["calibrate", *args]) == 2
    shown = capsys.readouterr()
    assert said in shown.err and shown.err.count("\n") == 1 and not shown.out
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"unit": "us"}, "samples.3.unit"),
        ({"median_s": -1.0}, "samples.3.median_s"),
        ({"median_s": float("nan")}, "not a finite number"),
    ],
)
def test_broken_samples_are_refused_by_field_and_nothing_is_written(
    changes: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _samples(tmp_path / "s.json", **changes)
    assert run(["calibrate", "fit", str(path), "--out", str(tmp_path / "x.json")]) == 2
    error = capsys.readouterr().err
    assert said in error and "s.json" in error
    assert not (tmp_path / "x.json").exists()


def test_estimate_and_run_name_the_largest_extrapolation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["estimate", "--model", "glm-5.3", "--node", "8xh200", "--context", "8k,1M", "--json"]
    assert run(args) == 0
    shown = capsys.readouterr()
    assert "furthest: 1,048,576 tokens in context of a request, measured to 131,073 (8 x)" in shown.err
    answer = json.loads(shown.out)
    assert len(answer["time"]["warnings"]) == 1
    near, far = (row["modes"]["hisparse"] for row in answer["rows"])
    assert near["in_domain"] is True and far["in_domain"] is False
    assert 0 < near["tpot_s_uncertainty"] < near["tpot_s"]
    out = tmp_path / "r"
    settings = ["--set", "engine.max_num_batched_tokens=32768", "--limit", "1", "--no-plots"]
    assert run(["run", "agentic-13turn-8xh200", "--out", str(out), *settings]) == 0
    assert "furthest: 32,768 tokens of a step, measured to 16,384 (2 x)" in capsys.readouterr().err
    outside = json.loads((out / "summary.json").read_text())["out_of_domain"]
    assert outside["steps"] >= 1 and outside["stands_in"] == []
    assert outside["furthest"][0]["variable"] == "tokens of a step"
