"""The fit: kept-out rows stay out, the shipped coefficients come out again, noise is survived."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from hisparse_sim.cost.forms import decode_features
from hisparse_sim.cost.profile import load_profile

ROOT = Path(__file__).resolve().parents[2]
TABLES = ROOT.parent / "shared" / "measured" / "h200"
needs_tables = pytest.mark.skipif(not TABLES.is_dir(), reason="the measured H200 tables are not at hand")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    pytest.importorskip("scipy", reason="fitting needs the extra `fit`")
    spec = importlib.util.spec_from_file_location("fit_published", ROOT / "scripts" / "fit_published.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["fit_published"] = module
    spec.loader.exec_module(module)
    return module


def test_a_known_law_is_recovered_from_noisy_samples(script: ModuleType) -> None:
    rng = np.random.default_rng(1)
    batch = 2.0 ** rng.integers(0, 10, 200)
    context = rng.uniform(3_000, 131_072, 200)
    truth = np.array([90e-6, 0.0, 1e-6, 0.8e-6, 0.0, 12e-6, 37.5e-12, 0.0])
    x = decode_features(batch, context, topk_rows=2048)
    found, errors = script.fit(x, x @ truth * rng.normal(1.0, 0.03, 200))
    assert found[6] == pytest.approx(truth[6], rel=0.03)
    assert errors["holdout"]["median_abs_rel"] < 0.04


def test_a_broken_line_never_falls(script: ModuleType) -> None:
    x = np.array([1.0, 10, 100, 1000, 2000, 4000])
    params, _ = script.broken_line(x, np.array([5.0, 9, 6, 7, 12, 25]), (0.0, 50.0, 1500.0))
    assert params["y"] == sorted(params["y"]) and params["tail_slope"] >= 0


def test_the_kept_out_rule_drops_a_quarter(script: ModuleType) -> None:
    rows = pd.DataFrame({name: np.arange(4000) for name in script.MOE_KEY})
    assert script.kept_out(rows, script.MOE_KEY).mean() == pytest.approx(0.25, abs=0.03)


def test_a_missing_table_is_named(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no table moe_fp8_sglang"):
        script.Tables(tmp_path).read("moe_fp8_sglang")


@needs_tables
def test_no_kept_out_row_is_in_the_tables(script: ModuleType) -> None:
    for stem, key in (
        ("moe_fp8_sglang", script.MOE_KEY),
        ("dsa_decode_module_vllm", script.MODULE_KEY),
        ("dsa_decode_module_sglang", ("op_name", *script.MODULE_KEY)),
    ):
        path = next(TABLES.glob(f"{stem}_*.parquet"))
        assert not script.kept_out(pd.read_parquet(path), key).any()


@needs_tables
def test_the_shipped_coefficients_come_out_again(script: ModuleType) -> None:
    shipped = load_profile("h200-published")
    tables = script.Tables(TABLES)
    vllm = tables.read("dsa_decode_module_vllm", script.MODULE_KEY)
    part = vllm[(vllm.num_heads == 8) & (vllm.model == "zai-org/GLM-5")]
    again = script.decode_terms(part, "vllm") + script.collective_terms(tables)
    assert len(again) == 9
    for term in again:
        for name, value in term["params"].items():
            assert value == pytest.approx(shipped.term(term["id"]).params[name], rel=1e-3, abs=1e-12)
    assert 37e-12 < shipped.term("dsa.decode.vllm.glm.h8.fp8").value("context_s") < 38e-12
    assert all(shipped.inputs[name] == digest for name, digest in tables.inputs.items())
