"""What cost grows with: decisions, or tokens and pages."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from bench.curve_picture import Panel, draw
from bench.markdown import markdown
from bench.repeats import Spread, alternate, spread
from bench.setup import Setup

if TYPE_CHECKING:
    from hisparse_sim.scenario.scenario import Scenario

NAME = "curve"
REQUESTS = 8
ABOUT = f"""\
{REQUESTS} requests asked at once of GLM-5.3 (`stream-1m-8xh200`), steps without a decision taken at once: CPU
time of the simulation, in this process, against the length of prompts and of outputs. Decisions: steps for
which the scheduler was asked. Pages: of all prompts and outputs. Resident, contexts over 256k do not fit.

![The same as curves](bench-curve.png)"""

MODES = ("hisparse", "resident")
OUTPUT_TOKENS = 1_000
PROMPT_TOKENS = 65_536
BY_PROMPT = (65_536, 131_072, 262_144, 524_288, 1_000_000)
BY_OUTPUT = (100, 1_000, 10_000, 100_000)


class Size(NamedTuple):
    """What is simulated: tokens of each request, and in which mode."""

    mode: str
    prompt_tokens: int
    output_tokens: int


class Counts(NamedTuple):
    """What a simulation consists of."""

    decisions: int
    steps: int
    pages: int


class Found(NamedTuple):
    """One size: what it consists of, and what that took."""

    counts: Counts
    cpu_s: Spread


def measure(setup: Setup) -> dict[Size, Found]:
    """All sizes that fit; draws the picture, too."""
    counts, cases = {}, {}
    for size in sizes():
        setup.say(f"curve: decisions of {_words(size)}")
        scenario = _scenario(size)
        counted = _count(scenario)
        if counted is None:
            continue
        counts[size] = counted
        cases[_words(size)] = partial(_cpu_s, scenario)
    times = alternate(cases, setup).values()
    found = {
        size: Found(counted, spread(cpu_s))
        for (size, counted), cpu_s in zip(counts.items(), times, strict=True)
    }
    draw(panels(found), setup.results / "bench-curve")
    return found


def sizes() -> list[Size]:
    """Each once, though the two sweeps have one in common."""
    by_prompt = [(prompt, OUTPUT_TOKENS) for prompt in BY_PROMPT]
    by_output = [(PROMPT_TOKENS, output) for output in BY_OUTPUT]
    return [Size(mode, *size) for mode in MODES for size in sorted({*by_prompt, *by_output})]


def panels(found: Mapping[Size, Found]) -> list[list[Panel]]:
    """A row a mode: by the length of prompts, by that of outputs."""
    rows = []
    for mode in MODES:
        of_mode = [(size, one) for size, one in found.items() if size.mode == mode]
        by_prompt = [(s.prompt_tokens, one) for s, one in of_mode if s.output_tokens == OUTPUT_TOKENS]
        by_output = [(s.output_tokens, one) for s, one in of_mode if s.prompt_tokens == PROMPT_TOKENS]
        rows.append(
            [
                Panel(f"{mode}: {OUTPUT_TOKENS:,} output tokens", "prompt tokens", by_prompt),
                Panel(f"{mode}: {PROMPT_TOKENS:,} prompt tokens", "output tokens", by_output),
            ]
        )
    return rows


def _words(size: Size) -> str:
    return f"{size.mode}, {size.prompt_tokens:,} + {size.output_tokens:,} tokens"


def _scenario(size: Size) -> Scenario:
    from hisparse_sim.scenario.loader import load_scenario

    settings = {
        "engine.mode": size.mode,
        "workload.requests": REQUESTS,
        "workload.concurrency": REQUESTS,
        "workload.prompt_tokens": size.prompt_tokens,
        "workload.output_tokens": size.output_tokens,
    }
    return load_scenario("stream-1m-8xh200", overrides=[f"{k}={v}" for k, v in settings.items()])


def _count(scenario: Scenario) -> Counts | None:
    """Apart from the timed runs, since counting takes time of its own; none: it does not fit."""
    from hisparse_sim.simulation.replica import build_replica
    from hisparse_sim.simulation.run import simulate

    replica = build_replica(scenario)
    schedule, decisions = replica.scheduler.schedule, 0

    def counted() -> object:
        nonlocal decisions
        decisions += 1
        return schedule()

    replica.scheduler.schedule = counted  # type: ignore[assignment, method-assign]
    result = simulate(scenario, replica=replica)
    if result.summary["requests_failed"]:
        return None
    size = result.pools.block_size
    pages = sum(-(-(r.prompt_tokens + r.output_tokens) // size) for r in result.request_records)
    return Counts(decisions, result.summary["engine_steps"], pages)


def _cpu_s(scenario: Scenario) -> float:
    from hisparse_sim.simulation.run import simulate

    before_s = time.process_time()
    simulate(scenario)
    return time.process_time() - before_s


def table(found: Mapping[Size, Found]) -> str:
    """A row a size."""
    rows = []
    for size, (counts, cpu_s) in found.items():
        whole = (size.prompt_tokens, size.output_tokens, counts.pages, counts.steps, counts.decisions)
        of_each = [f"{cpu_s.middle / n * 1e6:,.0f}" for n in (counts.decisions, counts.steps)]
        rows.append([size.mode, *(f"{n:,}" for n in whole), f"{cpu_s:.2f}", *of_each])
    head = ["mode", "prompt tokens", "output tokens", "pages", "engine steps", "decisions", "CPU s"]
    return markdown([*head, "µs a decision", "µs a step"], rows)
