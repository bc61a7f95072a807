"""Short requests on one GPU: what any simulator of serving can do, beside the fastest public one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.markdown import markdown
from bench.process import Usage, run
from bench.repeats import alternate, spread
from bench.setup import Setup

NAME = "plain"
OUTPUT_TOKENS = 512
ABOUT = f"""\
Requests of 512 prompt and {OUTPUT_TOKENS} output tokens, Poisson, 10 a second, llama-3.1-8b on one H200:
`run --no-plots` as a process. Simulation: its CPU time without start-up and files. The peer is the Rust
discrete-event replay of Dynamo 1.4.2, as it was measured on a 2-core machine; it was not run again here."""
REQUESTS = (1_000, 10_000)

SCENARIO = """\
name: plain
model: llama-3.1-8b
node: 8xh200
engine: {{mode: resident, tp: 1, max_num_batched_tokens: 8192}}
workload: {{kind: poisson, rate_per_s: 10, requests: {requests}, prompt_tokens: 512, output_tokens: 512}}
"""

PEER = {1_000: ("3,400–4,200", "1.7–2.1", "2.2", "80"), 10_000: ("3,400–4,200", "1.7–2.1", "4.3–5.2", "–")}
"""Requests and million output tokens a second of simulation, CPU seconds and MB of the process."""


class Found(NamedTuple):
    """One run: the process, and the CPU seconds of the simulation within it."""

    usage: Usage
    simulation_s: float


def measure(setup: Setup) -> dict[int, list[Found]]:
    """Runs of each number of requests."""
    cases = {}
    for requests in REQUESTS:
        scenario = setup.work / f"plain-{requests}.yaml"
        scenario.write_text(SCENARIO.format(requests=requests))
        cases[f"plain, {requests:,} requests"] = partial(_run, scenario, setup.work / f"plain-{requests}")
    return dict(zip(REQUESTS, alternate(cases, setup).values(), strict=True))


def _run(scenario: Path, out: Path) -> Found:
    usage = run(["run", str(scenario), "--no-plots", "--out", str(out)])
    return Found(usage, json.loads((out / "timing.json").read_text())["cpu_s"])


def table(found: Mapping[int, Sequence[Found]]) -> str:
    """A row for us and one for the peer, for each number of requests."""
    rows = []
    for requests, several in found.items():
        per_s = spread(requests / one.simulation_s for one in several)
        tokens = spread(OUTPUT_TOKENS * requests / one.simulation_s / 1e6 for one in several)
        cpu_s = spread(one.usage.cpu_s for one in several)
        peak_mb = spread(one.usage.peak_mb for one in several)
        ours = [f"{per_s:,.0f}", f"{tokens:.2f}", f"{cpu_s:.2f}", f"{peak_mb:.0f}"]
        rows += [
            [f"{requests:,} requests", *ours],
            ["the peer", *PEER.get(requests, ("–",) * 4)],
        ]
    head = ["", "requests/s of simulation", "M output tokens/s", "CPU s, process", "peak MB"]
    return markdown(head, rows)
