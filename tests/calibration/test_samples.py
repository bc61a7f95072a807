"""A samples file survives writing and reading; broken ones are refused by file and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hisparse_sim.calibration.samples import Sample, Samples, read_samples, write_samples
from hisparse_sim.cost.hardware import Hardware, same_gpu
from hisparse_sim.errors import InputError


def _one(**changes: Any) -> dict[str, Any]:
    sample = {
        "name": "gather",
        "parameters": {"rows": 2048, "row_bytes": 656, "locality": "random"},
        "unit": "s",
        "median_s": 5e-5,
        "p10_s": 4.9e-5,
        "p90_s": 5.2e-5,
        "n": 31,
        "floor_s": 2.86e-5,
        "status": "ok",
    } | changes
    return {k: v for k, v in sample.items() if v != "absent"}


def _file(path: Path, **changes: Any) -> Path:
    whole = {"schema": "hisparse-sim/samples/1", "hardware": {"gpu": "NVIDIA H200"}, "samples": [_one()]}
    path.write_text(json.dumps(whole | changes))
    return path


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    samples = Samples(
        hardware=Hardware(gpu="NVIDIA H200", sms=132),
        samples=(
            Sample.model_validate(_one()),
            Sample(name="spill", unit="s", status="truncated", reason="budget of 170 s used up"),
        ),
    )
    write_samples(tmp_path / "s.json", samples)
    again = read_samples(tmp_path / "s.json")
    assert again == samples
    assert [s.name for s in again.measured] == ["gather"]
    assert list(tmp_path.iterdir()) == [tmp_path / "s.json"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"unit": "absent"}, "unit: missing"),
        ({"unit": "ms"}, "'ms' is not one of 's'"),
        ({"median_s": -5e-5}, "median_s: -5e-05 is not allowed, must be more than 0"),
        ({"median_s": float("nan")}, "not a finite number"),
        ({"median_s": None}, "needs median_s"),
        ({"p10_s": 6e-5}, "must not fall"),
        ({"status": "failed"}, "yet has figures"),
        ({"status": "lost"}, "'lost' is not one of"),
        ({"parameters": {"rows": [1, 2]}}, "parameters.rows"),
        ({"meidan_s": 1.0}, "meidan_s: unknown field; did you mean 'median_s'"),
    ],
)
def test_a_broken_sample_is_refused_by_field(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path = _file(tmp_path / "broken.json", samples=[_one(), _one(**changes)])
    with pytest.raises(InputError, match=r"broken\.json") as caught:
        read_samples(path)
    assert "samples.1" in str(caught.value)
    assert said in str(caught.value)


def test_a_status_without_figures_says_why() -> None:
    with pytest.raises(ValueError, match="without a reason"):
        Sample(name="spill", unit="s", status="skipped")


def test_other_files_are_refused_in_one_line(tmp_path: Path) -> None:
    whole = _file(tmp_path / "s.json").read_text()
    (tmp_path / "cut.json").write_text(whole[:80])
    for name, text, said in (
        ("cut.json", whole[:80], "truncated"),
        ("future.json", whole.replace("samples/1", "samples/2"), "this version reads"),
        ("list.json", "[1]", "holds a list"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(InputError, match=said):
            read_samples(tmp_path / name)
    with pytest.raises(InputError, match="cannot be read"):
        read_samples(tmp_path / "absent.json")
    with pytest.raises(InputError, match="cannot be written"):
        write_samples(tmp_path / "no" / "s.json", Samples(hardware=Hardware(gpu="NVIDIA H200")))


def test_one_kind_of_gpu_has_many_names() -> None:
    assert same_gpu("NVIDIA H200", "H200 SXM5 141GB")
    assert same_gpu("NVIDIA A100-SXM4-80GB", "a100")
    assert same_gpu("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000")
    assert not same_gpu("NVIDIA H200", "H100 SXM5 80GB")
    assert not same_gpu("NVIDIA B200", "GB200")
