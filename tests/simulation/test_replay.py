"""A saved workload, played again, gives the run of the workload: the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import run, scenario

from hisparse_sim.workload import make_workload
from hisparse_sim.workload.save import save

LOGNORMAL = {"kind": "lognormal", "median": 900, "sigma": 0.7, "high": 6000}
TENANTS = [
    {"name": "gold", "share": 2, "priority": -1, "shared_prefix_tokens": 700},
    {"name": "free", "priority": 4},
]
SUBAGENTS = {
    "share": 0.5,
    "agents": {"kind": "uniform", "low": 1, "high": 2},
    "turns": 2,
    "first_prompt_tokens": 500,
    "new_tokens_per_turn": LOGNORMAL,
    "output_tokens": 30,
    "shared_prefix_tokens": 200,
}
SESSIONS = {
    "first_prompt_tokens": {
        "kind": "mixture",
        "parts": [{"weight": 1, "of": 800}, {"weight": 1, "of": LOGNORMAL}],
    },
    "new_tokens_per_turn": {"kind": "zipf", "high": 900},
    "output_tokens": {"kind": "quantiles", "points": {"p5": 3, "p50": 20, "max": 90}},
    "turns": {"kind": "uniform", "low": 1, "high": 4},
    "think_time_s": {"kind": "lognormal", "median": 3, "sigma": 1},
    "shared_prefix_tokens": 300,
    "tenants": TENANTS,
}
LENGTHS = {"prompt_tokens": LOGNORMAL, "output_tokens": {"kind": "fixed", "value": 20}, "tenants": TENANTS}
KINDS: dict[str, dict[str, Any]] = {
    "closed conversations": {"kind": "conversations", "concurrency": 3, "conversations": 7, "ramp_up_s": 4}
    | SESSIONS
    | {"tools": {"share": 0.5, "result_tokens": 90, "time_s": 0.5}, "subagents": SUBAGENTS},
    "conversations over a day": {
        "kind": "conversations",
        "conversations": 6,
        "arrivals": {"kind": "daily", "mean_rate_per_s": 0.5, "burstiness": 0.5},
    }
    | SESSIONS,
    "coding agents": {
        "kind": "agentic-coding",
        "sessions": 3,
        "concurrency": 2,
        "max_context_tokens": 40_000,
        "think_time_s": 1,
        "tenants": TENANTS,
        "subagents": SUBAGENTS,
    },
    "documents": {
        "kind": "documents",
        "sessions": 6,
        "concurrency": 3,
        "documents": 2,
        "document_tokens": LOGNORMAL,
        "shared_prefix_tokens": 100,
        "tenants": TENANTS,
    },
    "poisson": {"kind": "poisson", "rate_per_s": 3, "requests": 12} | LENGTHS,
    "bursts": {
        "kind": "open",
        "arrivals": {"kind": "gamma", "rate_per_s": 3, "burstiness": 0.2},
        "requests": 12,
    }
    | LENGTHS,
    "schedule": {
        "kind": "open",
        "arrivals": {"kind": "piecewise", "steps": [{"duration_s": 5, "rate_per_s": 2}], "burstiness": 2},
    }
    | LENGTHS,
    "even": {"kind": "open", "arrivals": {"kind": "even", "rate_per_s": 2}, "requests": 8} | LENGTHS,
    "stream": {"kind": "stream", "concurrency": 3, "requests": 9, "ramp_up_s": 2, "think_time_s": 1}
    | LENGTHS,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_workload_gives_the_same_run(tmp_path: Path, kind: str) -> None:
    data: dict[str, Any] = {"seed": 5, "engine": {"policy": "priority"}}
    asked = scenario(KINDS[kind], **data)
    assert save(make_workload(asked.workload, asked.seed), tmp_path / "w.jsonl") > 5
    run(KINDS[kind], **data).write(tmp_path / "generated")
    run({"kind": "trace", "path": str(tmp_path / "w.jsonl")}, **data).write(tmp_path / "played")
    for name in ("summary.json", "requests.parquet", "steps.parquet"):
        assert (tmp_path / "generated" / name).read_bytes() == (tmp_path / "played" / name).read_bytes(), name


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".parquet"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_played_is_saved_as_the_same_file(tmp_path: Path, kind: str, ending: str) -> None:
    first, second = tmp_path / f"first{ending}", tmp_path / f"second{ending}"
    save(make_workload(scenario(KINDS[kind]).workload, 5), first)
    save(make_workload(scenario({"kind": "trace", "path": str(first)}).workload, 6), second)
    assert first.read_bytes() == second.read_bytes()
