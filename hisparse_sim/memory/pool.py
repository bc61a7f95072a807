"""Block pools with vLLM's exact free-list order, kept as runs instead of blocks.

A free list is a sequence of runs: anonymous blocks (nothing refers to their content; only their
number matters), hashed blocks (findable by a prefix lookup) and page copies (``residency``), which
weigh several blocks each. Which physical id a block has is observable nowhere, so none is kept:
two pools that agree on these runs agree on every decision. Sources: vLLM 0.33 ``BlockPool`` and
``FreeKVCacheBlockQueue`` as observed by running them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Ids = npt.NDArray[np.int64]
NO_IDS: Ids = np.empty(0, dtype=np.int64)

ZERO, ONE, MINUS_ONE = np.array(0), np.array(1), np.array(-1)
"""With arrays of a few pages numpy takes twice as long for a Python integer, or for one of another type."""
_ZERO_32 = np.array(0, dtype=np.int32)
PRIVATE = np.array(-2)
"""Content of a block that has a hash which nobody will ask for."""

_MORE_IDS = 1024
"""At least so many ids are added at a time."""

_TIDY_AFTER = 1_000_000
"""Items taken out of the middle of a free list until its runs are cleared of their traces."""


class GrowingArray:
    """An array of integers indexed by ids that only ever grow; new cells hold ``fill``."""

    __slots__ = ("a", "fill")

    def __init__(self, fill: int, kind: type[np.signedinteger[Any]] = np.int64) -> None:
        self.fill = fill
        self.a: Ids = np.full(1024, fill, dtype=kind)

    def reach(self, size: int) -> None:
        """Make indices below ``size`` valid."""
        have = len(self.a)
        if size > have:
            grown = np.full(max(size, have * 3 // 2), self.fill, dtype=self.a.dtype)
            grown[:have] = self.a
            self.a = grown


class References(GrowingArray):
    """How many hold each item. One item is the common case, and several times faster without numpy."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(0)

    def hold(self, ids: Ids) -> None:
        """One more holds each of them."""
        if len(ids) == 1:
            i = ids.item()
            self.a[i] = self.a.item(i) + 1
        else:
            self.a[ids] += 1

    def drop(self, ids: Ids) -> Ids:
        """One fewer holds each of them; returns those that nobody holds any more."""
        if len(ids) == 1:
            i = ids.item()
            self.a[i] = left = self.a.item(i) - 1
            return ids if not left else NO_IDS
        self.a[ids] = now = self.a[ids] - ONE
        gone: Ids = ids[now == ZERO]
        return gone

    def idle(self, ids: Ids) -> Ids:
        """Those that nobody holds."""
        found: Ids = ids[self.a[ids] == ZERO]
        return found


class Table(Protocol):
    """Items that can lie in a free list."""

    weight: int
    stamp: GrowingArray

    def taken(self, ids: Ids) -> None:
        """The pool has handed out (some block of) each of these items: they are gone."""


class _Run(Struct, eq=False):
    """Consecutive entries of a free list: ``count`` anonymous blocks, or items of a table.

    An item is still here only while its stamp is the run's: taking one out of the middle of the
    list just clears its stamp.

    ``spread``: the blocks of an item lie apart, the first of each item in turn, then the second …
    Whoever takes a first block ends the item, so only first blocks are kept as items; the others of
    those ``ended`` follow, anonymous.
    """

    count: int
    table: Table | None = None
    ids: Any = None
    stamp: int = 0
    spread: bool = False
    pos: int = 0
    ended: int = 0


class Pool:
    """A free list of ``blocks`` blocks. Block 0 (vLLM's null block) is not part of it."""

    __slots__ = ("_absent", "_runs", "_stamp", "_stamping", "free", "total")

    def __init__(self, blocks: int) -> None:
        self.total = blocks
        self.free = blocks
        self._runs: deque[_Run] = deque([_Run(blocks)])
        self._stamp = 0
        self._absent = 0
        self._stamping = False
        """Whether anything was ever taken out of the middle: until then no item needs its stamp."""

    def push_front(self, blocks: int) -> None:
        """Put anonymous blocks at the very front."""
        if blocks <= 0:
            return
        self.free += blocks
        runs = self._runs
        head = runs[0] if runs else None
        if head is not None and head.table is None:
            head.count += blocks
        else:
            runs.appendleft(_Run(blocks))

    def push_back(self, blocks: int) -> None:
        """Put anonymous blocks at the tail."""
        if blocks <= 0:
            return
        self.free += blocks
        runs = self._runs
        tail = runs[-1] if runs else None
        if tail is not None and tail.table is None:
            tail.count += blocks
        else:
            runs.append(_Run(blocks))

    def append(self, table: Table, ids: Ids, *, spread: bool = False) -> None:
        """Put items at the tail, in this order; ``spread``: the first block of each, then the second …"""
        n = len(ids)
        if not n:
            return
        weight = table.weight
        self._stamp += 1
        if self._stamping:
            table.stamp.a[ids] = self._stamp
        self._runs.append(_Run(0, table, ids, self._stamp, spread and weight > 1))
        self.free += n * weight

    def remove(self, table: Table, ids: Ids) -> None:
        """Take items that lie in the list out of its middle."""
        n = len(ids)
        if not n:
            return
        if not self._stamping:
            self._stamping = True
            for run in self._runs:
                if run.table is not None:
                    run.table.stamp.a[run.ids[run.pos :]] = run.stamp
        table.stamp.a[ids] = 0
        self.free -= n * table.weight
        self._absent += n
        if self._absent > _TIDY_AFTER:
            self._compact()

    def take(self, n: int) -> None:
        """Hand out ``n`` blocks from the front; items met on the way are told so (``taken``).

        ``n`` must not exceed ``free``. An item of which only some blocks are needed is gone all
        the same; its other blocks stay at the front as anonymous ones.
        """
        self.free -= n
        runs = self._runs
        while n > 0:
            run = runs[0]
            if run.count > n:  # anonymous, and enough of them: what is most often so
                run.count -= n
                return
            table = run.table
            if table is None:
                n -= run.count
                runs.popleft()
                continue
            each = 1 if run.spread else table.weight
            ids = run.ids[run.pos : run.pos + -(-n // each)]
            run.pos += len(ids)
            present = len(ids)
            if self._absent:
                here = table.stamp.a[ids] == run.stamp
                there, present = present, int(np.count_nonzero(here))
                if present < there:
                    self._absent -= there - present
                    ids = ids[here]
            run.ended += present
            if run.pos >= len(run.ids):
                runs.popleft()
                if run.spread:
                    runs.appendleft(_Run(run.ended * (table.weight - 1)))
            if present:
                table.taken(ids)
                n -= present * each
        if n < 0:
            self.free += n  # push_front adds them back
            self.push_front(-n)

    def _compact(self) -> None:
        kept: deque[_Run] = deque()
        for run in self._runs:
            if run.table is not None:
                ids = run.ids[run.pos :]
                ids = ids[run.table.stamp.a[ids] == run.stamp]
                if not len(ids) and not run.spread:
                    continue
                run.ids, run.pos = ids, 0
            kept.append(run)
        self._runs = kept
        self._absent = 0


class IdSource:
    """Small integers, given out and taken back."""

    __slots__ = ("_idle", "_left", "bound")

    def __init__(self) -> None:
        self.bound = 0
        """All ids given out so far lie below this."""
        self._idle = np.empty(0, dtype=np.int64)
        """A stack with room for all ids; ``_left`` of them are on it."""
        self._left = 0

    def new(self, n: int) -> Ids:
        """``n`` ids that nobody else holds."""
        if n > self._left:
            self._more(max(n - self._left, _MORE_IDS))
        self._left -= n
        return self._idle[self._left : self._left + n].copy()

    def _more(self, n: int) -> None:
        """Put ``n`` ids that nobody ever held on the stack."""
        bound, self.bound = self.bound, self.bound + n
        if self.bound > len(self._idle):
            grown = np.empty(max(self.bound, len(self._idle) * 3 // 2, 1024), dtype=np.int64)
            grown[: self._left] = self._idle[: self._left]
            self._idle = grown
        self._idle[self._left : self._left + n] = np.arange(bound, self.bound)
        self._left += n

    def give_back(self, ids: Ids) -> None:
        """These ids may be used again."""
        n = len(ids)
        self._idle[self._left : self._left + n] = ids
        self._left += n


class HashedBlocks:
    """Blocks of one group that a prefix lookup can find.

    A block has a reference count and, once its content is known, the content id of its prefix
    (``memory.content``). Several blocks may carry the same one; a lookup finds the earliest.
    """

    weight = 1

    def __init__(self, pool: Pool, *, caching: bool) -> None:
        self.pool = pool
        self.caching = caching
        self.stamp = GrowingArray(0)
        self.ref = References()
        self.content = GrowingArray(-1)
        self._first = GrowingArray(-1, np.int32)
        self._several = GrowingArray(0, np.int8)
        """Whether more than one block carries a content id."""
        self._later: dict[int, list[int]] = {}
        """All of these but the first."""
        self.published = 0
        """How often blocks became findable."""
        self._ids = IdSource()
        self.on_taken: Callable[[Ids], None] | None = None

    def new(self, n: int) -> Ids:
        """Ids for ``n`` blocks just taken from the pool; each is referenced once."""
        ids = self._ids.new(n)
        if self._ids.bound > len(self.ref.a):
            for array in (self.stamp, self.ref, self.content):
                array.reach(self._ids.bound)
        self.ref.a[ids] = ONE
        self.content.a[ids] = MINUS_ONE
        return ids

    def know(self, bound: int) -> None:
        """Content ids below ``bound`` will be published or asked for."""
        # The last cells are those of no content and of private content.
        self._first.reach(bound + 2)
        self._several.reach(bound + 2)

    def mark(self, ids: Ids) -> None:
        """These blocks have a hash that nobody will ask for, unless it is published after all."""
        self.content.a[ids] = PRIVATE

    def publish(self, ids: Ids, content: Ids) -> None:
        """Give blocks without a hash theirs."""
        if not len(ids):
            return
        self.published += 1
        self.content.a[ids] = content
        first = self._first.a
        if len(ids) == 1:
            c = content.item()
            if first.item(c) < 0:
                first[c] = ids.item()
            else:
                self._also(ids.item(), c)
            return
        known = first[content] >= _ZERO_32
        if np.count_nonzero(known):
            for i, c in zip(ids[known].tolist(), content[known].tolist(), strict=True):
                self._also(i, c)
            fresh = ~known
            first[content[fresh]] = ids[fresh]
        else:
            first[content] = ids.astype(np.int32)

    def _also(self, block: int, content: int) -> None:
        """Another block has content that is known."""
        self._later.setdefault(content, []).append(block)
        self._several.a[content] = 1

    def leading(self, content: Ids) -> Ids:
        """Blocks of the longest leading run of ``content`` that is present."""
        if not len(content):
            return content
        first = self._first.a
        if first[content[0]] < 0:
            return content[:0]
        found: Ids = first[content]
        missing = found < 0
        stop = int(missing.argmax())
        return found if not missing[stop] else found[:stop]

    def idle(self, ids: Ids) -> int:
        """How many of these blocks nobody references (they lie in the free list)."""
        return len(ids) - int(np.count_nonzero(self.ref.a[ids]))

    def touch(self, ids: Ids) -> None:
        """Reference blocks; those that were free leave the free list."""
        self.pool.remove(self, self.ref.idle(ids))
        self.ref.hold(ids)

    def release(self, ids: Ids) -> None:
        """Drop one reference each, in order: unhashed blocks go to the front, hashed to the tail."""
        if not len(ids):
            return
        gone = self.ref.drop(ids)
        if not len(gone):
            return
        if self.caching:
            hashed = self.content.a[gone] != MINUS_ONE
            plain = gone[~hashed]
            self.pool.append(self, gone[hashed])
        else:
            plain = gone
        if len(plain):
            self._ids.give_back(plain)
            self.pool.push_front(len(plain))

    def taken(self, ids: Ids) -> None:
        """The pool handed these blocks out again: what they held cannot be found any more."""
        if self.on_taken is not None:
            self.on_taken(ids)
        content = self.content.a[ids]
        first = self._first.a
        later = self._later
        if later and (len(ids) > 1 or self._several.a.item(content.item())):
            several = self._several.a[content] > 0
            if np.count_nonzero(several):
                for i, c in zip(ids[several].tolist(), content[several].tolist(), strict=True):
                    others = later.get(c, [])  # none: those before were taken just now
                    if first[c] == i:
                        first[c] = others.pop(0) if others else -1
                    else:
                        others.remove(i)
                    if not others:
                        later.pop(c, None)
                        self._several.a[c] = 0
                content = content[~several]
        first[content] = -1
        self._ids.give_back(ids)
