"""Host chunks keyed by content, evicted by rank, as vLLM 0.33's native offloading keeps them.

Source: vLLM 0.33 (OffloadingConnector's CPU manager), as observed by running it.
"""

from __future__ import annotations

import numpy as np

from hisparse_sim.memory.pool import NO_IDS, GrowingArray, Ids

ABSENT, STORING, READY = 0, 1, 2
_SERIAL = 1 << 32  # rank = serial * _SERIAL - position: newest request last; inside one, tail first
_ALL = 1 << 62


class Access:
    """Which chunks a request has used, and since when; it outlives preemptions."""

    __slots__ = ("next_stored", "seen", "serial")

    def __init__(self, blocks: int) -> None:
        self.serial = 0
        self.next_stored = 0
        self.seen = np.zeros(blocks, dtype=bool)


class ChunkStore:
    """``chunks`` chunks keyed by content id, evicted by rank.

    The lowest rank goes first. A request's chunks rank by when the request first used the store,
    the tail of its sequence below the head; when it has finished they get fresh ranks.
    """

    def __init__(self, chunks: int) -> None:
        self.total = chunks
        self.free = chunks
        self._state = GrowingArray(ABSENT, np.int8)
        self._rank = GrowingArray(0)
        self._pins = GrowingArray(0, np.int32)
        self.readied = 0
        """How often chunks became usable."""
        self._serial = 0
        self._bound = 0
        self._low = NO_IDS
        """By rank, from ``_next`` on: with ``_risen`` every chunk that may be evicted and ranks below
        ``_bound``; also some that may not, or whose rank has risen since."""
        self._low_rank = NO_IDS
        self._next = 0
        self._risen: list[Ids] = []

    def know(self, bound: int) -> None:
        """Content ids below ``bound`` will be asked for."""
        for array in (self._state, self._rank, self._pins):
            array.reach(bound)

    def run(self, content: Ids) -> tuple[int, bool]:
        """Length of the leading run of present chunks; whether all of it is ready and not being loaded."""
        if not len(content):
            return 0, True
        state = self._state.a[content]
        gone = state == ABSENT
        stop = int(gone.argmax())
        n = stop if gone[stop] else len(content)
        usable = bool((state[:n] == READY).all()) and not self._pins.a[content[:n]].any()
        return n, usable

    def pin(self, content: Ids) -> None:
        """A load reads these chunks."""
        self._pins.a[content] += 1

    def unpin(self, content: Ids) -> None:
        """The load is over."""
        self._pins.a[content] -= 1
        self.readied += 1
        self._consider(content)

    def use(self, access: Access, content: Ids, first: int, block_size: int) -> None:
        """A request uses ready chunks; block ``first`` of it is the first of ``content``."""
        index = np.arange(first, first + len(content))
        new = ~access.seen[index] & (self._state.a[content] == READY)
        content = content[new]
        if len(content):
            self._note(access, content, index[new], block_size)
            self._consider(content)

    def _note(self, access: Access, content: Ids, index: Ids, block_size: int) -> None:
        if not access.serial:
            self._serial += 1
            access.serial = self._serial
        access.seen[index] = True
        rank = access.serial * _SERIAL - (index + 1) * block_size
        self._rank.a[content] = np.maximum(self._rank.a[content], rank)

    def store(self, access: Access, content: Ids, first: int, block_size: int) -> Ids | None:
        """Take chunks for those of ``content`` that have none, evicting if need be.

        Returns the content ids that must be copied (perhaps none), or None if there is no room.
        """
        absent = np.flatnonzero(self._state.a[content] == ABSENT)
        new: Ids = content[absent]
        need = len(new) - self.free
        if need > 0 and not self._evict(need, content):
            return None
        if len(new) < len(content):
            self.use(access, content, first, block_size)
        if len(new):
            self.free -= len(new)
            self._state.a[new] = STORING
            self._rank.a[new] = 0
            self._note(access, new, absent + first, block_size)
        return new

    def _consider(self, content: Ids) -> None:
        """The rank of these chunks has risen, or they have become evictable; others do not count yet."""
        low = (self._rank.a[content] < self._bound) & (self._state.a[content] == READY)
        if np.count_nonzero(low):
            self._risen.append(content[low])

    def _evict(self, n: int, keep: Ids) -> bool:
        self._pins.a[keep] += 1
        victims = self._lowest(n)
        if len(victims) < n:
            self._gather(n)
            victims = np.concatenate([victims, self._lowest(n - len(victims))])
        self._pins.a[keep] -= 1
        self._consider(keep)
        if len(victims) < n:
            self._state.a[victims] = READY
            self._consider(victims)
            return False
        self.free += n
        return True

    def _lowest(self, n: int) -> Ids:
        """At most ``n`` evictable chunks of lowest rank, marked as absent."""
        state, rank, pins = self._state.a, self._rank.a, self._pins.a
        if self._risen:
            self._merge()
        found = [NO_IDS]
        while n and self._next < len(self._low):
            part = slice(self._next, self._next + n)
            chunks = self._low[part]
            self._next += len(chunks)
            able = (state[chunks] == READY) & (pins[chunks] == 0) & (rank[chunks] == self._low_rank[part])
            able[1:] &= chunks[1:] != chunks[:-1]  # a chunk may have come in twice, with the same rank
            chunks = chunks[able]
            state[chunks] = ABSENT
            found.append(chunks)
            n -= len(chunks)
        return np.concatenate(found)

    def _gather(self, n: int) -> None:
        """Find the lowest ranks anew, many more than ``n`` so that it need not be done often."""
        able = np.flatnonzero((self._state.a == READY) & (self._pins.a == 0))
        many = max(2 * n, len(able) // 16)
        self._bound = _ALL
        if many < len(able):
            rank = self._rank.a[able]
            able = able[np.argpartition(rank, many)[: many + 1]]
            self._bound = int(self._rank.a[able].max())
        self._sort(able)

    def _sort(self, chunks: Ids) -> None:
        rank = self._rank.a[chunks]
        order = np.argsort(rank, kind="stable")
        self._low, self._low_rank = chunks[order], rank[order]
        self._next = 0
        self._risen = []

    def _merge(self) -> None:
        """Put the chunks that have come in since where their ranks belong."""
        chunks = np.concatenate(self._risen)
        rank = self._rank.a[chunks]
        order = np.argsort(rank)[: np.count_nonzero(rank <= self._bound)]
        chunks, rank = chunks[order], rank[order]
        low, low_rank = self._low[self._next :], self._low_rank[self._next :]
        at = np.searchsorted(low_rank, rank)
        self._low, self._low_rank = np.insert(low, at, chunks), np.insert(low_rank, at, rank)
        self._next = 0
        self._risen = []

    def ready(self, content: Ids) -> None:
        """A copy to these chunks is complete."""
        self._state.a[content] = READY
        self.readied += 1
        self._consider(content)

    def finish(self, access: Access, content: Ids) -> None:
        """The request is over: all it used becomes the most recent, its head last."""
        index = np.flatnonzero(access.seen)[::-1]
        used = content[index]
        used = used[self._state.a[used] != ABSENT]
        n = len(used)
        self._rank.a[used] = (self._serial + 1 + np.arange(n)) * _SERIAL
        self._consider(used)
        self._serial += n

    def stored(self, access: Access, content: Ids) -> None:
        """A request has just offered blocks: no change of rank beyond that of their use."""


class LruChunkStore(ChunkStore):
    """vLLM 0.30's order: least recently touched first.

    A chunk is touched when it becomes evictable and, with all others that its request has used, the
    last first, each time the request stores. Unverified: no recorded trace tells this from 0.33's.
    """

    def _note(self, access: Access, content: Ids, index: Ids, block_size: int) -> None:
        access.seen[index] = True

    def _touch(self, content: Ids) -> None:
        self._rank.a[content] = self._serial + 1 + np.arange(len(content))
        self._consider(content)
        self._serial += len(content)

    def unpin(self, content: Ids) -> None:
        """The load is over."""
        super().unpin(content)
        self._touch(content)

    def ready(self, content: Ids) -> None:
        """A copy to these chunks is complete."""
        super().ready(content)
        self._touch(content)

    def stored(self, access: Access, content: Ids) -> None:
        """A request has just offered blocks: all it has used is touched."""
        used = content[np.flatnonzero(access.seen)[::-1]]
        self._touch(used[self._state.a[used] != ABSENT])

    def finish(self, access: Access, content: Ids) -> None:
        """The request is over: no change."""
