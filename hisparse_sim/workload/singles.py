"""Single requests: open loop at arrivals, or closed loop, one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hisparse_sim.scenario.arrivals import ArrivalsSpec, PoissonArrivalsSpec
from hisparse_sim.scenario.distributions import Count
from hisparse_sim.scenario.workload import OpenSpec, PoissonSpec, StreamSpec
from hisparse_sim.workload.arrivals import arrival_times_s
from hisparse_sim.workload.content import check_shared_prefix, said
from hisparse_sim.workload.draws import Draws
from hisparse_sim.workload.lengths import draw_counts, jittered_tokens
from hisparse_sim.workload.request import RequestSpec, Session
from hisparse_sim.workload.starts import session_starts_s
from hisparse_sim.workload.tenants import Tenants

_PIECE = 4096


class SingleRequests:
    """What open and closed loop share: independent requests of random lengths, one a session.

    Arrival times, prompt lengths and output lengths come from three generators of their own (PCG64),
    so a change to one leaves the others as they are.
    """

    def __init__(self, spec: PoissonSpec | OpenSpec | StreamSpec, seed: int) -> None:
        check_shared_prefix(spec.shared_prefix_tokens, spec.prompt_tokens, "workload.shared_prefix_tokens")
        for tenant in spec.tenants:
            check_shared_prefix(tenant.shared_prefix_tokens or 0, spec.prompt_tokens, "workload.tenants")
        self.spec = spec
        self.seed = seed
        self.notes: list[str] = []
        self.concurrency: int | None = spec.concurrency if isinstance(spec, StreamSpec) else None
        self.limit: int | None = spec.limit

    def expected_requests(self, sessions: int, requests: int) -> int | None:
        """As many as are asked for; arrivals that end by themselves do not say how many they are."""
        return self.spec.requests

    def sessions(self) -> Iterator[Session]:
        """The requests, in order of arrival."""
        spec = self.spec
        times_rng, prompt_rng, output_rng = (
            np.random.Generator(np.random.PCG64(child))
            for child in np.random.SeedSequence(self.seed).spawn(3)
        )
        tenants = Tenants(spec.tenants, spec.shared_prefix_tokens)
        prompts = self._tokens(spec.prompt_tokens, prompt_rng)
        outputs = self._tokens(spec.output_tokens, output_rng)
        name_of = f"request-%0{len(str((spec.requests or 10**6) - 1))}d"
        for index, start_s in enumerate(self._starts_s(times_rng)):
            prompt_tokens, output_tokens = next(prompts), next(outputs)
            name = name_of % index
            draws = Draws(self.seed, index)
            tenant = tenants.of(draws)
            request = RequestSpec(
                name,
                prompt_tokens,
                output_tokens,
                # What nobody describes is nobody else's, either.
                content=said(name, prompt_tokens, tenant.prefix) if tenant.prefix.tokens else (),
                delay_s=self._pause_s(index, draws),
                priority=tenant.priority,
            )
            yield Session(id=name, requests=(request,), start_s=start_s, tags=tenant.tags)

    def _starts_s(self, rng: np.random.Generator) -> Iterator[float | None]:
        spec = self.spec
        if isinstance(spec, StreamSpec):
            return session_starts_s(_Closed(spec), spec.requests, self.seed)
        arrivals = (
            spec.arrivals if isinstance(spec, OpenSpec) else PoissonArrivalsSpec(rate_per_s=spec.rate_per_s)
        )
        return iter(arrival_times_s(arrivals, rng, spec.requests))

    def _tokens(self, lengths: Count, rng: np.random.Generator) -> Iterator[int]:
        while True:
            if isinstance(lengths, int):
                yield from jittered_tokens(rng, lengths, self.spec.length_jitter, _PIECE).tolist()
            else:
                yield from draw_counts(lengths, rng, _PIECE).tolist()

    def _pause_s(self, index: int, draws: Draws) -> float:
        """A client thinks before each request but its first."""
        spec = self.spec
        if not isinstance(spec, StreamSpec) or index < spec.concurrency:
            return 0.0
        return float(draws.seconds(spec.think_time_s, "pause", 1)[0])


class _Closed:
    """A stream's clients, which have no arrivals."""

    arrivals: ArrivalsSpec | None = None

    def __init__(self, spec: StreamSpec) -> None:
        self.concurrency: int | None = spec.concurrency
        self.ramp_up_s = spec.ramp_up_s
