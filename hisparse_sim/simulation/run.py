"""Run a scenario from beginning to end."""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Callable
from typing import Any

import simpy
from msgspec.structs import replace

from hisparse_sim.errors import HiSparseError
from hisparse_sim.scenario.scenario import Scenario
from hisparse_sim.simulation.checkpoints import Checkpoints
from hisparse_sim.simulation.clients import Clients
from hisparse_sim.simulation.engine import HAD_DIED
from hisparse_sim.simulation.fleet import Fleet
from hisparse_sim.simulation.interrupt import held_interrupts
from hisparse_sim.simulation.moment import Clock
from hisparse_sim.simulation.record import RequestRecord
from hisparse_sim.simulation.replica import Replica, build_replica
from hisparse_sim.simulation.result import INTERRUPTED, SO_FAR, Result
from hisparse_sim.simulation.summary import summarise
from hisparse_sim.simulation.survival import Ending, admission_crash, first_of, standstill
from hisparse_sim.workload.make import make_workload
from hisparse_sim.workload.request import Workload

Progress = Callable[[float, int, int | None], None]
"""Called now and then with simulated seconds, requests over, and how many there will be, if that is known."""

_EVENTS = 500
"""Between two looks at Ctrl-C, at the clock and two calls of progress (or as much work): 0.1 s or less."""


def simulate(
    scenario: Scenario,
    *,
    replica: Replica | None = None,
    workload: Workload | None = None,
    progress: Progress | None = None,
    checkpoints: Checkpoints | None = None,
) -> Result:
    """Simulate ``scenario`` until all its requests are over.

    ``replica`` and ``workload``: the scenario's, if they are made already; a replica serves one run.
    ``checkpoints`` are given what is done so far now and then, which changes nothing.
    Ctrl-C ends the run early: the result then holds what was done and says ``complete: false``.
    Raises ``Infeasible`` or ``InputError``.
    """
    replica = replica or build_replica(scenario)
    workload = workload or make_workload(scenario.workload, scenario.seed)
    began = time.perf_counter(), time.process_time()
    return _Run(scenario, replica, workload, began).to_its_end(progress, checkpoints)


class _Run:
    """A scenario being simulated."""

    def __init__(
        self, scenario: Scenario, replica: Replica, workload: Workload, began: tuple[float, float]
    ) -> None:
        self._began = began
        self.scenario = scenario
        self.replica = replica
        self.env = Clock()
        self.fleet = Fleet(self.env, scenario, replica)
        self.endings: list[Ending] = []
        """Why some requests never finished, of each engine that has such."""
        self.open_loop = workload.concurrency is None
        self.clients = Clients(self.env, workload, self.fleet.send)

    def to_its_end(self, progress: Progress | None, checkpoints: Checkpoints | None) -> Result:
        """Or to Ctrl-C."""
        if not self._drive(progress, checkpoints):
            return self._result(complete=False)
        # Nothing is left to happen, and yet these wait.
        left = [r for r in self.fleet.requests if r.status == "incomplete"]
        for replica in sorted({r.replica for r in left}):
            self.endings.append(self._ending(replica, [r for r in left if r.replica == replica]))
        return self._result(complete=True)

    def _ending(self, replica: int, left: list[RequestRecord]) -> Ending:
        """Of an engine that has such requests."""
        engine = self.fleet.engines[replica]
        step, time_s, requests = engine.scheduler.step, engine.clock, len(left)
        if engine.died:
            requests += sum(r.reason == HAD_DIED and r.replica == replica for r in self.fleet.requests)
            ending = admission_crash(engine.died, step=step, time_s=time_s, requests=requests)
            reason = f"the engine died: {engine.died}"
        else:
            old = self.scenario.engine.version.startswith("0.30")
            ending = standstill(engine.lack, step=step, time_s=time_s, requests=requests, old=old)
            reason = f"never finished: waits for {engine.lack or 'ever'}"
        for r in left:
            r.status, r.reason = "failed", reason
        ending.replica = replica if len(self.fleet.engines) > 1 else None
        return ending

    def so_far(self) -> Result:
        """What a run leaves that goes on."""
        return self._result(complete=False, under_way=SO_FAR)

    def _drive(self, progress: Progress | None, checkpoints: Checkpoints | None) -> bool:
        """Run all events; False if interrupted. The collector would only walk live records: it rests."""
        env, fleet = self.env, self.fleet
        collecting = gc.isenabled()
        gc.disable()
        try:
            with held_interrupts() as interrupted:
                while not interrupted():
                    env.go(_EVENTS)
                    if progress is not None:
                        progress(env.now, fleet.finished, self.clients.expected_requests())
                    if checkpoints is not None:
                        checkpoints.look(self.so_far)
                return False
        except simpy.core.EmptySchedule:
            return True
        except HiSparseError as error:  # simpy raises a copy, which has lost the place
            raise error.__cause__ or error from None
        finally:
            if collecting:
                gc.enable()

    def _result(self, *, complete: bool, under_way: str = INTERRUPTED) -> Result:
        fleet = self.fleet
        requests, engines = fleet.requests, fleet.engines
        for request in requests:
            engines[request.replica].recorder.catch_up(request)
        fleet.settle()
        locks = [
            replace(engine.live_lock, replica=number if len(engines) > 1 else None)
            for number, engine in enumerate(engines)
            if engine.live_lock
        ]
        ends = [r.finish_s for r in requests if r.finish_s is not None]
        if self.endings or locks:
            ends.append(fleet.clock)
        end_s = max(ends, default=0.0) if complete else max(self.env.now, fleet.clock)
        recorder = fleet.recorder(end_s)
        deaths = [ending for ending in self.endings if engines[ending.replica or 0].died]
        summary = summarise(
            self.scenario,
            self.replica,
            recorder,
            fleet.steps,
            fleet.totals(),
            end_s=end_s,
            complete=complete,
            open_loop=self.open_loop,
            endings={
                "engine_death": first_of(deaths),
                "live_lock": first_of(locks),
                "standstill": first_of(ending for ending in self.endings if ending not in deaths),
            },
        )
        wall_s, cpu_s = self._began
        timing: dict[str, Any] = {
            "wall_s": time.perf_counter() - wall_s,
            "cpu_s": time.process_time() - cpu_s,
            "engine_steps": recorder.steps,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
        }
        return Result(self.scenario, self.replica.pools, summary, requests, fleet.steps, timing, under_way)
