"""Single requests: open loop at random times, or closed loop, one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hisparse_sim.scenario.workload import PoissonSpec, StreamSpec
from hisparse_sim.workload.content import said
from hisparse_sim.workload.lengths import jittered_tokens
from hisparse_sim.workload.request import RequestSpec, Session


class SingleRequests:
    """What open and closed loop share: independent requests of random lengths, one a session.

    Arrival times, prompt lengths and output lengths come from three generators of their own (PCG64),
    so a change to one leaves the others as they are.
    """

    def __init__(self, spec: PoissonSpec | StreamSpec, seed: int) -> None:
        self.spec = spec
        self.seed = seed
        self.concurrency: int | None = spec.concurrency if isinstance(spec, StreamSpec) else None

    def sessions(self) -> Iterator[Session]:
        """The requests, in order of arrival."""
        spec = self.spec
        times_rng, prompt_rng, output_rng = (
            np.random.Generator(np.random.PCG64(child))
            for child in np.random.SeedSequence(self.seed).spawn(3)
        )
        starts_s = (
            np.cumsum(times_rng.exponential(1 / spec.rate_per_s, spec.requests)).tolist()
            if isinstance(spec, PoissonSpec)
            else [None] * spec.requests
        )
        prompts = jittered_tokens(prompt_rng, spec.prompt_tokens, spec.length_jitter, spec.requests).tolist()
        outputs = jittered_tokens(output_rng, spec.output_tokens, spec.length_jitter, spec.requests).tolist()
        width = len(str(spec.requests - 1))
        for index, (start_s, prompt_tokens, output_tokens) in enumerate(
            zip(starts_s, prompts, outputs, strict=True)
        ):
            name = f"request-{index:0{width}d}"
            content = said(name, prompt_tokens + output_tokens, spec.shared_prefix_tokens)
            request = RequestSpec(name, prompt_tokens, output_tokens, content=content)
            yield Session(id=name, requests=(request,), start_s=start_s)
