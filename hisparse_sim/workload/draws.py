"""Random numbers of one session, apart from those of every other."""

from __future__ import annotations

import numpy as np
from numpy.random import PCG64, Generator, SeedSequence

from hisparse_sim.workload.lengths import Floats, Ints, Varies, draw, draw_counts

_PURPOSES = ("tenant", "turns", "prompt", "new", "output", "pause", "tools", "subagents", "shape", "document")


class Draws:
    """A generator (PCG64) for each session and purpose, all from one seed.

    A change to one thing leaves all others as they are, a longer run begins with the shorter one, and
    sessions can be made in any order. ``inside``: of something within the session, such as its agents.
    """

    def __init__(self, seed: int, session: int, *inside: int) -> None:
        self.seed = seed
        self.key = (session, *inside)

    def generator(self, purpose: str) -> Generator:
        """A new generator for ``purpose``, from its beginning."""
        seeds = SeedSequence(self.seed, spawn_key=(*self.key, _PURPOSES.index(purpose)))
        return Generator(PCG64(seeds))

    def counts(self, spec: Varies, purpose: str, count: int) -> Ints:
        """Whole numbers >= 1 of a plain number or a distribution."""
        if isinstance(spec, int):
            return np.full(count, spec, dtype=np.int64)
        return draw_counts(spec, self.generator(purpose), count)

    def seconds(self, spec: Varies, purpose: str, count: int) -> Floats:
        """Times >= 0 of a plain number or a distribution."""
        if isinstance(spec, (int, float)):
            return np.full(count, float(spec))
        return draw(spec, self.generator(purpose), count)
