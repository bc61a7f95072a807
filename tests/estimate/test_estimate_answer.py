"""Speed, differences from the published page, and JSON of the whole answer."""

from __future__ import annotations

import json
import math

import pytest

from hisparse_sim.estimate.answer import MODES, answer
from hisparse_sim.estimate.as_json import answer_json
from hisparse_sim.estimate.concurrency import mode_pools
from hisparse_sim.estimate.latency import decode_model
from hisparse_sim.scenario.catalogue import list_models, list_nodes, load_model, load_node
from hisparse_sim.scenario.engine import EngineSpec

GLM, H200, B200 = load_model("glm-5.3"), load_node("8xh200"), load_node("8xb200")
FP8 = EngineSpec(kv_cache_dtype="fp8")


def test_seconds_are_the_cost_rooms():
    from hisparse_sim.cost.profile import profile_for
    from hisparse_sim.cost.step import StepCostModel

    pools = mode_pools(GLM, H200, FP8, "resident")
    model, why = decode_model(GLM, H200, pools)
    assert why == ""
    found = model.at(6, 86_060)
    cost = StepCostModel(GLM, H200, pools.engine, profile_for(H200))
    assert found.tpot_s == pytest.approx(cost.decode_tpot_s(6, 86_060, 1.0))
    assert found.tokens_per_s == pytest.approx(6 / found.tpot_s)
    assert found.tpot_range_s == (found.tpot_s, found.tpot_s)


def test_hisparse_reads_host_memory_on_every_rank():
    model, _ = decode_model(GLM, H200, mode_pools(GLM, H200, FP8, "hisparse"))
    found = model.at(40, 86_060)
    low, high = found.tpot_range_s
    assert low <= found.tpot_s <= high
    assert low < high
    assert 0 < found.link_share <= 1.2
    assert low < found.wider_link_tpot_s < found.tpot_s
    assert found.dram_bytes_per_s == pytest.approx(8 * found.h2d_bytes_per_s)
    # An 86k context, all but a little of it in host memory, twice the top-k: 13.4 % published for GLM-5.1.
    assert 0.10 < found.miss_share < 0.145


def test_few_requests_are_read_from_the_gpu():
    model, _ = decode_model(GLM, H200, mode_pools(GLM, H200, FP8, "hisparse"))
    assert model.at(1, 86_060).h2d_bytes_per_s == 0
    assert model.at(0, 86_060) is None


def test_a_node_without_calibration_answers_capacity_only():
    found = answer(GLM, load_node("8xmi350x"), FP8, [131_072])
    assert "8xmi350x" in found.untimed
    assert found.rows[0].modes["resident"].decode is None
    assert found.rows[0].modes["resident"].requests > 0


@pytest.mark.parametrize("tokens", [8192, 81_920, 2**20])
@pytest.mark.parametrize("engine", [FP8, FP8.model_copy(update={"mtp": 3, "max_num_batched_tokens": 32_768})])
def test_the_causes_add_up_to_the_difference_from_the_page(tokens, engine):
    row = answer(GLM, H200, engine, [tokens]).rows[0]
    page = row.differences
    assert page.page_resident + sum(c.resident for c in page.causes) == row.modes["resident"].requests
    assert page.page_hisparse + sum(c.hisparse for c in page.causes) == row.modes["hisparse"].requests


def test_each_thing_the_page_leaves_out_has_its_turn():
    engine = FP8.model_copy(update={"mtp": 3, "max_num_batched_tokens": 32_768, "max_num_seqs": 24})
    page = answer(GLM, H200, engine, [81_920]).rows[0].differences
    causes = " ".join(c.why for c in page.causes)
    for word in ("driver", "656-byte", "MTP", "max_num_seqs 24"):
        assert word in causes
    window = answer(GLM, H200, engine.model_copy(update={"max_num_seqs": 256}), [131_072]).rows[0].differences
    assert "admission window (1,024 pages" in window.causes[-1].why
    assert window.causes[-1].hisparse < 0


def test_on_blackwell_the_rows_are_the_pages():
    page = answer(GLM, B200, FP8, [131_072]).rows[0].differences
    assert not any("byte rows" in c.why for c in page.causes)


def test_growth_is_the_requests_admitted_too_many():
    row = answer(GLM, H200, FP8, [8192], output_tokens=1024).rows[0]
    assert row.differences.admitted_resident > row.modes["resident"].requests
    flat = answer(GLM, H200, FP8, [8192], output_tokens=1).rows[0]
    assert flat.differences.admitted_resident == flat.modes["resident"].requests


def test_a_model_the_page_does_not_know_has_no_differences():
    assert answer(load_model("deepseek-v3.2"), H200, FP8, [8192]).rows[0].differences is None


def walk(value, path=""):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from walk(inner, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            yield from walk(inner, f"{path}[{i}]")
    else:
        yield path, value


@pytest.mark.parametrize("node", list_nodes())
@pytest.mark.parametrize("model", list_models())
def test_every_model_on_every_node_has_an_answer_in_plain_numbers(model, node):
    spec, machine = load_model(model), load_node(node)
    tp = min(machine.gpus, 4)
    found = answer(spec, machine, FP8.model_copy(update={"tp": tp}), [8192, spec.max_context_tokens])
    data = json.loads(json.dumps(answer_json(found, None, []), allow_nan=False))
    for path, value in walk(data):
        assert not (isinstance(value, float) and not math.isfinite(value)), path
    for row in data["rows"]:
        assert all(isinstance(row[mode], int) for mode in MODES)
        assert row["limit"]
        for mode in MODES:
            low, high = row[f"{mode}_range"]
            assert low <= row[mode] <= high
