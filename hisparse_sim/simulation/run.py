"""Run a scenario from beginning to end."""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Callable
from typing import Any

import simpy

from hisparse_sim.cost.links import HostLink as LinkRates
from hisparse_sim.scenario.scenario import Scenario
from hisparse_sim.simulation.clients import Clients
from hisparse_sim.simulation.engine import Engine
from hisparse_sim.simulation.links import HostLink
from hisparse_sim.simulation.recorder import Recorder
from hisparse_sim.simulation.replica import Replica, build_replica
from hisparse_sim.simulation.result import Result
from hisparse_sim.simulation.summary import summarise
from hisparse_sim.workload.make import make_workload

Progress = Callable[[float, int, int], None]
"""Called now and then with simulated seconds, requests over and requests sent so far."""

_PROGRESS_EVENTS = 2000


def simulate(
    scenario: Scenario, *, replica: Replica | None = None, progress: Progress | None = None
) -> Result:
    """Simulate ``scenario`` until all its requests are over.

    Ctrl-C ends the run early: the result then holds what was done and says ``complete: false``.
    Raises ``Infeasible`` or ``InputError`` before anything runs.
    """
    began = time.perf_counter()
    cpu = time.process_time()
    workload = make_workload(scenario.workload, scenario.seed)
    replica = replica or build_replica(scenario)
    recorder = Recorder()
    env = simpy.Environment()
    rates = LinkRates(scenario.node, replica.profile, ranks=scenario.tp)
    link = HostLink(env, rates.h2d_bytes_per_s, rates.d2h_bytes_per_s, rates.both_ways_bytes_per_s)
    engine = Engine(
        env,
        scheduler=replica.scheduler,
        memory=replica.memory,
        cost=replica.cost,
        link=link,
        recorder=recorder,
        topk=scenario.model.index_topk,
        block_bytes=replica.pools.block_bytes,
        index_block_bytes=replica.index_block_bytes,
    )
    # A trace is cut by its recorded times, before it is played.
    limit = None if scenario.workload.kind == "trace" else scenario.workload.limit
    clients = Clients(env, workload, engine.send, limit=limit)
    complete = _drive(env, recorder, engine, progress)
    complete = complete and clients.done
    now = env.now
    ends = [r.finish_s for r in recorder.requests if r.finish_s is not None]
    sim_time_s = max(ends) if complete and ends else now
    for r in recorder.requests:
        if r.status == "incomplete" and not r.reason:
            r.reason = "still under way when the run was interrupted" if not complete else "never admitted"
    summary = summarise(scenario, replica, recorder, link, sim_time_s=float(sim_time_s), complete=complete)
    timing: dict[str, Any] = {
        "wall_s": time.perf_counter() - began,
        "cpu_s": time.process_time() - cpu,
        "engine_steps": recorder.steps,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
    }
    return Result(scenario, replica.pools, summary, recorder.requests, recorder.rows, timing)


def _drive(env: simpy.Environment, recorder: Recorder, engine: Engine, progress: Progress | None) -> bool:
    """Run all events; False if interrupted. The collector would only walk live records: it rests."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        if progress is None:
            env.run()
        else:
            while True:
                try:
                    for _ in range(_PROGRESS_EVENTS):
                        env.step()
                except simpy.core.EmptySchedule:
                    break
                progress(env.now, engine.finished, len(recorder.requests))
    except KeyboardInterrupt:
        return False
    finally:
        if collecting:
            gc.enable()
    return True
