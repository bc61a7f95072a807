"""Pages of running requests, and the GPU copies that hold them.

A page on the GPU takes one block in each resident group. Those blocks share one fate, so they are one
*copy* here. Source: vLLM 0.33 (HiSparse coordinator), as observed by running it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hisparse_sim.memory.base import NOTHING
from hisparse_sim.memory.pool import MINUS_ONE, ONE, ZERO, GrowingArray, Ids, IdSource, Pool, References


class PageCopies:
    """GPU copies of pages, each ``weight`` blocks (one per resident group)."""

    def __init__(self, pool: Pool, weight: int) -> None:
        self.pool = pool
        self.weight = weight
        self.stamp = GrowingArray(0)
        self.ref = References()
        self.owner = GrowingArray(-1)
        self.page = GrowingArray(0)
        self.content = GrowingArray(-1)
        self.by_content = GrowingArray(-1, np.int32)
        self._recorded = self._adopted = False
        """Whether the content of any copy was ever recorded, and whether any was read by a second request:
        often nobody asks for what another computes."""
        self._more_owners: dict[int, list[tuple[int, int]]] = {}
        self._ids = IdSource()
        self.host_only = 0
        """Pages without a GPU copy, of all requests that are running."""
        self.on_lost: Callable[[PagedState], None] | None = None
        """Called when a running request has lost pages."""
        self.states: list[PagedState | None] = []
        self._idle_slots: list[int] = []

    def enter(self, state: PagedState) -> None:
        """Give a request a number that ownership is kept under."""
        if self._idle_slots:
            state.slot = self._idle_slots.pop()
            self.states[state.slot] = state
        else:
            state.slot = len(self.states)
            self.states.append(state)

    def leave(self, state: PagedState) -> None:
        """Forget the request; it must own nothing any more."""
        self.states[state.slot] = None
        self._idle_slots.append(state.slot)

    def new(self, n: int) -> Ids:
        """Copies for ``n`` pages whose blocks were just taken from the pool."""
        ids = self._ids.new(n)
        if self._ids.bound >= len(self.ref.a):  # the last cell is that of no copy, -1
            for array in (self.stamp, self.ref, self.owner, self.page, self.content):
                array.reach(self._ids.bound + 1)
        self.ref.a[ids] = ONE
        self.owner.a[ids] = MINUS_ONE
        if self._recorded:
            self.content.a[ids] = MINUS_ONE
        return ids

    def know(self, bound: int) -> None:
        """Content ids below ``bound`` will be recorded or asked for."""
        self.by_content.reach(bound + 1)  # the last cell is that of no content, -1

    def record(self, ids: Ids, content: Ids) -> None:
        """These copies can be adopted by whoever hits ``content`` (older ones are forgotten)."""
        self._recorded = True
        older = self.by_content.a[content]
        self.content.a[older] = -1  # or the last cell, if there is none
        self.by_content.a[content] = ids.astype(np.int32)
        self.content.a[ids] = content

    def adoptable(self, content: Ids) -> Ids:
        """The copy that each content id has, or -1."""
        return self.by_content.a[content]

    def touch(self, ids: Ids) -> None:
        """Reference copies; those that were free leave the free list."""
        self._adopted = True
        self.pool.remove(self, self.ref.idle(ids))
        self.ref.hold(ids)

    def unpin(self, ids: Ids, slot: int, pages: Ids) -> None:
        """Give references back, in order; request ``slot`` goes on reading ``pages`` from them."""
        if len(ids) == 1:
            i, owner = ids.item(), self.owner.a
            if owner.item(i) < 0:
                owner[i] = slot
                self.page.a[i] = pages.item()
            else:
                self._more_owners.setdefault(i, []).append((slot, pages.item()))
            self.pool.append(self, self.ref.drop(ids))
            return
        ids_new, pages_new = ids, pages
        if self._adopted and np.count_nonzero(owned := self.owner.a[ids] >= ZERO):
            for i, p in zip(ids[owned].tolist(), pages[owned].tolist(), strict=True):
                self._more_owners.setdefault(i, []).append((slot, p))
            ids_new, pages_new = ids[~owned], pages[~owned]
        self.owner.a[ids_new] = slot
        self.page.a[ids_new] = pages_new
        self.pool.append(self, self.ref.drop(ids))

    def leave_behind(self, ids: Ids) -> None:
        """Give the references of a request that ends back: group by group, each in the order given."""
        self.pool.append(self, self.ref.drop(ids), spread=True)

    def disown(self, ids: Ids, slot: int) -> None:
        """Request ``slot`` stops reading these copies; they stay where they are."""
        mine = self.owner.a[ids] == slot
        self.owner.a[ids[mine]] = -1
        others = self._more_owners
        if others:
            for i in ids[~mine].tolist():
                if i in others:
                    others[i] = [o for o in others[i] if o[0] != slot]

    def discard(self, ids: Ids) -> None:
        """Drop the last reference to copies that are of no use: anonymous blocks, at the front."""
        gone = self.ref.drop(ids)
        if len(gone):
            self._ids.give_back(gone)
            self.pool.push_front(len(gone) * self.weight)

    def taken(self, ids: Ids) -> None:
        """The pool handed out (some of) the blocks of these copies: their readers lose the page."""
        if self._recorded:
            self.by_content.a[self.content.a[ids]] = -1
        if len(ids) == 1:
            i = ids.item()
            slot = self.owner.a.item(i)
            if slot >= 0:
                self._lost(slot, self.page.a.item(i), 1)
        else:
            owner = self.owner.a[ids]
            slots = owner[:1].tolist()
            if np.count_nonzero(owner != slots[0]):
                slots = list(dict.fromkeys(owner.tolist()))
            for slot in slots:
                if slot >= 0:
                    mine = ids[owner == slot] if len(slots) > 1 else ids
                    self._lost(slot, self.page.a[mine], len(mine))
        if self._more_owners:
            for i in ids.tolist():
                for slot, page in self._more_owners.pop(i, ()):
                    self._lost(slot, page, 1)
        self._ids.give_back(ids)

    def _lost(self, slot: int, which: Ids | int, pages: int) -> None:
        state = self.states[slot]
        assert state is not None
        state.copy[which] = MINUS_ONE
        state.host_only += pages
        self.host_only += pages
        state.unpinned -= pages
        state.lost += pages
        state.hot_required = True
        if self.on_lost is not None:
            self.on_lost(state)


class PagedState:
    """The pages of one request that is running."""

    __slots__ = (
        "adopt",
        "alive",
        "content",
        "copy",
        "detached",
        "hits",
        "host",
        "host_only",
        "hot_blocks",
        "hot_required",
        "index",
        "index_hashed",
        "lost",
        "pages",
        "planned",
        "private",
        "published",
        "ready",
        "slot",
        "target",
        "unpinned",
        "unpinned_to",
    )

    def __init__(self, content: Ids, *, private: bool = False) -> None:
        self.content = content
        self.private = private
        """Nobody else can ask for what it holds: its blocks are only marked as hashed, whatever they hold."""
        self.slot = -1
        self.alive = True
        self.pages = 0
        self.index = np.empty(64, dtype=np.int64)
        self.host = np.empty(64, dtype=np.int64)
        self.copy = np.empty(64, dtype=np.int64)
        """GPU copy of each page, -1 if the host alone has it."""
        self.hot_blocks = 0
        self.hot_required = False
        self.unpinned_to = 0
        self.ready = 0
        self.planned = 0
        self.published = 0
        self.target = -1
        self.index_hashed = 0
        self.host_only = 0
        self.unpinned = 0
        self.hits = 0
        """Pages that it began with: the others had a GPU copy at first."""
        self.adopt = 0
        self.lost = 0
        self.detached = NOTHING

    def reach(self, pages: int) -> None:
        """Make room for ``pages`` pages."""
        if pages > len(self.copy):
            size = max(pages, 2 * len(self.copy))
            for name in ("index", "host", "copy"):
                grown = np.empty(size, dtype=np.int64)
                grown[: self.pages] = getattr(self, name)[: self.pages]
                setattr(self, name, grown)

    @property
    def resident(self) -> int:
        """Pages with a GPU copy."""
        return self.pages - self.host_only

    @property
    def in_flight(self) -> int:
        """Pages on their way to the host."""
        return self.planned - self.ready

    @property
    def clean_held(self) -> int:
        """Clean pages that still hold a reference to their GPU copy."""
        held = self.copy[self.unpinned_to : self.ready]
        return int((held >= 0).sum())
