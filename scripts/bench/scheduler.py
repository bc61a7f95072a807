"""Recorded scenarios of 1M-token contexts on the simulator's scheduler, beside vLLM's own."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.markdown import markdown
from bench.repeats import alternate, spread
from bench.setup import Setup, Skip

if TYPE_CHECKING:
    from hisparse_sim.scheduler.decision import Decision

NAME = "scheduler"
ABOUT = """\
Recorded scenarios of 1M-token contexts, step by step, in steps per CPU second. *decided*: the scheduler
and its memory alone. *told*: every recorded field of every step made, too. *compared*: the trace read and
compared, too. vLLM's own: what the recorder of the traces reports for the loop of vLLM 0.33's scheduler on
a 2-core machine, for scenarios of that mode together; it was not run again here. The ratio is of the median
of *decided*."""

GLOB = "r_glm1m_*"
VLLM_STEPS_PER_S = {"hisparse": (13, 23), "vanilla": (2200, 2600)}
"""Least and most, by mode; the range over the scenarios of that mode, from the notes of the recording."""
WAYS = ("decided", "told", "compared")


class Found(NamedTuple):
    """Speeds on one scenario, in steps per CPU second, each time and way of ``WAYS``."""

    scenario: str
    mode: str
    steps: int
    per_s: tuple[Sequence[float], ...]


def measure(setup: Setup) -> list[Found]:
    """All scenarios of ``GLOB``. Raises Skip without a folder of recorded traces."""
    folder = setup.golden
    if folder is None:
        raise Skip("no folder of recorded scheduler traces beside this checkout; name one with --golden")
    paths = sorted(folder.glob(f"scenarios/{GLOB}.json"))
    if not paths:
        raise Skip(f"{folder} has no scenarios/{GLOB}.json")
    from hisparse_sim.validation import golden  # noqa: F401  not to be timed with the first case

    cases: dict[str, Callable[[], tuple[int, float]]] = {}
    for path in paths:
        for way, steps in zip(WAYS, (_decided, _told, _compared), strict=True):
            cases[f"{path.stem} {way}"] = partial(_timed, steps, path)
    found = alternate(cases, setup)
    result = []
    for path in paths:
        several = [found[f"{path.stem} {way}"] for way in WAYS]
        counts = {steps for way in several for steps, _ in way}
        if len(counts) > 1:
            raise Skip(f"{path.stem}: the ways differ in their steps: {counts}")
        per_s = tuple([steps / cpu_s for steps, cpu_s in way] for way in several)
        result.append(Found(path.stem, json.loads(path.read_text())["mode"], counts.pop(), per_s))
    return result


def table(found: Sequence[Found]) -> str:
    """A row a scenario."""
    rows = []
    for one in found:
        low, high = VLLM_STEPS_PER_S.get(one.mode, (0, 0))
        speed = spread(one.per_s[0]).middle
        ratio = f"{speed / high:,.0f}–{speed / low:,.0f}" if low else "–"
        speeds = [f"{spread(way):,.0f}" for way in one.per_s]
        rows.append(
            [one.scenario, f"{one.steps:,}", *speeds, f"{low:,}–{high:,}" if low else "not known", ratio]
        )
    return markdown(["scenario", "steps", *WAYS, "vLLM's own", "ratio"], rows)


def _timed(steps: Callable[[Path], int], path: Path) -> tuple[int, float]:
    before_s = time.process_time()
    return steps(path), time.process_time() - before_s


def _decided(path: Path) -> int:
    """Schedule every step and report it back; ``Replay.lines`` without the lines."""
    from hisparse_sim.validation.replay import Replay
    from hisparse_sim.validation.trace_files import read_scenario

    replay = Replay(read_scenario(path))
    scheduler, arrivals = replay.scheduler, replay.arrivals
    depth = 2 if scheduler.config.async_scheduling else 1
    queue: deque[Decision] = deque()
    step = steps = 0
    while True:
        while arrivals and arrivals[0][0] <= step:
            scheduler.add(arrivals.popleft()[1])
        if not scheduler.has_work and not queue:
            if not arrivals:
                return steps
            step = arrivals[0][0]
            continue
        if scheduler.has_work:
            queue.append(scheduler.schedule())
        if len(queue) == depth or not scheduler.has_work:
            scheduler.update(queue.popleft())
        step += 1
        steps += 1


def _told(path: Path) -> int:
    from hisparse_sim.validation.replay import Replay
    from hisparse_sim.validation.trace_files import read_scenario

    return sum(1 for _ in Replay(read_scenario(path)).lines())


def _compared(path: Path) -> int:
    from hisparse_sim.validation.golden import replay_folder

    (outcome,) = replay_folder(path.parents[1], path.stem)
    if not outcome.equal:
        raise Skip(f"{path.stem}: {outcome.error or 'differs from its trace'}")
    return outcome.steps
