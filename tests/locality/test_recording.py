"""Recordings: both formats, what is refused and where, and that a fit finds what was drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hisparse_sim.cli.main import run
from hisparse_sim.errors import InputError
from hisparse_sim.locality.figures import read_figures
from hisparse_sim.locality.file import load_locality
from hisparse_sim.locality.fit import fit_figures, leave_one_out
from hisparse_sim.locality.recorded_fit import fit_recording
from hisparse_sim.locality.recording import read_recording
from hisparse_sim.locality.reuse import Process
from hisparse_sim.locality.selection import sample

SMALL = np.arange(24, dtype=np.int32).reshape(3, 2, 4)
"""Three steps of two layers; top-k 4."""


def npy(folder: Path, data: np.ndarray) -> Path:
    path = folder / "rows.npy"
    np.save(path, data)
    return path


def parquet(folder: Path, **columns: object) -> Path:
    path = folder / "rows.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def columns(data: np.ndarray = SMALL) -> dict[str, object]:
    steps, layers, _ = data.shape
    return {
        "step": np.repeat(np.arange(steps), layers),
        "layer": np.tile(np.arange(layers), steps),
        "positions": data.reshape(steps * layers, -1).tolist(),
    }


def refused(path: Path, **how: int) -> str:
    with pytest.raises(InputError) as found:
        for _ in read_recording(path, **how).each():
            pass
    assert str(path) in str(found.value)
    return found.value.message


@pytest.mark.parametrize("data", [SMALL[:, 0], SMALL, SMALL[:, :, None]])
def test_arrays_of_two_to_four_dimensions_are_read(tmp_path: Path, data: np.ndarray) -> None:
    found = read_recording(npy(tmp_path, data))
    assert (found.steps, found.queries, found.topk_rows) == (3, 1, 4)
    assert (found.layer(0)[:, 0] == SMALL[:, 0]).all()


def test_both_formats_hold_the_same(tmp_path: Path) -> None:
    data = SMALL.copy()
    data[1, 1, 3] = -1
    lists = columns(data)
    lists["positions"] = [[p for p in row if p >= 0] for row in data.reshape(6, 4).tolist()]
    one, other = read_recording(npy(tmp_path, data)), read_recording(parquet(tmp_path, **lists))
    for a, b in zip(one.each(), other.each(), strict=True):
        assert (a == b).all()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (SMALL.astype(float), "holds float64; positions are integers"),
        (SMALL[0, 0], r"has shape [4]; right is [steps, top-k]"),
        (SMALL[:0], "holds nothing"),
        (np.where(SMALL == 13, -7, SMALL), "step 1, layer 1: position -7 is negative"),
        (np.where(SMALL == 13, 12, SMALL), "step 1, layer 1: position 12 is there twice"),
        (np.where(SMALL == 13, 1 << 30, SMALL), "step 1, layer 1: position 1,073,741,824 is none"),
    ],
)
def test_a_bad_array_is_refused_with_its_place(tmp_path: Path, data: np.ndarray, words: str) -> None:
    assert words in refused(npy(tmp_path, data))


def test_a_position_beyond_the_context_is_refused_with_its_step(tmp_path: Path) -> None:
    path = npy(tmp_path, SMALL)
    assert read_recording(path, context_tokens=22).layer(1) is not None
    message = refused(path, context_tokens=21)
    assert message.startswith("step 2, layer 1: position 23 is beyond the context of 23 tokens")


def test_a_recording_of_another_model_is_refused(tmp_path: Path) -> None:
    assert "selections of 4 rows, the model selects 2,048" in refused(npy(tmp_path, SMALL), topk_rows=2048)


def test_truncated_files_are_refused(tmp_path: Path) -> None:
    for path in (npy(tmp_path, SMALL), parquet(tmp_path, **columns())):
        path.write_bytes(path.read_bytes()[:-20])
        assert "truncated" in refused(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"positions": None}, "has no column 'positions'"),
        ({"step": [0.5] * 6}, "column 'step' holds double; it holds integers"),
        ({"positions": [1] * 6}, "column 'positions' holds int64"),
        ({"positions": [[1.5]] * 6}, "lists of double"),
        ({"step": [0] * 6}, "step 0, layer 0 is there twice; one request a file"),
        ({"step": [0, 0, 1, 1, 2, 3]}, "lacks step 2 of layer 1"),
    ],
)
def test_a_bad_table_is_refused(tmp_path: Path, change: dict[str, object], words: str) -> None:
    given = {name: value for name, value in (columns() | change).items() if value is not None}
    assert words in refused(parquet(tmp_path, **given))


def test_a_fit_finds_the_process_that_was_drawn(tmp_path: Path) -> None:
    drawn = [Process(0.6, 0.5), Process(0.7, 0.5), Process(0.1, 0.5)]
    path = npy(tmp_path, sample(drawn, topk_rows=256, context_rows=16_384, steps=300, seed=2))
    found = fit_recording(read_recording(path), name="drawn", digest="")
    high, low = found.classes
    assert (high.name, low.name) == ("layers 0-1", "layers 2")
    assert high.step_overlap == pytest.approx(0.65, abs=0.02) and low.step_overlap == pytest.approx(
        0.1, abs=0.02
    )
    assert high.overlap_spread == pytest.approx(0.05, abs=0.02)
    assert high.tail_exponent == pytest.approx(0.5, abs=0.08)
    for row in found.fit:
        assert row.fitted == pytest.approx(row.given, rel=0.08)


def test_shipped_localities_are_those_that_the_figures_give() -> None:
    table = Path(__file__).resolve().parents[2] / ".." / "shared" / "validation" / "locality.csv"
    if not table.exists():
        pytest.skip("the published table is not here")
    figures = read_figures(table)
    fits = fit_figures(figures)
    shipped = {name: load_locality(name) for name in ("glm-5.1", "deepseek-v3.2", "deepseek-v4-flash")}
    for locality in shipped.values():
        fit = fits[locality.model]
        for c in locality.classes:
            overlap = fit.overlap[locality.model, c.name.removeprefix("layers ")]
            assert c.step_overlap == pytest.approx(overlap, abs=1e-4)
    # Two parameters, six figures: each is predicted by the others within 12 %.
    glm = [f for f in figures if f.model == "GLM-5.1"]
    for row in leave_one_out(glm, fits):
        assert row.left_out == pytest.approx(row.given, rel=0.12)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model,quantity,policy,buffer_rows,layers,value,colour\n", "column 'colour' is unknown"),
        ("model,quantity\n", "lacks the column"),
        (
            "model,quantity,policy,buffer_rows,layers,value\nGLM-5.1,miss_rate,LRU,1024,all,0.3\n",
            "smaller than the top-k",
        ),
        ("model,quantity,policy,buffer_rows,layers,value\nGLM-5.1,miss_rate,LRU,4096,all,1.3\n", "value"),
        (
            "model,quantity,policy,buffer_rows,layers,value\nX,miss_rate,LRU,4096,all,.3\n",
            "top-k of 'X' is not known",
        ),
        (
            "model,quantity,policy,buffer_rows,layers,value\nGLM-5.1,miss_rate,MRU,4096,all,.3\n",
            "'MRU' is none of",
        ),
    ],
)
def test_a_bad_table_of_figures_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "figures.csv"
    path.write_text(text)
    with pytest.raises(InputError) as found:
        read_figures(path)
    assert words in str(found.value) and str(path) in str(found.value)


def test_the_commands_go_from_a_sample_to_a_fit_a_replay_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, mine, picture = (str(tmp_path / name) for name in ("rows.npy", "mine.yaml", "mine.png"))
    size = ["--steps", "60", "--context", "4000", "--topk", "64"]
    assert run(["locality", "sample", "glm-5.1", "--out", rows, *size]) == 0
    assert run(["locality", "fit", rows, "--out", mine]) == 0
    assert load_locality(mine).topk_rows == 64
    assert (
        run(["locality", "replay", rows, "--hot-rows", "64,128", "--policy", "lru,belady", "--against", mine])
        == 0
    )
    assert len(capsys.readouterr().out.strip().splitlines()) >= 5
    assert run(["locality", "plot", mine, "--out", picture]) == 0
    assert Path(picture).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--hot-rows", "3"], "3 rows are fewer than the top-k of rows.npy, 4"),
        (["--policy", "mru"], "'mru' is none of"),
        (["--since", "3"], "past the last step, 2"),
        (["--model", "glm-5.3"], "the model selects 2,048"),
        (["--model", "kimi-k2"], "selects no rows"),
        (["--against", "nothing"], "unknown locality 'nothing'"),
    ],
)
def test_a_replay_refuses_what_it_cannot_do(
    tmp_path: Path, flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["locality", "replay", str(npy(tmp_path, SMALL)), *flags]) == 2
    assert words in capsys.readouterr().err
