"""HiSparse memory as vLLM 0.30 had it: host blocks at best effort, residency work at each allocation.

Where it differs from ``residency`` (0.33): a full host pool fails nothing (pages beyond it have no
host block and stay on the GPU), so clean pages are no longer a prefix; write-backs are planned and
pages given up inside each request's allocation; a request's host pages become findable only all
together; GPU copies of a hit are adopted between the capacity check and the allocation, which can
then ask for more than is free: the engine dies. Source: vLLM 0.30, as observed by running it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from hisparse_sim.memory.base import MISS, EngineDied, Hit, Sequence, content_bound
from hisparse_sim.memory.copies import PageCopies
from hisparse_sim.memory.pool import HashedBlocks, Ids, Pool
from hisparse_sim.memory.residency import HiSparseSizes

Mask = npt.NDArray[np.bool_]


class ScatteredState:
    """The pages of one running request, each with a state of its own."""

    __slots__ = (
        "alive",
        "content",
        "copy",
        "held",
        "host",
        "host_only",
        "hot_blocks",
        "hot_required",
        "index",
        "index_hashed",
        "lost",
        "pages",
        "pending",
        "published",
        "ready",
        "slot",
        "target",
        "unpinned",
        "valid",
    )

    def __init__(self, content: Ids) -> None:
        self.content = content
        self.slot = -1
        self.alive = True
        self.pages = 0
        self.index: Ids = np.empty(64, dtype=np.int64)
        self.host: Ids = np.empty(64, dtype=np.int64)
        """Host block of each page, -1 if the host pool was full."""
        self.copy: Ids = np.empty(64, dtype=np.int64)
        """GPU copy of each page, -1 if the host alone has it."""
        self.valid: Mask = np.zeros(64, dtype=bool)
        self.pending: Mask = np.zeros(64, dtype=bool)
        self.held: Mask = np.zeros(64, dtype=bool)
        """Clean pages that still hold a reference to their GPU copy."""
        self.hot_blocks = 0
        self.hot_required = False
        self.ready = 0
        self.published = 0
        self.target = -1
        self.index_hashed = 0
        self.host_only = 0
        self.unpinned = 0
        self.lost = 0

    def reach(self, pages: int) -> None:
        """Make room for ``pages`` pages."""
        if pages > len(self.copy):
            size = max(pages, 2 * len(self.copy))
            for name in ("index", "host", "copy", "valid", "pending", "held"):
                old = getattr(self, name)
                grown = np.zeros(size, dtype=old.dtype)
                grown[: self.pages] = old[: self.pages]
                setattr(self, name, grown)

    @property
    def resident(self) -> int:
        """Pages with a GPU copy."""
        return self.pages - self.host_only

    @property
    def clean_held(self) -> int:
        """Clean pages that still hold a reference to their GPU copy."""
        return int(self.held[: self.pages].sum())

    @property
    def in_flight(self) -> int:
        """Pages on their way to the host."""
        return int(self.pending[: self.pages].sum())

    def advance(self) -> None:
        """Let ``ready`` pass the pages that have become complete on the host."""
        rest = self.valid[self.ready : self.pages]
        gaps = np.flatnonzero(~rest)
        self.ready += int(gaps[0]) if len(gaps) else len(rest)


class ScatteredWriteback(Struct):
    """Pages of a request on their way to the host."""

    due: int
    state: ScatteredState
    pages: Ids


class HiSparseMemoryV030:
    """The GPU pool and the host pool of one replica, as 0.30 manages them."""

    def __init__(self, sizes: HiSparseSizes) -> None:
        self.sizes = sizes
        self.block_size = sizes.block_size
        self.gpu = Pool(sizes.gpu_blocks)
        self.host_pool = Pool(sizes.host_blocks)
        self.index = HashedBlocks(self.gpu, caching=sizes.prefix_caching)
        self.host = HashedBlocks(self.host_pool, caching=sizes.prefix_caching)
        self.copies = PageCopies(self.gpu, sizes.resident_groups)
        self.writebacks: deque[ScatteredWriteback] = deque()
        self.hot_blocks = sizes.hot_blocks
        self.refusal = "GPU blocks"
        self.planned_pages = 0
        self.completed_pages = 0
        self.adopted_pages = 0
        self.lost_pages = 0
        self.step = 0
        self._budget = self._step_budget = sizes.max_model_len // sizes.block_size

    # -- prefix and admission -------------------------------------------------------------------

    def expect(self, request: Sequence) -> None:
        """A request arrives: its content will be asked for."""
        bound = content_bound(request)
        for table in (self.host, self.index, self.copies):
            table.know(bound)

    def lookup(self, request: Sequence) -> Hit | None:
        """The longest prefix that the host *and* the indexer's GPU blocks still hold."""
        if not self.sizes.prefix_caching:
            return MISS
        limit = (request.num_tokens - 1) // self.block_size
        host = self.host.leading(request.content[:limit])
        gpu = self.index.leading(request.content[: len(host)])
        return Hit(len(gpu) * self.block_size, gpu, host[: len(gpu)])

    def _pages_for(self, tokens: int) -> int:
        return -(-min(tokens, self.sizes.max_model_len) // self.block_size)

    def _admits(self, hit: Hit, pages: int, resident_pages: int, watermark_blocks: int) -> bool:
        hits = len(hit.gpu)
        gpu = max(pages - hits, 0) + watermark_blocks
        gpu += self.sizes.resident_groups * max(resident_pages - hits, 0)
        if hits:
            gpu += self.index.idle(hit.gpu) + self.hot_blocks
        return gpu <= self.gpu.free

    def shortage(self, request: Sequence) -> str:
        """What a waiting request would lack even if nothing of it were cached; empty: nothing."""
        pages = self._pages_for(request.num_tokens)
        fits = self._admits(MISS, pages, min(pages, self.sizes.window_pages), 0)
        return "" if fits else self.refusal

    def admit(self, request: Sequence, hit: Hit, tokens: int, *, others_running: bool) -> bool:
        """Start a request; False if it must wait. Raises ``EngineDied`` where 0.30 does."""
        sizes = self.sizes
        watermark = sizes.admission_watermark_blocks if others_running else 0
        whole = self._pages_for(request.num_tokens)
        step = self._pages_for(hit.tokens + tokens)
        if not (
            self._admits(hit, whole, min(whole, sizes.window_pages), watermark)
            and self._admits(hit, step, step, watermark)
        ):
            return False
        state = ScatteredState(request.content)
        self.copies.enter(state)  # type: ignore[arg-type]
        hits = len(hit.gpu)
        if hits:
            self.host.touch(hit.host)
            self.index.touch(hit.gpu)
            state.reach(hits)
            state.pages = state.host_only = hits
            state.ready = state.published = state.index_hashed = hits
            state.valid[:hits] = True
            state.host[:hits] = hit.host
            state.index[:hits] = hit.gpu
            state.copy[:hits] = -1
            state.hot_required = True
            self._adopt(state, hits)
        self._allocate(state, step)
        request.memory = state
        self._settle(request, min(hit.tokens + tokens, request.num_tokens))
        return True

    def _adopt(self, state: ScatteredState, pages: int) -> None:
        found = self.copies.adoptable(state.content[:pages])
        here = np.flatnonzero(found >= 0)
        if len(here):
            ids = found[here]
            self.copies.touch(ids)
            state.copy[here] = ids
            state.held[here] = True
            state.host_only -= len(here)
            self.adopted_pages += len(here)

    # -- allocation -----------------------------------------------------------------------------

    def extend(self, request: Sequence, tokens: int) -> bool:
        """Room for ``tokens`` more of a running request; False, and nothing changed, if there is none."""
        state: ScatteredState = request.memory
        after = request.computed + tokens
        pages = self._pages_for(after)
        new = max(pages - state.pages, 0)
        need = new * (1 + self.sizes.resident_groups)
        if state.hot_required:
            need += self.hot_blocks - state.hot_blocks
        if need > self.gpu.free:
            return False
        self._allocate(state, pages)
        self._settle(request, min(after, request.num_tokens))
        return True

    def _allocate(self, state: ScatteredState, pages: int) -> None:
        new = max(pages - state.pages, 0)
        groups = self.sizes.resident_groups
        on_host = min(new, self.host_pool.free)
        self.host_pool.take(on_host)
        takes = [new] * (1 + groups)
        if state.hot_required and state.hot_blocks < self.hot_blocks:
            takes += [self.sizes.hot_blocks_per_group] * groups
            state.hot_blocks = self.hot_blocks
        for n in takes:
            if n > self.gpu.free:
                raise EngineDied(f"Cannot get {n} free blocks from the pool")
            self.gpu.take(n)
        if new:
            state.reach(pages)
            old, state.pages = state.pages, pages
            state.host[old : old + on_host] = self.host.new(on_host)
            state.host[old + on_host : pages] = -1
            state.index[old:pages] = self.index.new(new)
            state.copy[old:pages] = self.copies.new(new)
            for mask in (state.valid, state.pending, state.held):
                mask[old:pages] = False

    def returned(self, request: Sequence, known_tokens: int) -> None:
        """An asynchronous batch has come back: more of the request's tokens are known."""
        self._publish(request.memory, known_tokens)

    def _settle(self, request: Sequence, known_tokens: int) -> None:
        """What follows each allocation: hashes, write-backs, residency."""
        state: ScatteredState = request.memory
        self._publish(state, known_tokens)
        self._plan(state, known_tokens // self.block_size)
        if state.hot_blocks < self.hot_blocks:
            if self.gpu.free < self.sizes.transition_watermark_blocks:
                state.hot_required = True
        else:
            self._unpin(state, np.flatnonzero(state.held[: state.pages]))

    def _publish(self, state: ScatteredState, known_tokens: int) -> None:
        if not self.sizes.prefix_caching:
            return
        target = known_tokens // self.block_size
        if target > state.index_hashed:
            first = state.index_hashed
            self.index.publish(state.index[first:target], state.content[first:target])
            state.index_hashed = target
        if target > state.published:
            state.target = target
            self._publish_host(state)

    def _publish_host(self, state: ScatteredState) -> None:
        """All pages of the target or none."""
        if state.ready < state.target:
            return
        first, end = state.published, state.target
        if end > first:
            content = state.content[first:end]
            self.host.publish(state.host[first:end], content)
            here = state.copy[first:end] >= 0
            if here.any():
                self.copies.record(state.copy[first:end][here], content[here])
            state.published = end
        state.target = -1

    def _plan(self, state: ScatteredState, sealed: int) -> None:
        first = state.ready
        if sealed <= first or not self._budget:
            return
        part = slice(first, sealed)
        able = ~state.valid[part] & ~state.pending[part] & (state.copy[part] >= 0) & (state.host[part] >= 0)
        pages = np.flatnonzero(able)[: self._budget] + first
        if not len(pages):
            return
        self._budget -= len(pages)
        self.planned_pages += len(pages)
        self.copies.ref.hold(state.copy[pages])
        self.host.ref.hold(state.host[pages])
        state.pending[pages] = True
        due = self.step + self.sizes.transfer_delay_steps
        self.writebacks.append(ScatteredWriteback(due, state, pages))

    def _unpin(self, state: ScatteredState, pages: Ids) -> None:
        """Give up clean pages, in the order given, but never the two last pages of a request."""
        pages = pages[pages < state.pages - 2]
        if len(pages):
            state.held[pages] = False
            state.unpinned += len(pages)
            self.copies.unpin(state.copy[pages], state.slot, pages)

    def settle(self, scheduled: Mapping[Sequence, int], step: int) -> None:
        """The step's own work is done already; the next one plans anew."""
        self.step = step + 1
        self._budget = self._step_budget

    # -- requests that decode unseen: none, this version looks at every page in every step -----------

    pressed = False

    def ride(self, request: Sequence) -> bool:
        """Nobody is quiet."""
        return False

    def alight(self, request: Sequence) -> None:
        """Nobody is quiet."""

    def covers(self, wants: Collection[tuple[Sequence, int]]) -> bool:
        """Nobody rides."""
        return True

    def grow(self, steps: int) -> None:
        """Nobody rides."""

    def free_after(self, steps: int) -> list[int]:
        """GPU blocks free after each of ``steps`` steps of those that ride."""
        return [self.gpu.free] * steps

    # -- write-backs ----------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether write-backs are under way."""
        return bool(self.writebacks)

    counting = busy

    @property
    def findable(self) -> int:
        """Grows whenever a lookup may find more than before."""
        return self.index.published + self.host.published

    fewer_blocks_refuse_too = False
    index_offload = None

    def may_preempt(self, victim: Sequence) -> bool:
        """Only when the last batch that holds the victim has come back."""
        return not victim.in_flight

    def reclaim_pending(self) -> bool:
        """Whether blocks of a living request that reads from the host are on their way back."""
        hot = self.hot_blocks
        return any(w.state.alive and w.state.hot_blocks == hot for w in self.writebacks)

    def complete(self, step: int) -> int:
        """Take note of the write-backs that are reported with ``step``; returns their pages."""
        due: list[ScatteredWriteback] = []
        while self.writebacks and self.writebacks[0].due <= step:
            due.append(self.writebacks.popleft())
        for w in due:
            ids = w.state.copy[w.pages]
            if w.state.alive:
                self.copies.ref.drop(ids)
            else:
                self.copies.discard(ids)
        for w in due:
            state = w.state
            state.pending[w.pages] = False
            if state.alive:
                state.valid[w.pages] = True
                state.held[w.pages] = True
                if state.hot_blocks == self.hot_blocks:
                    self._unpin(state, w.pages)
                self.host.ref.drop(state.host[w.pages])
            else:
                self.host.release(state.host[w.pages])
        for w in due:
            if w.state.alive:
                w.state.advance()
                if w.state.target >= 0:
                    self._publish_host(w.state)
        done = sum(len(w.pages) for w in due)
        self.completed_pages += done
        return done

    # -- release --------------------------------------------------------------------------------

    def release(self, request: Sequence, *, finished: bool) -> None:
        """A request ends or is preempted."""
        state: ScatteredState = request.memory
        request.memory = None
        state.alive = False
        self.lost_pages += state.lost
        pages = state.pages
        copy = state.copy[:pages]
        held = state.held[:pages]
        if held.any():
            self.copies.leave_behind(copy[held])
        given = (copy >= 0) & ~held & state.valid[:pages]
        if given.any():
            self.copies.disown(copy[given], state.slot)
        host = state.host[:pages]
        self.host.release(host[host >= 0][::-1].copy())
        self.index.release(state.index[:pages][::-1].copy())
        dirty = (copy >= 0) & ~state.valid[:pages]
        self.copies.discard(copy[dirty][::-1].copy())
        self.gpu.push_front(state.hot_blocks)
        self.copies.leave(state)  # type: ignore[arg-type]
