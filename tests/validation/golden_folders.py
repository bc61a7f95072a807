"""A folder of scenarios and traces of our own, and the command over it."""

from __future__ import annotations

import json
from pathlib import Path

from hisparse_sim.validation import golden
from hisparse_sim.validation.replay import Replay, Totals

SCENARIO = {
    "mode": "hisparse",
    "model": {"num_layers": 8, "index_topk": 128},
    "engine": {
        "num_gpu_blocks": 200,
        "num_host_blocks": 100,
        "max_model_len": 4096,
        "max_num_batched_tokens": 512,
    },
    "requests": [
        {"id": "a", "arrival_step": 0, "prompt_len": 700, "output_len": 5},
        {"id": "b", "arrival_step": 1, "prompt_len": 300, "output_len": 5},
    ],
}


def record(scenario: dict, version: str = "0.33", *, steps: int = 1000) -> list[dict]:
    """A trace that this package replays equally, in the recorder's format."""
    replay = Replay(scenario, version=version)
    lines, totals = [], Totals()
    for line in replay.lines():
        if len(lines) == steps:
            replay.died = "max_steps"
            break
        totals.add(line)
        by_request = {key: {"someone": line[key]} for key in ("lost", "adopted") if line.get(key)}
        lines.append({**line, **by_request})
    return [
        {"kind": "config", **replay.facts},
        *lines,
        {"kind": "totals", "error": None, **totals.record(replay)},
    ]


TRACE = record(SCENARIO)


def put(folder: Path, name: str, trace: list[dict] | str | None, scenario: dict | str = SCENARIO) -> None:
    text = scenario if isinstance(scenario, str) else json.dumps(scenario)
    (folder / "scenarios" / f"{name}.json").write_text(text)
    if trace is not None:
        text = trace if isinstance(trace, str) else "".join(json.dumps(r) + "\n" for r in trace)
        (folder / "v033" / f"{name}.jsonl").write_text(text)


def run(capsys, *args) -> tuple[int, list[str], str]:
    code = golden.main([str(a) for a in args])
    out, err = capsys.readouterr()
    return code, out.splitlines(), err
