"""HiSparse memory: pages that live on the GPU, on the host, or both.

A page is one block of context in all layers. On the GPU it takes one block in each resident group;
those blocks share one fate, so they are one *copy* here. Per request the pages fall into runs::

    0 ........ unpinned_to ........ ready ........ planned ........ pages
      unpinned or     clean, held      being written    dirty
      host only                        to the host

because write-backs are planned and reported in page order, and a page is given up only once it is
clean. Source: vLLM 0.33 (HiSparse coordinator), as observed by running it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

import numpy as np
from msgspec import Struct

from hisparse_sim.memory.base import MISS, NOTHING, Hit, Sequence, content_bound
from hisparse_sim.memory.copies import PageCopies, PagedState
from hisparse_sim.memory.index_offload import IndexOffload
from hisparse_sim.memory.pool import ZERO, HashedBlocks, Ids, Pool


class HiSparseSizes(Struct, frozen=True):
    """Pool sizes in blocks (null blocks not counted), and the thresholds derived from them."""

    block_size: int
    gpu_blocks: int
    host_blocks: int
    resident_groups: int
    hot_blocks_per_group: int
    window_pages: int
    """Resident pages that admission reserves per group: tokens in flight, in pages."""
    transition_watermark_blocks: int
    max_model_len: int
    admission_watermark_blocks: int = 0
    prefix_caching: bool = True
    transfer_delay_steps: int = 1

    @property
    def hot_blocks(self) -> int:
        """Of one request."""
        return self.resident_groups * self.hot_blocks_per_group


ACTIVE_TAIL_PAGES = 2
"""The last pages of a request are never given up."""


class Writeback(Struct):
    """Pages ``[first, end)`` of a request on their way to the host."""

    due: int
    state: PagedState
    first: int
    end: int


class HiSparseMemory:
    """The GPU pool (indexer, resident and hot groups) and the host pool of one replica."""

    def __init__(self, sizes: HiSparseSizes, index_offload: IndexOffload | None = None) -> None:
        self.sizes = sizes
        self.block_size = sizes.block_size
        self.index_offload = index_offload
        self.gpu = Pool(sizes.gpu_blocks)
        self.host_pool = Pool(sizes.host_blocks)
        self.index = HashedBlocks(self.gpu, caching=sizes.prefix_caching)
        self.host = HashedBlocks(self.host_pool, caching=sizes.prefix_caching)
        self.copies = PageCopies(self.gpu, sizes.resident_groups)
        self.writebacks: deque[Writeback] = deque()
        self.hot_blocks = sizes.hot_blocks
        self.refusal = ""
        """What the last refused request lacked."""
        self.pages = 0
        """Of all requests that are running."""
        self.hot_in_use = 0
        """Blocks of their hot buffers."""
        self.planned_pages = 0
        self.completed_pages = 0
        self.adopted_pages = 0
        self.lost_pages = 0
        """Of requests that are gone; the others carry theirs themselves."""

    # -- prefix ---------------------------------------------------------------------------------

    def expect(self, request: Sequence) -> None:
        """A request arrives: its content will be asked for, unless it is all its own."""
        if not self._private(request) or self.index_offload is not None:
            self._know(request)

    def _private(self, request: Sequence) -> bool:
        """Whether nobody can ask for what it computes: not even itself, unless it is preempted."""
        return not (request.private_from or request.preemptions)

    def _know(self, request: Sequence) -> None:
        bound = content_bound(request)
        for table in (self.host, self.index, self.copies):
            table.know(bound)
        if self.index_offload is not None:
            self.index_offload.store.know(bound)

    def lookup(self, request: Sequence) -> Hit | None:
        """The longest prefix that the host holds *and* the indexer's GPU blocks, or their offload.

        The last token of a request is always computed again.
        """
        if not self.sizes.prefix_caching or self._private(request):
            return MISS
        limit = (request.num_tokens - 1) // self.block_size
        host = self.host.leading(request.content[:limit])
        gpu = self.index.leading(request.content[: len(host)])
        found = len(gpu)
        if self.index_offload is not None and found < len(host):
            found += self.index_offload.run(request.content[found : len(host)])
        return Hit(found * self.block_size, gpu, host[:found])

    # -- allocation -----------------------------------------------------------------------------

    def _pages_for(self, tokens: int) -> int:
        most = self.sizes.max_model_len
        return -(-(tokens if tokens < most else most) // self.block_size)

    def _admits(self, hit: Hit, pages: int, resident_pages: int, watermark_blocks: int) -> bool:
        hits = len(hit.host)
        host = max(pages - hits, 0)
        gpu = max(pages - len(hit.gpu), 0) + watermark_blocks
        gpu += self.sizes.resident_groups * max(resident_pages - hits, 0)
        if hits:
            gpu += self.hot_blocks
        self.refusal = "host blocks"
        # Hit blocks that lie in the free list leave it; they are counted only if it matters.
        if not self._leaves_room(self.host, host, hit.host):
            return False
        self.refusal = "GPU blocks"
        return self._leaves_room(self.index, gpu, hit.gpu)

    @staticmethod
    def _leaves_room(table: HashedBlocks, new: int, hit: Ids) -> bool:
        """Whether ``new`` blocks are free beside those that were hit."""
        left = table.pool.free - new
        return left >= len(hit) or (left >= 0 and left >= table.idle(hit))

    def shortage(self, request: Sequence) -> str:
        """What a waiting request would lack even if nothing of it were cached; empty: nothing."""
        pages = self._pages_for(request.num_tokens)
        fits = self._admits(MISS, pages, min(pages, self.sizes.window_pages), 0)
        return "" if fits else self.refusal

    def admit(self, request: Sequence, hit: Hit, tokens: int, *, others_running: bool) -> bool:
        """Start a request whose first step computes ``tokens`` after ``hit``; False if it must wait.

        Both must fit: the whole sequence (resident pages only up to the window), and this step's
        tokens.
        """
        sizes = self.sizes
        watermark = sizes.admission_watermark_blocks if others_running else 0
        whole = self._pages_for(request.num_tokens)
        step = self._pages_for(hit.tokens + tokens)
        if not (
            self._admits(hit, whole, min(whole, sizes.window_pages), watermark)
            and self._admits(hit, step, step, watermark)
        ):
            return False
        request.memory = state = self._enter(request, hit)
        self._allocate(state, step)
        self._publish(state, min(hit.tokens + tokens, request.num_tokens))
        return True

    def _enter(self, request: Sequence, hit: Hit) -> PagedState:
        """A request begins, with the pages that it hit."""
        if self.index_offload is not None:
            self.index_offload.begin(request)
        private = self._private(request)
        state = PagedState(NOTHING if private else request.content, private=private)
        self.copies.enter(state)
        hits = len(hit.host)
        if hits:
            self.host.touch(hit.host)
            self.index.touch(hit.gpu)
            state.reach(hits)
            state.pages = state.host_only = state.hits = state.adopt = hits
            self.pages += hits
            self.copies.host_only += hits
            state.ready = state.planned = state.published = state.index_hashed = hits
            state.host[:hits] = hit.host
            here = len(hit.gpu)
            state.index[:here] = hit.gpu
            if hits > here:
                self._restore_index(state, here, hits)
            state.copy[:hits] = -1
            state.hot_required = True
        return state

    def _restore_index(self, state: PagedState, first: int, end: int) -> None:
        """Copy indexer blocks back from their offload; they are findable at once."""
        assert self.index_offload is not None
        self.gpu.take(end - first)
        state.index[first:end] = self.index.new(end - first)
        self.index.publish(state.index[first:end], state.content[first:end])
        self.index_offload.restored_blocks += end - first

    def extend(self, request: Sequence, tokens: int) -> bool:
        """Room for ``tokens`` more of a running request; False, and nothing changed, if there is none."""
        state: PagedState = request.memory
        after = request.computed + tokens
        pages = self._pages_for(after)
        if pages > state.pages or (state.hot_required and state.hot_blocks < self.hot_blocks):
            new = max(pages - state.pages, 0)
            need = new * (1 + self.sizes.resident_groups)
            if state.hot_required:
                need += self.hot_blocks - state.hot_blocks
            if new > self.host_pool.free or need > self.gpu.free:
                self.refusal = "host blocks" if new > self.host_pool.free else "GPU blocks"
                return False
            self._allocate(state, pages)
        self._publish(state, min(after, request.num_tokens))
        return True

    # -- requests that decode one token a step, unseen --------------------------------------------

    @property
    def pressed(self) -> bool:
        """Whether free blocks are so few that requests should get a hot buffer."""
        return self.gpu.free < self.sizes.transition_watermark_blocks

    def ride(self, request: Sequence) -> bool:
        """A quiet request changes nothing, unless what it may publish is still to be set anew."""
        state: PagedState = request.memory
        return state.index_hashed in (state.published, state.target) or not self.sizes.prefix_caching

    def alight(self, request: Sequence) -> None:
        """Nothing has changed."""

    def covers(self, wants: Collection[tuple[Sequence, int]]) -> bool:
        """Who rides takes no blocks."""
        return True

    def grow(self, steps: int) -> None:
        """Who rides takes no blocks."""

    def free_after(self, steps: int) -> list[int]:
        """GPU blocks free after each of ``steps`` steps of those that ride."""
        return [self.gpu.free] * steps

    def _allocate(self, state: PagedState, pages: int) -> None:
        new = max(pages - state.pages, 0)
        hot = self.hot_blocks - state.hot_blocks if state.hot_required else 0
        self.host_pool.take(new)
        self.gpu.take(new * (1 + self.sizes.resident_groups) + hot)
        state.hot_blocks += hot
        self.hot_in_use += hot
        if new:
            self.pages += new
            state.reach(pages)
            old, state.pages = state.pages, pages
            state.host[old:pages] = self.host.new(new)
            state.index[old:pages] = self.index.new(new)
            state.copy[old:pages] = self.copies.new(new)

    def returned(self, request: Sequence, known_tokens: int) -> None:
        """An asynchronous batch has come back: more of the request's tokens are known."""
        self._publish(request.memory, known_tokens)

    def _publish(self, state: PagedState, known_tokens: int) -> None:
        """Make whole blocks below ``known_tokens`` findable (host pages once they are durable)."""
        if not self.sizes.prefix_caching:
            return
        target = known_tokens // self.block_size
        if target > state.index_hashed:
            first = state.index_hashed
            if state.private:
                self.index.mark(state.index[first:target])
            else:
                self.index.publish(state.index[first:target], state.content[first:target])
            state.index_hashed = target
        if target > state.published:
            state.target = target
            self._publish_host(state, state.ready)

    def _publish_host(self, state: PagedState, here_from: int) -> None:
        """``here_from``: the page from which on none has lost its GPU copy."""
        end = min(state.target, state.ready)
        first = state.published
        if end > first and state.private:
            self.host.mark(state.host[first:end])
            state.published = end
        elif end > first:
            content = state.content[first:end]
            self.host.publish(state.host[first:end], content)
            copy = state.copy[first:end]
            if first < here_from and state.host_only:
                here = copy >= 0
                copy, content = copy[here], content[here]
            self.copies.record(copy, content)
            state.published = end
        if state.ready >= state.target:
            state.target = -1

    # -- the end of a scheduling step -----------------------------------------------------------

    def settle(self, scheduled: Mapping[Sequence, int], step: int) -> None:
        """Plan write-backs and give clean pages up.

        ``scheduled``: tokens of each request in this step, in schedule order, before they count as
        computed.
        """
        size, longest, offload = self.block_size, self.sizes.max_model_len, self.index_offload
        budget = longest // size
        due = step + self.sizes.transfer_delay_steps
        for request, tokens in scheduled.items():
            state: PagedState = request.memory
            after = request.computed + tokens
            first, sealed = state.planned, min(after, request.num_tokens) // size
            if sealed > first and budget:
                state.planned = end = min(sealed, first + budget)
                budget -= end - first
                self.planned_pages += end - first
                self.writebacks.append(Writeback(due, state, first, end))
            stored = offload is None or offload.offer(request, after)
            if state.adopt:
                self._adopt(state)
            cold = request.quiet_while_free = state.hot_blocks < self.hot_blocks
            if not cold:
                self._unpin(state, state.ready, downwards=True)
            elif self.pressed or state.pages >= self.sizes.window_pages:
                state.hot_required = True
            request.quiet_until = 0
            if stored and not (cold and state.hot_required):
                request.quiet_until = min(self._quiet_until(state), longest - 1)

    def _quiet_until(self, state: PagedState) -> int:
        """Tokens up to which a request needs no page, no write-back and no hash."""
        whole = min(state.planned, state.index_hashed) if self.sizes.prefix_caching else state.planned
        return min(state.pages * self.block_size, (whole + 1) * self.block_size - 1)

    def _adopt(self, state: PagedState) -> None:
        pages, state.adopt = state.adopt, 0
        found = self.copies.adoptable(state.content[:pages])
        here = np.flatnonzero(found >= 0)
        if len(here):
            ids = found[here]
            self.copies.touch(ids)
            state.copy[here] = ids
            state.host_only -= len(here)
            self.copies.host_only -= len(here)
            self.adopted_pages += len(here)

    def _unpin(self, state: PagedState, end: int, *, downwards: bool) -> None:
        """Give up clean pages below ``end``, but never the two last pages of a request."""
        first = state.unpinned_to
        end = min(end, state.pages - ACTIVE_TAIL_PAGES)
        if end <= first:
            return
        state.unpinned_to = end
        if downwards:
            pages = np.arange(end - 1, first - 1, -1)
            ids = state.copy[first:end][::-1].copy()
        else:
            pages, ids = np.arange(first, end), state.copy[first:end].copy()
        if first < state.hits:
            here = ids >= 0
            pages, ids = pages[here], ids[here]
        if len(ids):
            state.unpinned += len(ids)
            self.copies.unpin(ids, state.slot, pages)

    # -- write-backs ----------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether write-backs are under way."""
        return bool(self.writebacks)

    counting = busy

    @property
    def findable(self) -> int:
        """Grows whenever a lookup may find more than before."""
        found = self.index.published + self.host.published
        return found if self.index_offload is None else found + self.index_offload.store.readied

    fewer_blocks_refuse_too = False
    """With fewer blocks a hit may be gone, and with it the hot buffer that it asks for."""

    def reclaim_pending(self) -> bool:
        """Whether blocks will come back without anybody's doing: a failing request waits for them."""
        for w in self.writebacks:
            state = w.state
            if state.alive:
                if state.hot_blocks == self.hot_blocks:
                    return True
            elif not len(state.detached):
                return True
        return False

    def complete(self, step: int) -> int:
        """Take note of the write-backs that are reported with step ``step``; returns their pages."""
        due: list[Writeback] = []
        while self.writebacks and self.writebacks[0].due <= step:
            due.append(self.writebacks.popleft())
        if not due:
            return 0
        done = 0
        for w in due:
            state = w.state
            done += w.end - w.first
            state.ready = w.end
            if state.alive:
                if state.hot_blocks == self.hot_blocks:
                    self._unpin(state, w.end, downwards=False)
                continue
            self.copies.discard(state.copy[w.first : w.end].copy())
            host = state.host[w.first : w.end]
            if len(state.detached) and w.end == state.planned:
                self._finish_detached(state, host)
            else:
                self.host.release(host.copy())
        for w in due:
            if w.state.alive and w.state.target >= 0:
                self._publish_host(w.state, w.first)
        self.completed_pages += done
        return done

    def _finish_detached(self, state: PagedState, host: Ids) -> None:
        """The last write-back of a finished request: its pages become findable after all."""
        self.host.release(host[:-1].copy())
        end = min(state.ready, state.target)
        if end > state.published:
            pages = state.host[state.published : end]
            if state.private:
                self.host.mark(pages)
            else:
                self.host.publish(pages, state.content[state.published : end])
        self.host.release(state.detached[::-1].copy())
        state.detached = NOTHING
        self.host.release(host[-1:].copy())

    # -- release --------------------------------------------------------------------------------

    def may_preempt(self, victim: Sequence) -> bool:
        """Only when the last batch that holds the victim has come back."""
        return not victim.in_flight

    def release(self, request: Sequence, *, finished: bool) -> None:
        """A request ends or is preempted. Clean pages stay readable as copies; the rest is dropped."""
        state: PagedState = request.memory
        request.memory = None
        if state.private and not finished and self.sizes.prefix_caching:
            self._disclose(state, request)
        if finished and self.index_offload is not None:
            self.index_offload.finish(request)
        pages = state.pages
        if state.planned > state.ready:  # what is on its way outlives the request
            self.copies.ref.hold(state.copy[state.ready : state.planned])
            self.host.ref.hold(state.host[state.ready : state.planned])
        if finished and state.target > 0 and state.planned > state.ready:
            state.detached = state.host[: state.target].copy()
            self.host.ref.hold(state.detached)
        state.alive = False
        self.lost_pages += state.lost
        self.pages -= pages
        self.hot_in_use -= state.hot_blocks
        self.copies.host_only -= state.host_only
        held = state.copy[state.unpinned_to : state.ready][::-1]
        given = state.copy[: state.unpinned_to]
        if state.host_only:
            held, given = held[held >= 0], given[given >= 0]
        if len(held):
            self.copies.leave_behind(held.copy())
        if len(given):
            self.copies.disown(given, state.slot)
        self.host.release(state.host[:pages][::-1].copy())
        self.index.release(state.index[:pages][::-1].copy())
        self.copies.discard(state.copy[state.ready : pages][::-1].copy())
        self.gpu.push_front(state.hot_blocks)
        self.copies.leave(state)

    def _disclose(self, state: PagedState, request: Sequence) -> None:
        """A preempted request will ask for what nobody else can."""
        self._know(request)
        content, hashed, published = request.content, state.index_hashed, state.published
        self.index.publish(state.index[:hashed], content[:hashed])
        self.host.publish(state.host[:published], content[:published])
        here = state.copy[:published] >= ZERO
        self.copies.record(state.copy[:published][here], content[:published][here])
        state.content, state.private = content, False
