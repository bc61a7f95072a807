"""Known laws come out of noisy samples again, and lines never fall."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("scipy", reason="fitting needs the extra `fit`")

from hisparse_sim.calibration.experts_fit import KNOTS, Lines, Shape
from hisparse_sim.calibration.fitting import FITTERS, fit, left_out_errors, relative_errors
from hisparse_sim.calibration.prefill_fit import fit_prefill
from hisparse_sim.cost.forms import FORMS
from hisparse_sim.cost.prefill_form import PREFILL_WORK
from hisparse_sim.cost.term import Term
from hisparse_sim.errors import InputError

RNG = np.random.default_rng(7)
N = 240


def _noisy(seconds: np.ndarray, size: float = 0.03) -> np.ndarray:
    return seconds * RNG.normal(1.0, size, len(seconds))


def _batches() -> np.ndarray:
    return 2.0 ** RNG.integers(0, 10, N)


LAWS: dict[str, tuple[dict[str, Any], dict[str, np.ndarray], dict[str, float]]] = {
    "constant": ({"value": 2e-6}, {"any": np.arange(1.0, 60.0)}, {"value": 0.02}),
    "alpha_beta": (
        {"base_s": 5e-6, "per_unit_s": 1 / 55e9},
        {"bytes": np.geomspace(4096, 2**28, N)},
        {"base_s": 0.05, "per_unit_s": 0.02},
    ),
    "inflight_saturation": (
        {"base_s": 4e-6, "saturated_bytes_per_s": 40e9, "block_bytes_per_s": 6e9, "line_bytes": 128.0},
        {
            "rows": np.repeat([1.0, 8, 64, 512, 4096, 32768], 40),
            "row_bytes": np.tile([576.0, 656.0, 1152.0, 656.0], 60),
            "blocks": np.tile(np.repeat([1.0, 2, 4, 8, 64], 8), 6),
        },
        {"base_s": 0.05, "saturated_bytes_per_s": 0.02, "block_bytes_per_s": 0.02},
    ),
    "wave": (
        {"base_s": 6e-6, "wave_s": 12e-6, "slots": 132.0},
        {"batch": np.repeat([1.0, 32, 131, 132, 133, 200, 264, 265, 400], 12)},
        {"base_s": 0.1, "wave_s": 0.05, "slots": 0.0},
    ),
    "module_law": (
        {"base_s": 180e-6, "row_to_64_s": 1.4e-6, "row_past_64_s": 1.0e-6, "context_s": 37.5e-12},
        {"batch": _batches(), "context_tokens": RNG.uniform(3_000, 131_072, N)},
        {"base_s": 0.02, "row_to_64_s": 0.15, "row_past_64_s": 0.1, "context_s": 0.02},
    ),
    "rates": (
        {"base_s": 11e-6, "byte_s": 2.2e-13, "flop_s": 1.4e-15},
        {"read_bytes": np.geomspace(1e5, 1e10, N), "flops": RNG.permutation(np.geomspace(1e8, 1e13, N))},
        {"base_s": 0.05, "byte_s": 0.05, "flop_s": 0.05},
    ),
    "decode_module": (
        {
            "rows": (1.0, 8.0, 64.0, 512.0),
            "rows_s": (90e-6, 100e-6, 150e-6, 500e-6),
            "selected_s": 1e-10,
            "reach_s": 0.0,
            "topk_s": 12e-6,
            "context_s": 37.5e-12,
            "depth_s": 0.0,
            "topk_rows": 2048.0,
        },
        {"batch": RNG.choice([1.0, 8, 64, 512], N), "context_tokens": np.geomspace(2, 131_072, N)},
        {"rows_s": 0.06, "context_s": 0.05},
    ),
}


@pytest.mark.parametrize("form", LAWS)
def test_a_known_law_is_recovered_from_noisy_samples(form: str) -> None:
    truth, variables, tolerances = LAWS[form]
    seconds = _noisy(FORMS[form].evaluate(truth, variables))
    found, errors = fit(form, variables, seconds)
    for name, tolerance in tolerances.items():
        assert found[name] == pytest.approx(truth[name], rel=tolerance or 1e-9), name
    assert errors["holdout"]["median_abs_rel"] < 0.03
    assert errors["residual"]["n"] == errors["holdout"]["n"] == len(seconds)


def test_every_form_that_can_be_fitted_is_known_to_profiles() -> None:
    assert set(FITTERS) <= set(FORMS)


def test_a_slow_tail_moves_the_law_little() -> None:
    x = np.geomspace(1e4, 1e9, 100)
    seconds = 5e-6 + x / 50e9
    seconds[::10] *= 3.0
    found, _ = fit("alpha_beta", {"bytes": x}, seconds)
    assert 1 / found["per_unit_s"] == pytest.approx(50e9, rel=0.05)


def test_a_broken_line_finds_its_bends_and_never_falls() -> None:
    x = np.repeat(np.geomspace(1e3, 1e8, 30), 2)
    seconds = _noisy(5e-6 + np.minimum(x, 1e6) / 60e9 + np.maximum(0.0, x - 1e6) / 250e9, 0.01)
    found, errors = fit("piecewise_linear", {"bytes": x}, seconds)
    assert errors["holdout"]["p90_abs_rel"] < 0.05
    assert len(found["x"]) <= 3
    falling = np.array([5.0, 9, 6, 7, 12, 25])
    line = FITTERS["piecewise_linear"]({"x": np.array([1.0, 10, 100, 1000, 2000, 4000])}, falling)
    assert list(line["y"]) == sorted(line["y"]) and line["tail_slope"] >= 0
    logs = FITTERS["rising_log_log"]({"x": np.array([1.0, 10, 100, 1000, 2000, 4000])}, falling)
    assert list(logs["y"]) == sorted(logs["y"])


def test_a_table_rises_along_each_axis_and_fills_what_nobody_timed() -> None:
    rows, ctas = np.meshgrid([1.0, 10.0, 100.0], [1.0, 8.0])
    variables = {"rows": rows.ravel()[:-1], "ctas": ctas.ravel()[:-1]}
    seconds = np.array([3.0, 2.0, 9.0, 4.0, 5.0])
    params = FITTERS["table"](variables, seconds)
    term = Term(id="t", form="table", unit="s", params=params, source="s", grade="measured")
    assert term.evaluate({"rows": np.array([100.0]), "ctas": np.array([8.0])})[0] >= 9.0
    inner = term.evaluate({"rows": np.array([10**0.5]), "ctas": np.array([8.0])})[0]
    assert 4.0 <= inner <= 5.0


def _chunks() -> dict[str, np.ndarray]:
    new = RNG.choice([16.0, 256, 1024, 2048, 4096, 8192], 600)
    sequences = np.minimum(RNG.choice([1.0, 2, 4], 600), np.maximum(1.0, 8192 // new))
    past = RNG.choice([0.0, 2048, 16_384, 65_536, 150_000], 600)
    return {"sequences": sequences, "new_tokens": new, "past_tokens": past}


def test_launches_and_work_of_a_prefill_module_are_told_apart() -> None:
    shape = {
        "floor_past_tokens": (0.0, 1.0, 98_304.0),
        "floor_s": (0.9e-3, 1.0e-3, 1.5e-3),
        "topk_rows": 2048.0,
        "far_tokens": 65_536.0,
        "many_keys": (131_072.0, 786_432.0),
        "step_keys": (20_000.0, 65_536.0),
        "chunk_tokens": 8192.0,
    }
    work = dict.fromkeys(PREFILL_WORK, 0.0) | {"base_s": 2e-4, "token_s": 7e-7, "pair_s": 1e-11}
    variables = _chunks()
    seconds = _noisy(FORMS["prefill_module"].evaluate({**work, **shape}, variables), 0.02)
    found = fit_prefill(variables, seconds, topk_rows=2048.0, chunk_tokens=8192.0)
    assert found["floor_s"] == pytest.approx(shape["floor_s"], rel=0.02)
    errors = np.abs(relative_errors("prefill_module", found, variables, seconds))
    assert np.median(errors) < 0.02 and np.quantile(errors, 0.9) < 0.06


def test_expert_lines_borrow_from_shapes_that_rise_alike() -> None:
    shapes = [Shape(6144, 2048, 256, 8, 1, ep, "balanced") for ep in (2, 4, 8, 16)]
    tokens = np.array(KNOTS)
    truth = [40e-6 + 30e-6 / s.ep * np.minimum(tokens, 32) + 3e-7 / s.ep * tokens for s in shapes]
    rows = [(i, t, y) for i, line in enumerate(truth) for t, y in zip(tokens, line, strict=True)]
    kept = [r for j, r in enumerate(rows) if j % 4]  # a quarter of the rows is missing
    of, at, seconds = (np.array(column) for column in zip(*kept, strict=True))
    lines = Lines(shapes).fit(of, at, _noisy(seconds, 0.01))
    for line, wanted in zip(lines, truth, strict=True):
        assert list(line["y"]) == sorted(line["y"])
        assert np.array(line["y"]) == pytest.approx(wanted, rel=0.12)
    alone = left_out_errors(
        lambda v, y: FITTERS["rising_log_log"](v, y, knots=tuple(np.unique(v["tokens"]))),
        "rising_log_log",
        {"tokens": at[of == 0]},
        seconds[of == 0],
    )
    together = Lines(shapes).left_out(of, at, seconds)[of == 0]
    assert np.median(np.abs(together)) < np.median(np.abs(alone))


def test_too_few_batches_and_shares_that_cannot_be_told_apart_are_refused() -> None:
    one = {"batch": np.ones(20), "context_tokens": np.geomspace(10, 1e5, 20)}
    with pytest.raises(InputError, match="two batch sizes"):
        fit("decode_module", one, np.linspace(1e-6, 2e-6, 20))
    x = np.geomspace(1, 100, 20)
    with pytest.raises(InputError, match="apart"):
        fit("shares", {"read_s": x, "work_s": x}, 2 * x)
    with pytest.raises(InputError, match="no fit of its own"):
        fit("log_log", {"x": x}, x)
