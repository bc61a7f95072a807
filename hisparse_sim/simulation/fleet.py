"""All engines of a run, and what they wrote as if one had written it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hisparse_sim.cost.links import LinkRates
from hisparse_sim.memory.content import ContentIndex
from hisparse_sim.memory.offload import OffloadMemory
from hisparse_sim.scenario.scenario import Scenario
from hisparse_sim.simulation.clients import Send
from hisparse_sim.simulation.columns import PIECE_ROWS, Columns, StepLog
from hisparse_sim.simulation.disaggregation import Disaggregation
from hisparse_sim.simulation.engine import Engine
from hisparse_sim.simulation.gaps import together
from hisparse_sim.simulation.links import D2H, H2D, HostLink, HostMemory, StepLink
from hisparse_sim.simulation.lockstep import Lockstep
from hisparse_sim.simulation.moment import Clock
from hisparse_sim.simulation.record import RequestRecord
from hisparse_sim.simulation.recorder import AT_A_TIME, Recorder
from hisparse_sim.simulation.replica import Replica, blocks_in, build_prefill, check_handover, peers_of
from hisparse_sim.simulation.router import Instance, Router
from hisparse_sim.simulation.rows import FIELDS, Rows
from hisparse_sim.simulation.summary import Totals

Queue = list[tuple[float, int, int]]

_ROW_GRAIN = 256
"""A row of the steps ends when the GPU's free blocks have changed by more than this part of all."""


_NOTED_STEPS = 1 << 16
"""Steps of all engines together that are noted before they are worked up; fewer if there are few engines."""


class Fleet:
    """The replicas of a scenario on one clock: DP replicas of instances behind a router."""

    def __init__(self, env: Clock, scenario: Scenario, first: Replica) -> None:
        self._env = env
        self.requests: list[RequestRecord] = []
        """In order of arrival, of all engines."""
        self.engines: list[Engine] = []
        """Those that decode, then those that only prefill."""
        self.router = self._pool(scenario, first, self.requests)
        self.decoding = len(self.engines)
        """How many decode."""
        self.prefill: Replica | None = None
        """One of those that only prefill."""
        self.send: Send = self.engines[0].send if self.decoding == 1 else self.router.send
        if (prefilling := scenario.prefilling) is not None:
            check_handover(scenario, prefilling)
            self.prefill = build_prefill(prefilling)
            router = self._pool(prefilling, self.prefill, [])
            self.send = Disaggregation(router, self.router, self.requests).send
        logs = [StepLog(engine.recorder.rows) for engine in self.engines]
        self.steps: StepLog = logs[0] if len(logs) == 1 else _Logs(logs)

    def _pool(self, scenario: Scenario, first: Replica, requests: list[RequestRecord]) -> Router:
        """Instances alike and their router."""
        dp, start = scenario.engine.dp, len(self.engines)
        node, apart = scenario.node, max(1, min(first.ranks_per_node // first.ranks, dp))
        # Replicas on one node share its memory as they come; a replica alone always has all of it.
        rates = LinkRates(node, ranks=1 if apart > 1 else first.ranks_per_node)
        memory: HostMemory | None = None
        content = ContentIndex(first.memory.block_size)
        prefill = scenario.cluster.prefill
        together = dp > 1 and scenario.model.moe_layers > 0
        lockstep: Lockstep | None = None
        for number, replica in enumerate(peers_of(first, scenario)):
            if together and not number % dp:
                lockstep = Lockstep(self._env)
            recorder = Recorder(
                Rows(replica.memory.gpu.total // _ROW_GRAIN),
                at_a_time=min(AT_A_TIME, max(128, _NOTED_STEPS // scenario.replicas)),
                requests=requests,
                replica=len(self.engines),
            )
            if apart > 1 and not number % dp % apart:
                memory = HostMemory(node.dram_bytes_per_s)
            speeds = rates.h2d_bytes_per_s, rates.d2h_bytes_per_s, rates.both_ways_bytes_per_s
            alone = memory is None and prefill is None and not isinstance(replica.memory, OffloadMemory)
            link: HostLink | StepLink = (
                StepLink(self._env, *speeds)
                if alone
                else HostLink(self._env, *speeds, memory=memory, ranks=first.ranks)
            )
            network = None
            if prefill is not None:
                speed = prefill.link_bytes_per_s
                network = HostLink(self._env, speed, speed, 2 * speed)
            self.engines.append(
                Engine(
                    self._env, replica, link, recorder, content=content, lockstep=lockstep, network=network
                )
            )
        engines = self.engines[start:]
        instances = [Instance(engines[i : i + dp]) for i in range(0, len(engines), dp)]
        return Router(instances, scenario.cluster, content)

    @property
    def finished(self) -> int:
        """Requests that are over."""
        return sum(engine.finished for engine in self.engines[: self.decoding])

    @property
    def clock(self) -> float:
        """Now, or where the engine that is furthest will be when it next yields."""
        return max(engine.clock for engine in self.engines)

    def totals(self) -> Totals:
        """What has been moved so far, and the pools."""
        engines, decoding = self.engines, self.engines[: self.decoding]

        def host(direction: int) -> float:
            return sum(engine.traffic.host_bytes[direction] for engine in engines)

        def link(direction: int) -> float:
            return sum(engine.traffic.link.bytes[direction] for engine in decoding) / len(decoding)

        return Totals(
            [blocks_in(engine.replica.pools) for engine in engines],
            (link(H2D), link(D2H)),
            (host(H2D), host(D2H)),
            sum(n.bytes[H2D] * e.replica.ranks for e in decoding if (n := e.traffic.network) is not None),
            self.prefill.pools if self.prefill is not None else None,
        )

    def settle(self) -> None:
        """Work up all steps so far."""
        for engine in self.engines:
            engine.recorder.settle()

    def recorder(self, end_s: float) -> Recorder:
        """Totals of all engines until ``end_s``; seconds of busy GPUs are means of them.

        Seconds of waiting are, too: of those that only prefill and of the others, and added.
        """
        recorders = [engine.recorder for engine in self.engines]
        if len(recorders) == 1:
            return recorders[0]
        short: dict[str, float] = {}
        for number, recorder in enumerate(recorders):
            alike = self.decoding if number < self.decoding else len(recorders) - self.decoding
            for what, seconds in recorder.waited(end_s).items():
                short[what] = short.get(what, 0.0) + seconds / alike
        return Recorder(
            requests=self.requests,
            queue=merged([recorder.queue for recorder in recorders]),
            gaps=together(r.gaps for r in recorders),
            paid=list(map(sum, zip(*(r.paid for r in recorders), strict=True))),
            link_s=sum(r.link_s for r in recorders),
            short_of=short,
            steps=sum(r.steps for r in recorders),
            busy_s=sum(r.busy_s for r in recorders) / len(recorders),
            prompt_tokens=sum(r.prompt_tokens for r in recorders),
            hit_tokens=sum(r.hit_tokens for r in recorders),
            loaded_tokens=sum(r.loaded_tokens for r in recorders),
            preemptions=sum(r.preemptions for r in recorders),
            verified_steps=sum(r.verified_steps for r in recorders),
            draft_tokens=sum(r.draft_tokens for r in recorders),
            accepted_tokens=sum(r.accepted_tokens for r in recorders),
        )


def merged(queues: Sequence[Queue]) -> Queue:
    """Running and waiting requests of all engines together, whenever one of them changes."""
    times, changes = [], []
    for queue in queues:
        if queue:
            values = np.array([entry[1:] for entry in queue])
            times.append(np.array([entry[0] for entry in queue]))
            changes.append(np.diff(values, axis=0, prepend=np.zeros((1, 2), dtype=values.dtype)))
    if not times:
        return []
    at, by = np.concatenate(times), np.concatenate(changes)
    order = np.argsort(at, kind="stable")
    at, sums = at[order], np.cumsum(by[order], axis=0)
    last = np.append(at[1:] != at[:-1], True)
    running, waiting = sums[last].T
    return list(zip(at[last].tolist(), running.tolist(), waiting.tolist(), strict=True))


class _Logs(StepLog):
    """The steps of several engines, in the order of their beginnings."""

    def __init__(self, logs: Sequence[StepLog]) -> None:
        self._logs = logs

    def pieces(self, names: Sequence[str] = FIELDS) -> Iterator[Columns]:
        wanted = tuple(dict.fromkeys((*names, "start_s")))
        pieces = [piece for log in self._logs for piece in log.pieces(wanted)]
        columns = {name: np.concatenate([piece[name] for piece in pieces]) for name in wanted}
        order = np.argsort(columns["start_s"], kind="stable")
        for start in range(0, max(len(order), 1), PIECE_ROWS):
            part = order[start : start + PIECE_ROWS]
            yield {name: values[part] for name, values in columns.items()}
