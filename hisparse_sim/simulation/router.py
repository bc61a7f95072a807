"""Which of several engines a request is sent to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hisparse_sim.memory.content import ContentIndex
from hisparse_sim.memory.pool import GrowingArray, Ids
from hisparse_sim.scenario.cluster import ClusterSpec
from hisparse_sim.simulation.blocks import blocks_of, described_tokens
from hisparse_sim.simulation.engine import Engine
from hisparse_sim.workload.request import RequestSpec, Session

_WAITING_WEIGHT = 4
"""vLLM's balancer counts a waiting request as much as four running ones (DPLBAsyncMPClient)."""


class Instance:
    """The DP replicas of one ``vllm serve`` behind its own balancer."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = engines
        self.under_way = 0
        """Requests sent here that are not over."""
        self._next = 0

    @property
    def dead(self) -> bool:
        """Whether all its engines are."""
        return all(engine.died for engine in self.engines)

    def pick(self) -> Engine:
        """The replica with the least to do, of those that live; in turn among equals."""
        engines = self.engines
        if len(engines) == 1:
            return engines[0]
        turn = [*engines[self._next :], *engines[: self._next]]
        turn = [engine for engine in turn if not engine.died] or turn
        found = min(turn, key=_load)
        self._next = (engines.index(found) + 1) % len(engines)
        return found


def _load(engine: Engine) -> int:
    return _WAITING_WEIGHT * engine.waiting() + len(engine.scheduler.running)


class Router:
    """Sends each request to an instance, as :class:`ClusterSpec` says, and on to one of its replicas."""

    def __init__(self, instances: Sequence[Instance], spec: ClusterSpec, content: ContentIndex) -> None:
        self.instances = instances
        self._spec = spec
        self._content = content
        self._next = 0
        self._sent = [GrowingArray(0, np.int8) for _ in instances]
        """Of each instance: whether it was sent a block of this content."""
        self._affine = spec.router == "prefix_affinity" and len(instances) > 1

    def send(self, session: Session, spec: RequestSpec, over: Callable[[], None]) -> None:
        """A request arrives; ``over`` is called later, when it has finished or failed."""
        engine, ended = self.choose(spec, over)
        engine.send(session, spec, ended)

    def takes(self, spec: RequestSpec) -> bool:
        """Whether a request is short enough."""
        return self.instances[0].engines[0].takes(spec)

    def choose(self, spec: RequestSpec, over: Callable[[], None]) -> tuple[Engine, Callable[[], None]]:
        """An engine for a request, and what to call when it is over there."""
        chosen = self.instances[self._choose(spec)]
        chosen.under_way += 1

        def ended() -> None:
            chosen.under_way -= 1
            over()

        return chosen.pick(), ended

    def _choose(self, spec: RequestSpec) -> int:
        count = len(self.instances)
        if count == 1:
            return 0
        if self._spec.router == "round_robin":
            found = self._turn()[0]
        elif self._affine:
            found = self._nearest(spec)
        else:
            found = self._idlest()
        self._next = (found + 1) % count
        return found

    def _turn(self) -> list[int]:
        """The instances that live, whose turn it is first; all of them if none does."""
        count = len(self.instances)
        turn = [(self._next + i) % count for i in range(count)]
        return [i for i in turn if not self.instances[i].dead] or turn

    def _idlest(self) -> int:
        return min(self._turn(), key=lambda i: self.instances[i].under_way)

    def _nearest(self, spec: RequestSpec) -> int:
        """The instance that was sent most of this prompt before, unless that is little or others are idle."""
        known_tokens = min(spec.prompt_tokens, described_tokens(spec.content))
        ids = blocks_of(self._content, spec.content, known_tokens)
        found = self._idlest()
        loads = {i: self.instances[i].under_way for i in sorted(self._turn())}
        least, most = min(loads.values()), max(loads.values())
        rules = self._spec
        uneven = most - least > rules.balance_abs_threshold and most > rules.balance_rel_threshold * least
        if not uneven and len(ids):
            known = {i: self._known(self._sent[i], ids) for i in loads}
            best = max(known.values())
            if best > rules.cache_threshold * len(ids):
                found = min((i for i, n in known.items() if n == best), key=loads.__getitem__)
        sent = self._sent[found]
        if len(ids):
            sent.reach(int(ids.max()) + 1)
            sent.a[ids] = 1
        return found

    @staticmethod
    def _known(sent: GrowingArray, ids: Ids) -> int:
        """Leading blocks that were sent before."""
        there = ids < len(sent.a)
        there[there] = sent.a[ids[there]] > 0
        return len(ids) if there.all() else int(there.argmin())
