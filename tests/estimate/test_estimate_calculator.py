"""The imitation of vLLM's HiSparse concurrency calculator, row by row.

Rows: as the page on vllm.ai shows them for GLM-5.3, fp8, expert parallel, 4,096 hot rows, 1,024 sequences,
host pool auto (read in autumn 2026).
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from hisparse_sim.errors import InputError
from hisparse_sim.estimate.calculator import page_answer
from hisparse_sim.scenario.catalogue import load_model, load_node
from hisparse_sim.scenario.engine import EngineSpec

PUBLISHED = Path(__file__).resolve().parents[2] / ".." / "shared" / "validation" / "calculator_vllm.csv"
ROWS = [
    ("H200", 8, 1, 8_192, 48, 71, 25),
    ("H200", 8, 1, 65_536, 6, 44, 121),
    ("H200", 8, 1, 81_920, 4, 39, 134),
    ("H200", 8, 1, 131_072, 3, 30, 165),
    ("H200", 8, 1, 1_048_576, 0, 5, 220),
    ("B200", 8, 1, 131_072, 8, 88, None),
    ("B200", 8, 1, 1_048_576, 1, 16, None),
]
GLM = load_model("glm-5.3")


def page(gpu: str, tokens: int, **engine):
    return page_answer(GLM, load_node(f"8x{gpu.lower()}"), EngineSpec(kv_cache_dtype="fp8", **engine), tokens)


@pytest.mark.parametrize(("gpu", "tp", "dp", "tokens", "resident", "hisparse", "host"), ROWS)
def test_each_published_row_is_reproduced(gpu, tp, dp, tokens, resident, hisparse, host):
    found = page(gpu, tokens, tp=tp, dp=dp)
    assert (found.resident, found.hisparse) == (resident, hisparse)
    if host is not None:
        assert found.min_host_gib == host


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the published rows are not here")
def test_the_rows_above_are_all_of_the_published_ones():
    with PUBLISHED.open() as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    published = [
        (
            r["gpu"],
            int(r["tp"]),
            int(r["dp"]),
            int(r["context_tokens"]),
            int(r["baseline"]),
            int(r["hisparse"]),
            int(r["min_host_gib"]) if r["min_host_gib"] else None,
        )
        for r in rows
    ]
    assert published == ROWS


def test_the_page_computes_with_the_memory_it_shows():
    found = page("H200", 8192)
    assert found.kv_gib == 17.8  # 17.77 would give 47 resident requests
    exact = page_answer(GLM, load_node("8xh200"), EngineSpec(kv_cache_dtype="fp8"), 8192, round_kv=False)
    assert exact.kv_gib == pytest.approx(17.84, abs=0.01)
    assert round(found.weights_gib, 1) == 88.0


def test_gpus_are_counted_in_decimal_gigabytes():
    assert {n: load_node(f"8x{n}").gpu.marketing_bytes for n in ("h200", "b200", "b300")} == {
        "h200": 141 * 10**9,
        "b200": 180 * 10**9,
        "b300": 288 * 10**9,
    }


def test_what_does_not_fit_is_0():
    found = page("H100", 8192)
    assert (found.resident, found.hisparse, found.fits, found.limit) == (0, 0, False, "weights")
    assert page("H200", 8192, tp=4).hisparse == 0


def test_a_small_host_pool_limits_hisparse_but_never_below_resident():
    assert page("H200", 81_920, host_pool_gib=34).hisparse == 9
    assert page("H200", 81_920, host_pool_gib=34).limit == "host_pool"
    assert page("H200", 81_920, host_pool_gib=1).hisparse == 4


def test_vllms_own_figure_replaces_the_pages():
    assert page("H200", 81_920, available_kv_gib=26.2).resident == 7


def test_replicas_multiply_and_spread_the_experts():
    found = page("H200", 131_072, dp=2)
    assert found.weights_gib == pytest.approx(19.556 / 8 + 684.167 / 16)
    assert found.hisparse % 2 == 0
    without = page("H200", 131_072, dp=2, ep=False)
    assert without.hisparse == 2 * 30


def test_other_models_are_not_on_the_page():
    with pytest.raises(InputError, match="GLM-5"):
        page_answer(load_model("deepseek-v3.2"), load_node("8xh200"), EngineSpec(), 8192)
