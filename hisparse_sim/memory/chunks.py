"""Host chunks keyed by content, evicted by rank, as vLLM 0.33's native offloading keeps them.

Source: vLLM 0.33 (OffloadingConnector's CPU manager), as observed by running it.
"""

from __future__ import annotations

import numpy as np

from hisparse_sim.memory.pool import GrowingArray, Ids

ABSENT, STORING, READY = 0, 1, 2
_SERIAL = 1 << 32  # rank = serial * _SERIAL - position: newest request last; inside one, tail first


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
        self._state = GrowingArray(ABSENT)
        self._rank = GrowingArray(0)
        self._pins = GrowingArray(0)
        self._held: Ids = np.empty(0, dtype=np.int64)
        self._new: list[Ids] = []
        self._serial = 0

    def _reach(self, content: Ids) -> None:
        if len(content):
            size = int(content.max()) + 1
            for array in (self._state, self._rank, self._pins):
                array.reach(size)

    def run(self, content: Ids) -> tuple[int, bool]:
        """Length of the leading run of present chunks; whether all of it is ready and not being loaded."""
        if not len(content):
            return 0, True
        self._reach(content)
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

    def use(self, access: Access, content: Ids, first: int, block_size: int) -> None:
        """A request uses ready chunks; block ``first`` of it is the first of ``content``."""
        index = np.arange(first, first + len(content))
        new = ~access.seen[index] & (self._state.a[content] == READY)
        self._note(access, content[new], index[new], block_size)

    def _note(self, access: Access, content: Ids, index: Ids, block_size: int) -> None:
        if not len(content):
            return
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
        self._reach(content)
        absent = self._state.a[content] == ABSENT
        new: Ids = content[absent]
        need = len(new) - self.free
        if need > 0 and not self._evict(need, content):
            return None
        self.use(access, content, first, block_size)
        if len(new):
            self.free -= len(new)
            self._state.a[new] = STORING
            self._rank.a[new] = 0
            self._note(access, new, np.flatnonzero(absent) + first, block_size)
            self._new.append(new)
        return new

    def _evict(self, n: int, keep: Ids) -> bool:
        held = self._held = np.concatenate([self._held, *self._new])
        self._new = []
        self._pins.a[keep] += 1
        able = (self._state.a[held] == READY) & (self._pins.a[held] == 0)
        self._pins.a[keep] -= 1
        candidates = held[able]
        if len(candidates) < n:
            return False
        rank = self._rank.a[candidates]
        victims = candidates[np.argpartition(rank, n - 1)[:n]]
        self._state.a[victims] = ABSENT
        self._held = held[self._state.a[held] != ABSENT]
        self.free += n
        return True

    def ready(self, content: Ids) -> None:
        """A copy to these chunks is complete."""
        self._state.a[content] = READY

    def finish(self, access: Access, content: Ids) -> None:
        """The request is over: all it used becomes the most recent, its head last."""
        index = np.flatnonzero(access.seen)[::-1]
        used = content[index]
        used = used[self._state.a[used] != ABSENT]
        n = len(used)
        self._rank.a[used] = (self._serial + 1 + np.arange(n)) * _SERIAL
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
