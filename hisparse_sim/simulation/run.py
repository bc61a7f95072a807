"""Run a scenario from beginning to end."""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Callable
from typing import Any

import simpy

from hisparse_sim.cost.links import LinkRates
from hisparse_sim.errors import HiSparseError
from hisparse_sim.scenario.scenario import Scenario
from hisparse_sim.simulation.clients import Clients
from hisparse_sim.simulation.engine import REMEDY, Engine
from hisparse_sim.simulation.interrupt import held_interrupts
from hisparse_sim.simulation.links import HostLink
from hisparse_sim.simulation.recorder import Recorder
from hisparse_sim.simulation.replica import Replica, build_replica
from hisparse_sim.simulation.result import Result
from hisparse_sim.simulation.summary import summarise
from hisparse_sim.workload.make import make_workload
from hisparse_sim.workload.request import Workload

Progress = Callable[[float, int, int], None]
"""Called now and then with simulated seconds, requests over and requests sent so far."""

_EVENTS = 500
"""Between two looks at Ctrl-C and two calls of progress: some milliseconds."""


def simulate(
    scenario: Scenario,
    *,
    replica: Replica | None = None,
    workload: Workload | None = None,
    progress: Progress | None = None,
) -> Result:
    """Simulate ``scenario`` until all its requests are over.

    ``replica`` and ``workload``: the scenario's, if they are made already; a replica serves one run.
    Ctrl-C ends the run early: the result then holds what was done and says ``complete: false``.
    Raises ``Infeasible`` or ``InputError``.
    """
    began = time.perf_counter()
    cpu = time.process_time()
    replica = replica or build_replica(scenario)
    workload = workload or make_workload(scenario.workload, scenario.seed)
    recorder = Recorder()
    env = simpy.Environment()
    rates = LinkRates(scenario.node, ranks=replica.ranks)
    link = HostLink(env, rates.h2d_bytes_per_s, rates.d2h_bytes_per_s, rates.both_ways_bytes_per_s)
    engine = Engine(env, replica, link, recorder)
    # A trace is cut by its recorded times, before it is played.
    limit = None if scenario.workload.kind == "trace" else scenario.workload.limit
    Clients(env, workload, engine.send, limit=limit)
    complete = _drive(env, recorder, engine, progress)
    for r in recorder.requests:
        if r.status == "incomplete":
            r.reason = "still under way when the run was interrupted"
            if complete:  # nothing is left to happen, and yet it waits
                r.status = "failed"
                r.reason = f"never finished: waits for {engine.lack or 'ever'}"
                if engine.died:
                    r.reason = f"the engine died: {engine.died}"
    ends = [r.finish_s for r in recorder.requests if r.finish_s is not None]
    end_s = max(ends, default=0.0) if complete else max(env.now, engine.clock)
    recorder.lacks(end_s, "")
    summary = summarise(
        scenario,
        replica,
        recorder,
        link,
        engine.host_bytes,
        end_s=end_s,
        complete=complete,
        open_loop=workload.concurrency is None,
        death=_death(engine) if engine.died else None,
    )
    timing: dict[str, Any] = {
        "wall_s": time.perf_counter() - began,
        "cpu_s": time.process_time() - cpu,
        "engine_steps": recorder.steps,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
    }
    return Result(scenario, replica.pools, summary, recorder.requests, recorder.rows, timing)


def _death(engine: Engine) -> dict[str, Any]:
    step = engine.scheduler.step
    return {"step": step, "time_s": engine.clock, "error": engine.died, "remedy": REMEDY}


def _drive(env: simpy.Environment, recorder: Recorder, engine: Engine, progress: Progress | None) -> bool:
    """Run all events; False if interrupted. The collector would only walk live records: it rests."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with held_interrupts() as interrupted:
            while not interrupted():
                for _ in range(_EVENTS):
                    env.step()
                if progress is not None:
                    progress(env.now, engine.finished, len(recorder.requests))
            return False
    except simpy.core.EmptySchedule:
        return True
    except HiSparseError as error:  # simpy raises a copy, which has lost the place
        raise error.__cause__ or error from None
    finally:
        if collecting:
            gc.enable()
