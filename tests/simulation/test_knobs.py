"""Every knob that should move a number moves it; those that do not are named here, with the reason."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, NamedTuple, get_args

import pytest
from small_runs import CONVERSATIONS, POISSON, STREAM, scenario

from hisparse_sim.errors import HiSparseError
from hisparse_sim.scenario.cluster import ClusterSpec, PrefillSpec
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.loader import scenario_from_mapping
from hisparse_sim.scenario.node import GpuSpec, HostLinkSpec, NodeSpec
from hisparse_sim.scenario.scenario import Scenario, SloSpec
from hisparse_sim.scenario.workload import (
    AgenticCodingSpec,
    ConversationsSpec,
    DocumentsSpec,
    OpenSpec,
    PoissonSpec,
    StreamSpec,
    TraceSpec,
    WorkloadSpec,
)
from hisparse_sim.simulation.run import simulate

IDENTITY = {
    "scenario",
    "engine",
    "mode",
    "seed",
    "calibration",
    "calibration_sha256",
    "locality",
    "locality_sha256",
    "locality_source",
    "warnings",
    "pools",
}
"""Keys that repeat the question (the sizes of the pools, too) instead of answering it."""

# Eight clients whose long answers outgrow what the pool holds.
GROWING = CONVERSATIONS | {
    "concurrency": 8,
    "conversations": 12,
    "first_prompt_tokens": 1000,
    "output_tokens": 400,
}
# Pages are lost to others here: requests read from the host, and wait for GPU blocks.
TIGHT = {"mode": "hisparse", "num_gpu_blocks": 6000, "max_model_len": 3800}
# The GPU pool holds three or four of GROWING's conversations, the tier beside it all of them.
FULL = {"mode": "offload", "num_gpu_blocks": 130, "max_model_len": 3800, "kv_offload_gib": 16}
RESIDENT = {"mode": "resident"}
GQA = {"mode": "resident", "kv_cache_dtype": "auto", "host_pool_gib": "auto", "kv_offload_gib": 0}


class Case(NamedTuple):
    """A value that should change what a run answers, and the settings around it."""

    value: Any
    engine: dict[str, Any] = {}  # noqa: RUF012
    model: str = "glm-5.3"
    workload: dict[str, Any] = CONVERSATIONS


SGLANG = {"kind": "sglang", "mode": "hisparse", "max_total_tokens": 20_000}
LONG_PROMPTS = STREAM | {"prompt_tokens": 12_000}  # more than a hot buffer holds
LONG_ANSWERS = STREAM | {"output_tokens": 1500, "concurrency": 8}

ENGINE = {
    "mode": [Case("resident", TIGHT), Case("resident", FULL, workload=GROWING)],
    "tp": [Case(4, GQA, "llama-3.1-8b")],
    "dp": [Case(2, GQA, "llama-3.1-8b")],
    "ep": [Case(False, RESIDENT)],
    "gpu_memory_utilization": [Case(0.88, RESIDENT)],
    "max_model_len": [Case(3200), Case("auto", {"max_model_len": 3200})],
    "max_num_seqs": [Case(2)],
    "max_num_batched_tokens": [Case(1024)],
    "long_prefill_token_threshold": [Case(500)],
    "enable_chunked_prefill": [Case(False, {"max_model_len": 4096, "max_num_batched_tokens": 4096})],
    "enable_prefix_caching": [Case(False), Case(False, RESIDENT)],
    "policy": [Case("priority", FULL | RESIDENT, workload=GROWING)],
    "async_scheduling": [Case(False), Case(False, RESIDENT)],
    "watermark": [Case(0.3, TIGHT), Case(0.3, FULL, workload=GROWING)],
    "block_size": [Case(32, GQA, "llama-3.1-8b")],
    "kv_cache_dtype": [Case("bf16", RESIDENT), Case("fp8", GQA, "llama-3.1-8b")],
    "mtp": [Case(2, RESIDENT)],
    "mtp_acceptance": [Case([0.5, 0.1], RESIDENT | {"mtp": 2})],
    "hot_rows": [Case(6144, TIGHT)],
    "host_pool_gib": [Case(0.4, TIGHT), Case("auto")],
    "shared_host_pool": [Case(False)],
    "indexer_offload_gib": [Case(2, TIGHT)],
    "kv_offload_gib": [Case(1, FULL, workload=GROWING)],
    "transfer_delay_steps": [Case(8, TIGHT), Case(40, FULL | {"kv_offload_gib": 2}, workload=GROWING)],
    "reserve_gib": [Case(20.0, RESIDENT)],
    "available_kv_gib": [Case(10.0, RESIDENT)],
    "num_gpu_blocks": [Case(5000, TIGHT), Case(5000, RESIDENT)],
    "kv_tokens": [Case(100_000, RESIDENT)],
    "version": [Case("0.30", TIGHT)],
    "kind": [Case("sglang", RESIDENT)],
    "device_buffer_size": [Case(6144, SGLANG, workload=LONG_PROMPTS)],
    "host_to_device_ratio": [Case(8, SGLANG)],
    "mem_fraction_static": [Case(0.85, {"kind": "sglang", "mode": "resident"})],
    "max_total_tokens": [Case(16_000, SGLANG)],
    "context_length": [Case(3000, SGLANG)],
    "max_running_requests": [Case(2, SGLANG)],
    "chunked_prefill_size": [Case(1024, SGLANG)],
    "schedule_conservativeness": [Case(9.0, SGLANG, workload=LONG_ANSWERS)],
    "enable_mixed_chunk": [Case(True, SGLANG)],
    "disaggregation_mode": [Case("decode", SGLANG)],
    "num_reserved_decode_tokens": [
        Case(5000, SGLANG | {"disaggregation_mode": "decode"}, workload=LONG_ANSWERS)
    ],
    "index_share": [Case(False, SGLANG, workload=LONG_PROMPTS)],
}
TENANTS = [{"name": "a", "shared_prefix_tokens": 1000}, {"name": "b"}]
AGENTS = {"share": 1, "first_prompt_tokens": 500, "new_tokens_per_turn": 100, "output_tokens": 10}
ARRIVALS = {"kind": "even", "rate_per_s": 1.0}

GENERATED = {"shared_prefix_tokens": 1000, "tenants": TENANTS, "limit": 5}
SESSIONS = GENERATED | {"concurrency": 2, "ramp_up_s": 1, "arrivals": ARRIVALS}
REQUESTS = GENERATED | {"requests": 5, "prompt_tokens": 2500, "output_tokens": 20, "length_jitter": 0.5}
WORKLOADS: dict[type, tuple[dict[str, Any], dict[str, Any]]] = {
    ConversationsSpec: (
        CONVERSATIONS,
        SESSIONS
        | {
            "conversations": 5,
            "turns": 2,
            "first_prompt_tokens": 2500,
            "new_tokens_per_turn": 100,
            "output_tokens": 20,
            "think_time_s": 0.5,
            "tools": {"share": 1, "result_tokens": 500},
            "subagents": AGENTS,
        },
    ),
    AgenticCodingSpec: (
        {"kind": "agentic-coding", "sessions": 3, "concurrency": 3, "max_context_tokens": 32768, "limit": 9},
        SESSIONS | {"sessions": 2, "max_context_tokens": 40000, "think_time_s": 0, "subagents": AGENTS},
    ),
    DocumentsSpec: (
        {
            "kind": "documents",
            "sessions": 4,
            "concurrency": 4,
            "documents": 3,
            "document_tokens": 3000,
            "questions": 2,
            "output_tokens": 20,
            "think_time_s": 1.0,
        },
        SESSIONS
        | {
            "sessions": 3,
            "documents": 1,
            "popularity": 9.0,
            "document_tokens": 2000,
            "questions": 3,
            "question_tokens": 300,
            "output_tokens": 30,
            "think_time_s": 2.0,
        },
    ),
    PoissonSpec: (POISSON, REQUESTS | {"rate_per_s": 20}),
    OpenSpec: (
        STREAM | {"kind": "open", "arrivals": {"kind": "poisson", "rate_per_s": 2}},
        REQUESTS | {"arrivals": ARRIVALS},
    ),
    StreamSpec: (STREAM, REQUESTS | {"concurrency": 2, "ramp_up_s": 1, "think_time_s": 0.5}),
    TraceSpec: (
        {"kind": "trace"},
        {
            "from_s": 5,
            "to_s": 35,
            "repeat": 2,
            "time_scale": 0.5,
            "limit": 3,
            "concurrency": 1,
        },
    ),
}
WORKLOAD_LABELS = {
    "kind": "chooses the others",
    "path": "of the trace",
    "format": "says how to read the file, and changes nothing where it is told from the content",
    "skip_bad_lines": "lets a broken line pass; see tests/workload",
}

NODE = {
    "gpus": Case(4, GQA, "llama-3.1-8b"),
    "gpu.vendor": Case("amd", {"kv_cache_dtype": "fp8_ds_mla"}),
    "gpu.generation": Case("blackwell", RESIDENT),
    "gpu.memory_bytes": Case(140 * 2**30, RESIDENT),
    "gpu.hbm_bytes_per_s": Case(3e12, RESIDENT),
    "gpu.bf16_flops": Case(1e14, GQA, "llama-3.1-8b"),
    "gpu.fp8_flops": Case(1e13, RESIDENT),
    "host_link.copy_h2d_bytes_per_s": Case(5e8, FULL, workload=GROWING),
    "host_link.copy_d2h_bytes_per_s": Case(5e8, FULL, workload=GROWING),
    "host_link.gather_bytes_per_s": Case(1e10, TIGHT),
    "host_link.gather_per_request_bytes_per_s": Case(1e9, TIGHT),
    "host_link.both_ways_bytes_per_s": Case(1e9, FULL, workload=GROWING),
    "dram_bytes": Case(2**40, {"host_pool_gib": "auto"}),
    "dram_bytes_per_s": Case(1e11, TIGHT),
    "calibration": Case(None),
    "hisparse": Case(False),
}
NODE_LABELS = {
    "name": "a label",
    "sources": "says where the other fields are from",
    "gpu.name": "a label; a profile of another GPU gives a warning",
    "gpu.memory_grade": "says what memory_bytes is",
    "gpu.marketing_bytes": "counts in estimate --like vllm-calculator only",
    "host_link.kind": "a label: the rates are the other fields",
    "nvlink_bytes_per_s": "all-reduces are measured, by the profile, not computed from a rate",
}
"""Node fields that move nothing in a run, and why."""

OTHERS: dict[str, Any] = {
    "seed": 1,
    "slo": {"ttft_s": 1.0},
    "calibration": "no-such-profile",
    "locality": "no-such",
}


@cache
def _figures(text: str) -> str:
    data = json.loads(text)
    if data["engine"].get("kind") == "sglang":  # knows none of what the small scenarios set
        return answer(scenario_from_mapping({"name": "small", "node": "8xh200"} | data))
    mode = data["engine"].get("mode", "hisparse")
    return answer(scenario(data.pop("workload"), mode=mode, **data))


def answer(asked: Scenario) -> str:
    try:
        summary = simulate(asked).summary
    except HiSparseError as refusal:
        return f"refused: {refusal}"
    return json.dumps({k: v for k, v in summary.items() if k not in IDENTITY})


def figures(workload: dict[str, Any], engine: dict[str, Any], model: str = "glm-5.3", **data: Any) -> str:
    """What a run answers; equal questions are asked once."""
    return _figures(json.dumps({"workload": workload, "engine": engine, "model": model} | data))


@pytest.mark.parametrize("field", ENGINE)
def test_an_engine_setting_moves_a_figure(field):
    sizes = {"available_kv_gib", "num_gpu_blocks", "kv_tokens"}  # one of them at a time
    for value, engine, model, workload in ENGINE[field]:
        rest = {k: v for k, v in engine.items() if not (field in sizes and k in sizes)}
        before = figures(workload, engine, model)
        after = figures(workload, rest | {field: value}, model)
        assert before != after
        assert "refused" not in before + after


def test_every_engine_setting_is_walked():
    # single_step changes nothing by design (test_jump).
    assert set(ENGINE) | {"single_step"} == set(EngineSpec.model_fields)


KNOBS = [(kind, field) for kind, (_, knobs) in WORKLOADS.items() for field in knobs]


@pytest.mark.parametrize(("kind", "field"), KNOBS)
def test_a_workload_setting_moves_a_figure(kind, field, trace):
    base, knobs = WORKLOADS[kind]
    if kind is TraceSpec:
        base = base | {"path": str(trace)}
    if kind is OpenSpec:
        base = {k: v for k, v in base.items() if k != "concurrency"}
    assert figures(base | {field: knobs[field]}, {}) != figures(base, {})


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Three sessions of four requests, one every 20 s."""
    folder = tmp_path_factory.mktemp("trace")
    hashes = list(range(-(-3000 // 64)))
    for name in ("one", "two", "three"):
        turn = {"type": "n", "in": 3000, "out": 20, "hash_ids": hashes, "api_time": 10.0, "think_time": 10.0}
        session = {"id": name, "block_size": 64, "hash_id_scope": "local"}
        session |= {"requests": [{"t": 20.0 * i} | turn for i in range(4)]}
        (folder / f"{name}.json").write_text(json.dumps(session))
    return folder


def test_every_workload_setting_is_walked():
    (union, _) = get_args(WorkloadSpec)
    assert set(get_args(union)) == set(WORKLOADS)
    for kind, (_, knobs) in WORKLOADS.items():
        assert set(kind.model_fields) - set(WORKLOAD_LABELS) == set(knobs), kind.__name__


@pytest.mark.parametrize("field", NODE)
def test_a_fact_of_the_node_moves_a_figure_or_is_refused(field):
    value, engine, model, workload = NODE[field]
    asked = scenario(workload, mode=engine.get("mode", "hisparse"), engine=engine, model=model)
    node = asked.node.model_dump()
    place = node
    *path, last = field.split(".")
    for key in path:
        place = place[key]
    assert place[last] != value
    place[last] = value
    changed = asked.model_copy(update={"node": NodeSpec.model_validate(node)})
    before, after = answer(asked), answer(changed)
    assert before != after
    assert "refused" not in before
    assert after.startswith("refused") == (field in ("gpu.vendor", "calibration", "hisparse"))


def test_every_fact_of_the_node_is_walked_or_explained():
    known = {f"gpu.{f}" for f in GpuSpec.model_fields} | {f"host_link.{f}" for f in HostLinkSpec.model_fields}
    known |= set(NodeSpec.model_fields) - {"gpu", "host_link"}
    assert set(NODE) | set(NODE_LABELS) == known
    assert not set(NODE) & set(NODE_LABELS)


@pytest.mark.parametrize("field", OTHERS)
def test_what_stands_beside_model_node_and_engine_moves_a_figure(field):
    work = POISSON | {"length_jitter": 0.2}
    assert figures(work, {}, **{field: OTHERS[field]}) != figures(work, {})


def test_every_field_of_the_scenario_is_walked():
    sections = {"model", "node", "engine", "cluster", "workload"}
    labels = {"name", "description", "plan"}  # the last asks for runs, and changes none
    assert set(Scenario.model_fields) == sections | labels | set(OTHERS)


CROWD = CONVERSATIONS | {
    "concurrency": 12,
    "conversations": 18,
    "shared_prefix_tokens": 2000,
    "output_tokens": {"kind": "uniform", "low": 20, "high": 200},
}
CLUSTER: dict[str, tuple[Any, dict[str, Any]]] = {
    "instances": (3, {}),
    "router": ("prefix_affinity", {"instances": 3}),
    "cache_threshold": (0.9, {"instances": 3, "router": "prefix_affinity"}),
    "balance_abs_threshold": (1, {"instances": 3, "router": "prefix_affinity"}),
    "balance_rel_threshold": (9.0, {"instances": 3, "router": "prefix_affinity", "balance_abs_threshold": 1}),
}


PREFILL: dict[str, tuple[Any, dict[str, Any]]] = {
    "instances": (2, {}),
    "engine": ({"mode": "resident", "max_num_batched_tokens": 2048, "max_num_seqs": 64}, {}),
    "link_bytes_per_s": (1e9, {}),
    "lands": ("host", {}),
}


@pytest.mark.parametrize("field", PrefillSpec.model_fields)
def test_a_setting_of_prefilling_instances_moves_a_figure(field):
    value, prefill = PREFILL[field]
    changed = prefill | {field: value}
    before, after = (figures(CROWD, {}, cluster={"prefill": spec}) for spec in (prefill, changed))
    assert before != after
    assert "refused" not in before + after


@pytest.mark.parametrize("field", sorted(set(ClusterSpec.model_fields) - {"prefill"}))
def test_a_cluster_setting_moves_a_figure(field):
    value, cluster = CLUSTER[field]
    assert figures(CROWD, {}, cluster=cluster) != figures(CROWD, {}, cluster=cluster | {field: value})


@pytest.mark.parametrize("goal", SloSpec.model_fields)
def test_each_goal_counts(goal):
    assert '"goodput": 0.0' in figures(CONVERSATIONS, {}, slo={goal: 1e-9})
