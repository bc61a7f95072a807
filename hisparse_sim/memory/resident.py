"""Classic memory: one group of blocks on the GPU, found again by prefix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hisparse_sim.memory.base import MISS, NEVER, NOTHING, Hit, Sequence
from hisparse_sim.memory.pool import HashedBlocks, Ids, Pool


@dataclass(frozen=True, slots=True)
class ResidentSizes:
    """Pool size in blocks (the null block not counted)."""

    block_size: int
    gpu_blocks: int
    max_model_len: int
    admission_watermark_blocks: int = 0
    prefix_caching: bool = True


class BlockState:
    """The blocks of one request that is running or loading."""

    __slots__ = ("blocks", "hashed", "pages")

    def __init__(self) -> None:
        self.pages = 0
        self.hashed = 0
        self.blocks: Ids = np.empty(64, dtype=np.int64)

    def reach(self, pages: int) -> None:
        """Make room for ``pages`` blocks."""
        if pages > len(self.blocks):
            grown = np.empty(max(pages, 2 * len(self.blocks)), dtype=np.int64)
            grown[: self.pages] = self.blocks[: self.pages]
            self.blocks = grown


class ResidentMemory:
    """A pool in which a running request holds all its KV."""

    def __init__(self, sizes: ResidentSizes) -> None:
        self.sizes = sizes
        self.block_size = sizes.block_size
        self.gpu = Pool(sizes.gpu_blocks)
        self.blocks = HashedBlocks(self.gpu, caching=sizes.prefix_caching)

    @property
    def busy(self) -> bool:
        """No transfers."""
        return False

    counting = busy
    fewer_blocks_refuse_too = True
    """A request refused now is refused with fewer free blocks as well."""
    refusal = "GPU blocks"
    """What a refused request lacks."""

    def lookup(self, request: Sequence) -> Hit | None:
        """The longest cached prefix; the last token is always computed again."""
        if not self.sizes.prefix_caching:
            return MISS
        limit = (request.num_tokens - 1) // self.block_size
        found = self.blocks.leading(request.content[:limit])
        return Hit(len(found) * self.block_size, found)

    def pages_for(self, tokens: int) -> int:
        """Blocks that hold ``tokens`` tokens."""
        return -(-min(tokens, self.sizes.max_model_len) // self.block_size)

    def fits(self, hit: Hit, tokens: int, *, others_running: bool, spare_blocks: int = 0) -> bool:
        """Whether ``tokens`` tokens, ``hit`` of them cached, fit and leave ``spare_blocks``."""
        need = max(self.pages_for(tokens) - len(hit.gpu), 0) + spare_blocks
        if len(hit.gpu):
            need += self.blocks.idle(hit.gpu)
        if others_running:
            need += self.sizes.admission_watermark_blocks
        return need <= self.gpu.free

    def admit(self, request: Sequence, hit: Hit, tokens: int, *, others_running: bool) -> bool:
        """Start a request whose first step computes ``tokens`` after ``hit``; False if it must wait."""
        end = hit.tokens + tokens
        if not (
            self.fits(hit, request.num_tokens, others_running=others_running)
            and self.fits(hit, end, others_running=others_running)
        ):
            return False
        state = self.start(request, hit)
        self.allocate(state, self.pages_for(end))
        request.memory = state
        self.publish(request, state, min(end, request.num_tokens))
        return True

    def shortage(self, request: Sequence) -> str:
        """What a waiting request would lack even if nothing of it were cached; empty: nothing."""
        return "GPU blocks" if self.pages_for(request.num_tokens) > self.gpu.free else ""

    def start(self, request: Sequence, hit: Hit) -> BlockState:
        """A state that holds the hit blocks and nothing else."""
        state = BlockState()
        hits = len(hit.gpu)
        if hits:
            self.blocks.touch(hit.gpu)
            state.reach(hits)
            state.blocks[:hits] = hit.gpu
            state.pages = state.hashed = hits
        return state

    def extend(self, request: Sequence, tokens: int) -> bool:
        """Room for ``tokens`` more of a running request; False, and nothing changed, if there is none."""
        state: BlockState = request.memory
        after = request.computed + tokens
        pages = self.pages_for(after)
        if pages > state.pages:
            if pages - state.pages > self.gpu.free:
                return False
            self.allocate(state, pages)
        self.publish(request, state, min(after, request.num_tokens))
        return True

    def quiet_tokens(self, request: Sequence) -> int:
        """Tokens that a decoding request can take one by one before more than its own blocks changes."""
        return NEVER

    def affordable(self, requests: list[Any], steps: int) -> int:
        """How many of ``steps`` decode steps of these requests the free blocks suffice for."""
        if (
            sum(-(-max(steps - room, 0) // self.block_size) for room in self._rooms(requests))
            <= self.gpu.free
        ):
            return steps
        needs = np.sort(self._needs(requests, steps))
        return int(needs[self.gpu.free]) - 1

    def free_after(self, requests: list[Any], steps: int) -> list[int]:
        """GPU blocks free after each of ``steps`` decode steps."""
        needs = self._needs(requests, steps)
        if not len(needs):
            return [self.gpu.free] * steps
        free: list[int] = (self.gpu.free - np.cumsum(np.bincount(needs, minlength=steps + 1))[1:]).tolist()
        return free

    def _rooms(self, requests: list[Any]) -> list[int]:
        """Tokens that each request has blocks for."""
        size = self.block_size
        return [r.memory.pages * size - r.computed for r in requests]

    def _needs(self, requests: list[Any], steps: int) -> Ids:
        """The steps, from 1, in which a request takes a block; one entry a block."""
        size = self.block_size
        parts = [np.arange(room + 1, steps + 1, size) for room in self._rooms(requests) if room < steps]
        return np.concatenate(parts) if parts else NOTHING

    def advance(self, requests: list[Any]) -> None:
        """Bring the blocks of these requests up to their tokens, as step after step would have."""
        size = self.block_size
        grown = [
            (r.memory, pages) for r in requests if (pages := self.pages_for(r.computed)) > r.memory.pages
        ]
        if grown:
            total = sum(pages - state.pages for state, pages in grown)
            self.gpu.take(total)
            ids = self.blocks.new(total)
            used = 0
            for state, pages in grown:
                state.reach(pages)
                first, state.pages = state.pages, pages
                state.blocks[first:pages] = ids[used : used + pages - first]
                used += pages - first
        if not self.sizes.prefix_caching:
            return
        blocks, content, when = [], [], []
        for r in requests:
            state = r.memory
            r.quiet_until = 0  # until the next step that takes or publishes one
            known = r.computed - r.in_flight
            first, end = state.hashed, known // size
            if end > first:
                blocks.append(state.blocks[first:end])
                content.append(r.content[first:end])
                when.append(np.arange(first + 1, end + 1) * size - known)
                state.hashed = end
        if blocks:
            order = np.argsort(np.concatenate(when), kind="stable")
            self.blocks.publish(np.concatenate(blocks)[order], np.concatenate(content)[order])

    def allocate(self, state: BlockState, pages: int) -> None:
        """Take blocks until the request holds ``pages``."""
        new = pages - state.pages
        if new > 0:
            self.gpu.take(new)
            state.reach(pages)
            state.blocks[state.pages : pages] = self.blocks.new(new)
            state.pages = pages

    def publish(self, request: Sequence, state: BlockState, known_tokens: int) -> None:
        """Make whole blocks below ``known_tokens`` findable."""
        if not self.sizes.prefix_caching:
            return
        target = known_tokens // self.block_size
        if target > state.hashed:
            first = state.hashed
            self.blocks.publish(state.blocks[first:target], request.content[first:target])
            state.hashed = target

    def returned(self, request: Sequence, known_tokens: int) -> None:
        """An asynchronous batch has come back: more of the request's tokens are known."""
        self.publish(request, request.memory, known_tokens)

    def release(self, request: Sequence, *, finished: bool) -> None:
        """A request ends or is preempted: its blocks go back, the tail of the sequence first."""
        state: BlockState = request.memory
        self.blocks.release(state.blocks[: state.pages][::-1].copy())
        request.memory = None

    def settle(self, scheduled: Mapping[Sequence, int], step: int) -> None:
        """Only to note how far each request can decode without a block or a hash."""
        for request in scheduled:
            request.quiet_until = self._quiet_until(request)

    def _quiet_until(self, request: Sequence) -> int:
        state: BlockState = request.memory
        room = state.pages * self.block_size
        if self.sizes.prefix_caching:
            room = min(room, (state.hashed + 1) * self.block_size - 1)
        return min(room, self.sizes.max_model_len - 1)

    def complete(self, step: int) -> int:
        """No transfers."""
        return 0

    def may_preempt(self, victim: Sequence) -> bool:
        """Any time: a batch under way that holds the victim is stale."""
        return True

    def reclaim_pending(self) -> bool:
        """No blocks come back by themselves."""
        return False
