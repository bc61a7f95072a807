"""What a stream of requests amounts to, before anything is simulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Any

import numpy as np

from hisparse_sim.workload.lengths import Floats, Ints
from hisparse_sim.workload.request import BlockHashes, Session, Workload
from hisparse_sim.workload.tally import Tally, TimeBins
from hisparse_sim.workload.traces.batch import Batch
from hisparse_sim.workload.traces.flat import FlatTrace
from hisparse_sim.workload.unlimited_cache import UnlimitedCache

_TOKENS = 2**40 - 1
"""More than any prompt has: a group and a number of tokens share one whole number."""


def describe(workload: Workload) -> dict[str, Any]:
    """Counts, quantiles and the prefix-hit bound of a whole stream; see ``Facts.summary``."""
    return Facts.of(workload).summary()


class Facts:
    """Adds up a stream, in memory that does not grow with it.

    ``new_tokens``: of a prompt, what a cache of unlimited size would not have.
    """

    def __init__(self, concurrency: int | None = None) -> None:
        self.concurrency = concurrency
        self.prompt_tokens, self.output_tokens, self.new_tokens = Tally(), Tally(), Tally()
        self.turns, self.think_time_s, self.gap_s = Tally(), Tally(), Tally()
        self.arrivals = TimeBins()
        self.sessions = 0
        self.hit_tokens = 0
        self.blocks = 0
        self.hit_blocks = 0
        self.tenants: Counter[str] = Counter()
        self.priorities: Counter[int] = Counter()
        self.notes: list[str] = []
        self._cache = UnlimitedCache()
        self._last_s: float | None = None
        self._timed = True

    @classmethod
    def of(cls, workload: Workload) -> Facts:
        """Of all of a workload. Raises InputError where a trace that was not checked is wrong."""
        facts = cls(workload.concurrency)
        if isinstance(workload, FlatTrace) and workload.simple:
            block_tokens = workload.layout.format.block_tokens if workload.layout else None
            for batch in workload.batches():
                facts.add_batch(batch, block_tokens)
        else:
            for session in workload.sessions():
                facts.add(session)
        facts.notes = list(workload.notes)
        return facts

    def add(self, session: Session) -> None:
        """Count a session."""
        requests = session.requests
        hits = [self._cache.hit_tokens(request) for request in requests]
        self.sessions += 1
        self.turns.add(np.array([len(requests)]))
        for request, hit in zip(requests, hits, strict=True):
            if isinstance(request.content, BlockHashes):
                blocks = -(-request.prompt_tokens // request.content.block_tokens)
                self.blocks += blocks
                full_hit = hit + 1 == request.prompt_tokens
                self.hit_blocks += blocks if full_hit else hit // request.content.block_tokens
            self.priorities[request.priority] += 1
        self.think_time_s.add(np.array([r.delay_s for r in requests if r.after], dtype=np.float64))
        if name := session.tags.get("tenant"):
            self.tenants[name] += 1
        self._add_requests(
            np.array([r.prompt_tokens for r in requests]),
            np.array([r.output_tokens for r in requests]),
            np.array(hits),
        )
        start_s = np.nan if session.start_s is None else session.start_s
        self._add_arrivals(np.array([start_s], dtype=np.float64))

    def add_batch(self, batch: Batch, block_tokens: int | None) -> None:
        """Count rows that are sessions of their own; ``block_tokens`` of their ids."""
        if not len(batch):
            return
        hits = np.zeros(len(batch), dtype=np.int64)
        if batch.ids is not None and block_tokens:
            blocks = self._cache.hit_blocks(batch.copy, batch.ids)
            prompt_blocks = -(-batch.prompt_tokens // block_tokens)
            self.blocks += int(prompt_blocks.sum())
            self.hit_blocks += int(np.minimum(blocks, prompt_blocks).sum())
            hits = np.minimum(blocks * block_tokens, batch.prompt_tokens - 1)
        elif "session" in batch.more or "prefix_tokens" in batch.more:
            hits = self._said_before(batch)
        for priority, times in Counter(batch.more.get("priority", [None] * len(batch))).items():
            self.priorities[priority or 0] += times
        self.tenants.update(filter(None, batch.more.get("tenant", ())))
        self.sessions += len(batch)
        self.turns.add(np.ones(len(batch), dtype=np.int64))
        self._add_requests(batch.prompt_tokens, batch.output_tokens, hits)
        self._add_arrivals(batch.arrival_s)

    def summary(self) -> dict[str, Any]:
        """All as plain values; an undefined one is null.

        ``prefix_hit_bound`` is the share of all prompt tokens that a cache of unlimited size would have;
        a request of n tokens hits at most n - 1, as its last token is computed. ``block_hit_bound`` is the
        same in blocks of the trace, partial ones counted whole, where the trace gives ids of blocks.
        """
        requests, span_s = self.prompt_tokens.count, self.arrivals.last_s
        rated = self._timed and self.gap_s.sum > 0
        return {
            "sessions": self.sessions,
            "requests": requests,
            "concurrency": self.concurrency,
            "prompt_tokens": self.prompt_tokens.summary(),
            "output_tokens": self.output_tokens.summary(),
            "new_tokens": self.new_tokens.summary(),
            "turns": self.turns.summary(),
            "think_time_s": self.think_time_s.summary(),
            "arrival_gap_s": self.gap_s.summary(),
            "last_arrival_s": span_s if self._timed and requests else None,
            "sessions_per_s": self.gap_s.count / self.gap_s.sum if rated else None,
            "gap_variation": self.gap_s.variation,
            "prefix_hit_bound": self.hit_tokens / self.prompt_tokens.sum if requests else None,
            "block_hit_bound": self.hit_blocks / self.blocks if self.blocks else None,
            "tenants": {name: count / self.sessions for name, count in sorted(self.tenants.items())},
            "priorities": {str(p): count / requests for p, count in sorted(self.priorities.items())},
            "notes": self.notes,
        }

    def _add_requests(self, prompts: Ints, outputs: Ints, hits: Ints) -> None:
        self.prompt_tokens.add(prompts)
        self.output_tokens.add(outputs)
        self.new_tokens.add(prompts - hits)
        self.hit_tokens += int(hits.sum())

    def _add_arrivals(self, times_s: Floats) -> None:
        if not self._timed or np.any(np.isnan(times_s)):
            self._timed = False
            return
        self.arrivals.add(times_s)
        before = times_s[:1] if self._last_s is None else np.array([self._last_s])
        gaps_s = np.diff(times_s, prepend=before)
        self.gap_s.add(gaps_s if self._last_s is not None else gaps_s[1:])
        self._last_s = float(times_s[-1])

    def _said_before(self, batch: Batch) -> Ints:
        """Hits of rows that name a prefix or a session: those that ``UnlimitedCache`` finds row by row."""
        count, prompts = len(batch), batch.prompt_tokens
        nothing: list[Any] = [None] * count
        groups, group_of = _distinct(batch.more.get("prefix_group", nothing))
        sessions, session_of = _distinct(batch.more.get("session", nothing))
        prefixes = np.array(batch.more.get("prefix_tokens", nothing), dtype=np.float64)  # none is NaN
        shared = np.minimum(np.nan_to_num(prefixes).astype(np.int64), prompts)
        keys: list[Hashable] = [("prefix", batch.copy, group) for group in groups]
        before = self._cache.said_before(keys, group_of, shared)
        hits = np.minimum(before, shared)
        named = np.array([session is not None for session in sessions])[session_of]
        # Rows of one session go on from each other where they begin with the same prefix.
        begins, begin_of = np.unique((np.where(shared > 0, group_of, 0) << 40) + shared, return_inverse=True)
        pairs = session_of[named] * len(begins) + begin_of[named]
        streams, stream_of = np.unique(pairs, return_inverse=True)
        prefix_of = [
            (batch.copy, groups[begin >> 40] if begin & _TOKENS else None, begin & _TOKENS)
            for begin in begins.tolist()
        ]
        which_session, which_begin = np.divmod(streams, len(begins))
        keys = [
            (sessions[s], prefix_of[b])
            for s, b in zip(which_session.tolist(), which_begin.tolist(), strict=True)
        ]
        own = (prompts + batch.output_tokens - shared)[named]
        before_own = self._cache.said_before(keys, stream_of, own)
        hits[named] += np.where(hits[named] == shared[named], before_own, 0)
        return np.minimum(hits, prompts - 1)


def _distinct(values: list[Any]) -> tuple[list[Any], Ints]:
    """The different values, and which each one is."""
    import pyarrow as pa

    encoded = pa.array(values, type=pa.string()).dictionary_encode(null_encoding="encode")
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)
