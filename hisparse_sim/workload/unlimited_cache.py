"""What a prefix cache without a limit would hit: the most that any can."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hisparse_sim.workload.lengths import Ints
from hisparse_sim.workload.remembered import Recent, RecentNumbers
from hisparse_sim.workload.request import BlockHashes, RequestSpec, Segment
from hisparse_sim.workload.traces.batch import IdLists

_SCOPES = 100_000
_STREAMS = 200_000


class UnlimitedCache:
    """Everything said so far.

    Ids take a bit each, or 64 MiB in all when they are hashes and not numbers. Of scopes and streams the
    last 100,000 and 200,000 that were asked for are known, so that memory has a bound; a stream that
    comes again after so many others counts as new.
    """

    def __init__(self) -> None:
        self._ids: Recent[SeenIds] = Recent(_SCOPES)
        self._lengths: Recent[int] = Recent(_STREAMS)
        self._streams = RecentNumbers(_STREAMS)

    def hit_tokens(self, requests: Sequence[RequestSpec]) -> Ints:
        """Prompt tokens of each that were said before, at most all but the last; remembers the requests."""
        hits = np.zeros(len(requests), dtype=np.int64)
        by_scope: dict[tuple[Hashable, int], list[int]] = {}
        for place, request in enumerate(requests):
            content = request.content
            if isinstance(content, BlockHashes):
                by_scope.setdefault((content.scope, content.block_tokens), []).append(place)
            else:
                hits[place] = self._hit_segments(content)
        for (scope, block_tokens), places in by_scope.items():
            ids = [requests[place].content.ids for place in places]  # type: ignore[union-attr]
            ends = np.cumsum([len(of_one) for of_one in ids], dtype=np.int64)
            hits[places] = block_tokens * self.hit_blocks(scope, IdLists(np.concatenate(ids), ends))
        return np.minimum(hits, np.array([request.prompt_tokens for request in requests], dtype=np.int64) - 1)

    def hit_blocks(self, scope: Hashable, ids: IdLists) -> Ints:
        """For each request, how many of its ids come first that were known; remembers all."""
        seen = self._ids.get(scope)
        if seen is None:
            seen = SeenIds()
            self._ids.put(scope, seen)
        return seen.known_first(ids)

    def said_before(self, streams: Ints, tokens: Ints) -> Ints:
        """For each of many requests, how much of its stream was said before it; remembers all.

        Request i says ``tokens[i]`` of the stream that the 64 bits of ``streams[i]`` stand for.
        """
        if not len(streams):
            return np.zeros(0, dtype=np.int64)
        order = np.argsort(streams, kind="stable")
        ordered = streams[order]
        first = np.append(True, ordered[1:] != ordered[:-1])
        keys = ordered[first]
        known = self._streams.get(keys, 0)
        stream = np.cumsum(first) - 1
        # A running maximum within each stream: the streams lie apart by more than any has tokens.
        apart = stream << 41
        longest = np.maximum(tokens[order], known[stream]) + apart
        longest = np.maximum.accumulate(longest) - apart
        before = np.empty(len(streams), dtype=np.int64)
        before[order] = np.where(first, known[stream], np.roll(longest, 1))
        self._streams.put(keys, longest[np.append(first[1:], True)])
        return before

    def _hit_segments(self, content: tuple[Segment, ...]) -> int:
        path: tuple[Any, ...] = ()
        hit, matching = 0, True
        for segment in content:
            key = (*path, segment.stream, segment.start)
            known = self._lengths.get(key) or 0
            if matching:
                hit += min(known, segment.length)
                matching = known >= segment.length
            if segment.length > known:
                self._lengths.put(key, segment.length)
            path = (*path, segment)
        return hit


_PIECE_BYTES = 1 << 16
"""Of a bitmap, looked through at a time."""


class SeenIds:
    """A set of block ids: a bit for each up to the largest, or hashed into 2^28 bits, two a number.

    Hashed, a new id is taken for a known one with a probability of about (2 n / 2^28)^2 among n.
    """

    DENSE_BELOW = 2**28
    HASHED_BITS = 2**28

    def __init__(self) -> None:
        self._bits = np.zeros(64, dtype=np.uint8)
        self._hashed: npt.NDArray[np.uint8] | None = None

    def known_first(self, ids: IdLists) -> Ints:
        """See ``UnlimitedCache.hit_blocks``."""
        flat, count = ids.flat, len(ids.ends)
        if not len(flat):
            return np.zeros(count, dtype=np.int64)
        known = self._known(flat)
        unknown = np.flatnonzero(~known)
        # Of an id that comes twice, the second time is not new any more.
        breaks = unknown[_firsts(flat[unknown])]
        self._add(flat[breaks])
        starts = ids.ends - ids.lengths
        place = np.searchsorted(breaks, starts)
        first_break = np.append(breaks, len(flat))[place]
        return np.asarray(np.minimum(first_break, ids.ends) - starts)

    def _places(self, ids: Ints) -> tuple[npt.NDArray[np.uint8], list[Ints]]:
        """The bits, and those that stand for each id."""
        if self._hashed is None and ids.min() >= 0 and ids.max() < self.DENSE_BELOW:
            if ids.max() >= 8 * len(self._bits):
                grown = np.zeros(1 << int(ids.max() // 8).bit_length(), dtype=np.uint8)
                grown[: len(self._bits)] = self._bits
                self._bits = grown
            return self._bits, [ids]
        if self._hashed is None:
            self._hashed = np.zeros(self.HASHED_BITS // 8, dtype=np.uint8)
            dense, self._bits = self._bits, np.zeros(64, dtype=np.uint8)
            for start in range(0, len(dense), _PIECE_BYTES):
                bits = np.unpackbits(dense[start : start + _PIECE_BYTES], bitorder="little")
                found = np.flatnonzero(bits) + 8 * start
                if len(found):
                    self._add(found)
        # Fibonacci hashing: the high bits of a product with 2^64 / golden ratio, and with another odd number.
        numbers = ids.astype(np.uint64)
        shift = np.uint64(64 - 28)
        return self._hashed, [
            ((numbers * np.uint64(odd)) >> shift).astype(np.int64)
            for odd in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)
        ]

    def _known(self, ids: Ints) -> npt.NDArray[np.bool_]:
        bits, places = self._places(ids)
        known = np.ones(len(ids), dtype=bool)
        for place in places:
            known &= (bits[place >> 3] >> (place & 7).astype(np.uint8)) & 1 == 1
        return known

    def _add(self, ids: Ints) -> None:
        if not len(ids):
            return
        bits, places = self._places(ids)
        for place in places:
            np.bitwise_or.at(bits, place >> 3, np.uint8(1) << (place & 7).astype(np.uint8))


def _firsts(values: Ints) -> Ints:
    """Where each different value comes first, in ascending order of place."""
    if not len(values):
        return values
    low, high = int(values.min()), int(values.max())
    if high - low > 16 * len(values):
        return np.sort(np.unique(values, return_index=True)[1])
    # Of several values written to one place the last stays: written backwards, the first.
    places = np.arange(len(values))
    first = np.empty(high - low + 1, dtype=np.int64)
    first[values[::-1] - low] = places[::-1]
    return np.flatnonzero(first[values - low] == places)
