"""Prefill and decode apart: each request is prefilled by one engine and decoded by another."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from hisparse_sim.memory.handover import HoldingMemory
from hisparse_sim.scheduler.request import Request
from hisparse_sim.simulation.engine import Engine
from hisparse_sim.simulation.record import RequestRecord, record_of
from hisparse_sim.simulation.router import Router
from hisparse_sim.workload.request import RequestSpec, Session


class Disaggregation:
    """Two pools of engines behind a router each.

    A request goes to a prefilling engine first, which samples one token (thrown away, as by vLLM's proxy)
    and keeps the KV; then to a decoding engine, which reads the prompt's KV before it runs. So the first
    token that the client sees is the decoding engine's.
    """

    def __init__(self, prefilling: Router, decoding: Router, requests: list[RequestRecord]) -> None:
        self._prefilling, self._decoding = prefilling, decoding
        self._requests = requests

    def send(self, session: Session, spec: RequestSpec, over: Callable[[], None]) -> None:
        """A request arrives; ``over`` is called later, when it has finished or failed."""
        first, left = self._prefilling.choose(spec, _nothing)
        record = record_of(session, spec, first.env.now, first.recorder.replica)
        self._requests.append(record)
        if not self._decoding.takes(spec):
            left()
            self._decode(record, spec, over, None)
            return
        # What the prefilling engine writes of the request is not all of it.
        part = replace(record)

        def prefilled() -> None:
            left()
            record.first_scheduled_s, record.hit_tokens = part.first_scheduled_s, part.hit_tokens
            record.preemptions, record.preempted_s = part.preemptions, part.preempted_s
            if part.status == "failed":
                record.status, record.reason = part.status, part.reason
                over()
                return
            assert request is not None
            memory = first.memory
            assert isinstance(memory, HoldingMemory)

            self._decode(record, spec, over, partial(_read, first, memory, request))

        request = first.take(part, replace(spec, output_tokens=1), prefilled)

    def _decode(
        self,
        record: RequestRecord,
        spec: RequestSpec,
        over: Callable[[], None],
        read: Callable[[], None] | None,
    ) -> None:
        engine, ended = self._decoding.choose(spec, over)
        record.replica = engine.recorder.replica
        engine.take(record, spec, ended, read)


def _nothing() -> None:
    pass


def _read(engine: Engine, memory: HoldingMemory, request: Request) -> None:
    """What the engine has kept has been read."""
    memory.let_go(request)
    engine.rouse()
