"""What a stream of requests amounts to, before anything is simulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from hisparse_sim.workload.first import first_sessions
from hisparse_sim.workload.lengths import Floats, Ints
from hisparse_sim.workload.request import BlockHashes, RequestSpec, Session, Workload
from hisparse_sim.workload.tally import Tally, TimeBins
from hisparse_sim.workload.traces.batch import Batch, Mask
from hisparse_sim.workload.traces.flat import FlatTrace
from hisparse_sim.workload.unlimited_cache import UnlimitedCache

_TOGETHER, _IDS_TOGETHER = 4096, 2**18
"""Requests, and ids of blocks of them, that are counted at a time."""


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
        self._starts_s: list[float] = []
        self._sizes: list[int] = []
        self._asked: list[RequestSpec] = []
        self._asked_ids = 0
        self._open_session: int | None = None
        self._open_turns = 0
        self._last_s: float | None = None
        self._timed = True

    @classmethod
    def of(cls, workload: Workload, progress: Callable[[int], None] | None = None) -> Facts:
        """Of all that may be sent of a workload (``first_sessions``).

        ``progress`` is told how many requests were counted, now and then.

        Raises InputError where a trace that was not checked is wrong.
        """
        told = progress or (lambda requests: None)
        facts = cls(workload.concurrency)
        if isinstance(workload, FlatTrace) and workload.in_batches and workload.limit is None:
            block_tokens = workload.layout.format.block_tokens if workload.layout else None
            for batch in workload.batches():
                facts.add_batch(batch, block_tokens)
                told(facts.prompt_tokens.count)
        else:
            for session in first_sessions(workload):
                facts.add(session)
                if not facts._asked:
                    told(facts.prompt_tokens.count)
        facts.close()
        facts.notes = list(workload.notes)
        return facts

    def add(self, session: Session) -> None:
        """Count a session."""
        requests = session.requests
        if name := session.tags.get("tenant"):
            self.tenants[name] += 1
        self._starts_s.append(np.nan if session.start_s is None else session.start_s)
        self._sizes.append(len(requests))
        self._asked += requests
        self._asked_ids += sum(len(r.content.ids) for r in requests if isinstance(r.content, BlockHashes))
        if len(self._asked) >= _TOGETHER or self._asked_ids >= _IDS_TOGETHER:
            self._count_asked()

    def close(self) -> None:
        """Count what waits for more to come; the stream is over."""
        self._count_asked()
        if self._open_session is not None:
            self.turns.add(np.array([self._open_turns]))
            self._open_session = None

    def _count_asked(self) -> None:
        """Count the requests of ``add``: many at a time, as each time costs more than a request."""
        self.sessions += len(self._sizes)
        self.turns.add(np.array(self._sizes, dtype=np.int64))
        self._add_arrivals(np.array(self._starts_s, dtype=np.float64))
        asked = self._asked
        self._starts_s, self._sizes, self._asked, self._asked_ids = [], [], [], 0
        hits = self._cache.hit_tokens(asked)
        for request, hit in zip(asked, hits.tolist(), strict=True):
            if isinstance(request.content, BlockHashes):
                blocks = -(-request.prompt_tokens // request.content.block_tokens)
                self.blocks += blocks
                full_hit = hit + 1 == request.prompt_tokens
                self.hit_blocks += blocks if full_hit else hit // request.content.block_tokens
        self.priorities.update(request.priority for request in asked)
        self.think_time_s.add(np.array([r.delay_s for r in asked if r.after], dtype=np.float64))
        prompts = np.array([r.prompt_tokens for r in asked], dtype=np.int64)
        self._add_requests(prompts, np.array([r.output_tokens for r in asked], dtype=np.int64), hits)

    def add_batch(self, batch: Batch, block_tokens: int | None) -> None:
        """Count rows, whose ids have ``block_tokens``.

        Each is a session of its own unless rows say how long after each other they come.
        """
        if not len(batch):
            return
        hits = np.zeros(len(batch), dtype=np.int64)
        sessions, named = _bits_of(batch, "session")
        if batch.ids is not None and block_tokens:
            blocks = self._cache.hit_blocks(batch.copy, batch.ids)
            prompt_blocks = -(-batch.prompt_tokens // block_tokens)
            self.blocks += int(prompt_blocks.sum())
            self.hit_blocks += int(np.minimum(blocks, prompt_blocks).sum())
            hits = np.minimum(blocks * block_tokens, batch.prompt_tokens - 1)
        elif "session" in batch.more or "prefix_tokens" in batch.more:
            hits = self._said_before(batch, sessions, named)
        for priority, times in zip(*np.unique(batch.numbers("priority"), return_counts=True), strict=True):
            self.priorities[int(priority)] += int(times)
        self._add_requests(batch.prompt_tokens, batch.output_tokens, hits)
        if "delay_s" in batch.more:
            self._add_played(batch, sessions, named)
        else:
            self._add_sessions(batch, np.arange(len(batch)))
            self.turns.add(np.ones(len(batch), dtype=np.int64))

    def _add_played(self, batch: Batch, sessions: Ints, named: Mask) -> None:
        """Rows that wait for the one above them if it is of their session."""
        ids, has_id = _bits_of(batch, "id")
        alone = np.where(has_id, ids, _mixed(_LINE, batch.lines))
        session = _mixed(batch.copy, np.where(named, sessions, alone))
        goes_on = self._open_session == int(session[0])
        begins = np.append(not goes_on, session[1:] != session[:-1])
        starts = np.flatnonzero(begins)
        self._add_sessions(batch, starts)
        self.think_time_s.add(batch.numbers("delay_s", np.float64)[~begins])
        turns = np.diff(np.concatenate(([0], starts, [len(batch)])))
        turns[0] += self._open_turns
        self.turns.add(turns[:-1][turns[:-1] > 0])
        self._open_session, self._open_turns = int(session[-1]), int(turns[-1])

    def _add_sessions(self, batch: Batch, starts: Ints) -> None:
        """Those that begin with some of the rows."""
        self.sessions += len(starts)
        self._add_arrivals(batch.arrival_s[starts])
        if (tenants := batch.values("tenant")) is not None:
            self.tenants.update(tenants[start] for start in starts.tolist() if tenants[start])

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
        if np.any(np.isnan(times_s)):  # clients that ramp up do not make an open loop
            self._timed = False
            self.arrivals, self.gap_s = TimeBins(), Tally()
        if not self._timed or not len(times_s):
            return
        self.arrivals.add(times_s)
        before = times_s[:1] if self._last_s is None else np.array([self._last_s])
        gaps_s = np.diff(times_s, prepend=before)
        self.gap_s.add(gaps_s if self._last_s is not None else gaps_s[1:])
        self._last_s = float(times_s[-1])

    def _said_before(self, batch: Batch, sessions: Ints, named: Mask) -> Ints:
        """Hits of rows that name a prefix or a session: those that ``UnlimitedCache`` finds row by row."""
        shared = np.minimum(batch.numbers("prefix_tokens"), batch.prompt_tokens)
        groups = np.where(shared > 0, _bits_of(batch, "prefix_group")[0], 0)
        before = self._cache.said_before(_mixed(_PREFIX, batch.copy, groups), shared)
        hits = np.minimum(before, shared)
        if named.any():
            # Rows of one session go on from each other where they begin with the same prefix.
            streams = _mixed(_SESSION, batch.copy, groups, shared, sessions)[named]
            own = self._cache.said_before(
                streams, (batch.prompt_tokens + batch.output_tokens - shared)[named]
            )
            hits[named] += np.where(hits[named] == shared[named], own, 0)
        return np.asarray(np.minimum(hits, batch.prompt_tokens - 1))


_PREFIX, _SESSION, _LINE = 1, 2, 3
"""What bits stand for, so that a group and a session of one name are two."""


def _mixed(*parts: Ints | int) -> Ints:
    """64 bits for what several numbers say together; two that differ give the same once in 2^64 pairs."""
    bits = np.zeros(1, dtype=np.uint64)
    for part in parts:
        # A step of 64-bit FNV-1a with the odd multiplier of splitmix64 (Steele, Lea, Flood 2014).
        bits = (bits ^ np.asarray(part, dtype=np.int64).astype(np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
        bits ^= bits >> np.uint64(31)
    return bits.view(np.int64)


def _bits_of(batch: Batch, name: str) -> tuple[Ints, Mask]:
    """64 bits for the text of each row in a column, and which rows have one."""
    import pyarrow as pa

    column = batch.more.get(name)
    if column is None:
        return np.zeros(len(batch), dtype=np.int64), np.zeros(len(batch), dtype=bool)
    texts = (pa.array(column, pa.string()) if isinstance(column, list) else column).dictionary_encode()
    different = texts.dictionary.to_pylist()
    bits = np.fromiter(map(hash, [*different, ""]), dtype=np.int64, count=len(different) + 1)
    return bits[texts.indices.fill_null(len(different)).to_numpy()], np.asarray(
        texts.is_valid().to_numpy(zero_copy_only=False)
    )
