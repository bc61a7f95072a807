"""Classic memory: one group of blocks on the GPU, found again by prefix."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping
from itertools import accumulate
from operator import neg, sub

import numpy as np
from msgspec import Struct

from hisparse_sim.memory.base import MISS, NOTHING, Hit, Sequence, content_bound
from hisparse_sim.memory.pool import HashedBlocks, Ids, Pool


class ResidentSizes(Struct, frozen=True):
    """Pool size in blocks (the null block not counted)."""

    block_size: int
    gpu_blocks: int
    max_model_len: int
    admission_watermark_blocks: int = 0
    prefix_caching: bool = True


class BlockState:
    """The blocks of one request that is running or loading.

    Those that nobody else can ever ask for are only counted: the last of its ``pages``, from ``named`` on.
    """

    __slots__ = ("blocks", "hashed", "named", "pages", "phase")

    def __init__(self) -> None:
        self.phase = -1
        """Remainder of the steps in which it takes a block while it rides; -1: it takes none."""
        self.pages = 0
        self.named = 0
        self.hashed = 0
        """Blocks whose content is known; only named ones can be found by it."""
        self.blocks: Ids = NOTHING
        """Of those that are named."""

    def reach(self, pages: int) -> None:
        """Make room to name ``pages`` blocks."""
        if pages > len(self.blocks):
            grown = np.empty(max(pages, 2 * len(self.blocks), 64), dtype=np.int64)
            grown[: self.named] = self.blocks[: self.named]
            self.blocks = grown


class ResidentMemory:
    """A pool in which a running request holds all its KV."""

    def __init__(self, sizes: ResidentSizes) -> None:
        self.sizes = sizes
        self.block_size = sizes.block_size
        self.gpu = Pool(sizes.gpu_blocks)
        self.blocks = HashedBlocks(self.gpu, caching=sizes.prefix_caching)
        self._grown = 0
        """Steps of those that ride so far."""
        self._phases = [0] * self.block_size
        """How many of them take a block in the steps that leave this remainder."""
        self._growing = 0
        self.unnamed = 0
        """Blocks in use that are only counted, those of requests that ride included."""

    @property
    def busy(self) -> bool:
        """No transfers."""
        return False

    counting = busy

    @property
    def findable(self) -> int:
        """Grows whenever a lookup may find more than before."""
        return self.blocks.published

    fewer_blocks_refuse_too = True
    """A request refused now is refused with fewer free blocks as well."""
    refusal = "GPU blocks"
    """What a refused request lacks."""

    def expect(self, request: Sequence) -> None:
        """A request arrives: its content will be asked for, unless it is all its own."""
        if self.private_from(request):
            self.blocks.know(content_bound(request))

    def lookup(self, request: Sequence) -> Hit | None:
        """The longest cached prefix; the last token is always computed again."""
        if not self.sizes.prefix_caching or not (request.preemptions or self.private_from(request)):
            return MISS
        limit = (request.num_tokens - 1) // self.block_size
        found = self.blocks.leading(request.content[:limit])
        return Hit(len(found) * self.block_size, found)

    def pages_for(self, tokens: int) -> int:
        """Blocks that hold ``tokens`` tokens."""
        most = self.sizes.max_model_len
        return -(-(tokens if tokens < most else most) // self.block_size)

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
        if not self.fits(hit, max(request.num_tokens, end), others_running=others_running):
            return False
        state = self.start(request, hit)
        self.allocate(request, state, self.pages_for(end))
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
            state.pages = state.named = state.hashed = hits
        return state

    def extend(self, request: Sequence, tokens: int) -> bool:
        """Room for ``tokens`` more of a running request; False, and nothing changed, if there is none."""
        state: BlockState = request.memory
        after = request.computed + tokens
        pages = self.pages_for(after)
        if pages > state.pages:
            if pages - state.pages > self.gpu.free:
                return False
            self.allocate(request, state, pages)
        self.publish(request, state, min(after, request.num_tokens))
        return True

    # -- requests that decode one token a step, unseen --------------------------------------------

    pressed = False
    """What is quiet stays quiet."""

    def ride(self, request: Sequence) -> bool:
        """From the next step on a quiet request decodes one token a step, unseen.

        If nobody else can ask for the blocks that it fills, only their number matters until it alights.
        """
        state: BlockState = request.memory
        if self._private(request, state):
            room = state.pages * self.block_size - request.computed
            state.phase = (self._grown + room) % self.block_size
            self._phases[state.phase] += 1
            self._growing += 1
        return True

    def alight(self, request: Sequence) -> None:
        """It does not any more: give it the blocks that it has grown by."""
        state: BlockState = request.memory
        if state.phase < 0:
            return
        self._phases[state.phase] -= 1
        self._growing -= 1
        state.phase = -1
        state.pages = max(state.pages, self.pages_for(request.computed))
        self.publish(request, state, request.computed - request.in_flight)

    def covers(self, wants: Collection[tuple[Sequence, int]]) -> bool:
        """Whether the free blocks suffice for all that ride and for ``wants``, tokens of others."""
        if not self._growing and not any(self._private(request, request.memory) for request, _ in wants):
            return True
        need = self._phases[self._grown % self.block_size]
        for _, tokens in wants:
            need += tokens // self.block_size + 2
        return need <= self.gpu.free

    def grow(self, steps: int) -> None:
        """So many steps of those that ride: take the blocks that they need."""
        if self._growing:
            blocks = self._phases[self._grown % self.block_size] if steps == 1 else sum(self._growth(steps))
            if blocks:
                self.gpu.take(blocks)
                self.unnamed += blocks
        self._grown += steps

    def free_after(self, steps: int) -> list[int]:
        """GPU blocks free after each of the next steps, at most ``steps``, for which they suffice."""
        free = self.gpu.free
        if not self._growing:
            return [free] * steps
        left = list(accumulate(self._growth(steps), sub, initial=free))
        return left[1:] if left[-1] >= 0 else left[1 : bisect_right(left, 0, key=neg)]

    def _growth(self, steps: int) -> list[int]:
        """Blocks that each of the next steps takes."""
        size, first = self.block_size, self._grown % self.block_size
        if first + steps <= size:
            return self._phases[first : first + steps]
        turns = -(-(first + steps) // size)
        return (self._phases * turns)[first : first + steps]

    def private_from(self, request: Sequence) -> int:
        """From this block on nobody has a use for what a request fills but, preempted, itself."""
        return request.private_from if self.sizes.prefix_caching else 0

    def _private(self, request: Sequence, state: BlockState) -> bool:
        """Whether that is so of all that it fills from now on."""
        return state.hashed >= self.private_from(request)

    def allocate(self, request: Sequence, state: BlockState, pages: int) -> None:
        """Take blocks until the request holds ``pages``."""
        new = pages - state.pages
        if new > 0:
            self.gpu.take(new)
            if self._private(request, state):
                self.unnamed += new
            else:
                self._name(state, pages)
            state.pages = pages

    def _name(self, state: BlockState, pages: int) -> None:
        """Give ids to blocks that have none, up to ``pages``."""
        named = state.named
        state.reach(pages)
        state.blocks[named:pages] = self.blocks.new(pages - named)
        state.named = pages

    def publish(self, request: Sequence, state: BlockState, known_tokens: int) -> None:
        """Make whole blocks below ``known_tokens`` findable."""
        if not self.sizes.prefix_caching:
            return
        target = known_tokens // self.block_size
        if target > state.hashed:
            self._publish(request, state, state.hashed, min(target, state.named))
            state.hashed = target

    def _publish(self, request: Sequence, state: BlockState, first: int, end: int) -> None:
        if end > first:
            self.blocks.publish(state.blocks[first:end], request.content[first:end])

    def returned(self, request: Sequence, known_tokens: int) -> None:
        """An asynchronous batch has come back: more of the request's tokens are known."""
        self.publish(request, request.memory, known_tokens)

    def release(self, request: Sequence, *, finished: bool) -> None:
        """A request ends or is preempted: its blocks go back, the tail of the sequence first."""
        state: BlockState = request.memory
        named, hashed = state.named, state.hashed
        if not finished and self.sizes.prefix_caching:  # it will ask for what it has computed
            self.blocks.know(content_bound(request))
        if unnamed := state.pages - named:
            self.unnamed -= unnamed
            if finished or not hashed:
                # Whole blocks go to the tail, as all that have a hash do, the others to the front.
                whole = max(hashed - named, 0)
                self.gpu.push_back(whole)
                self.gpu.push_front(unnamed - whole)
            else:
                self._name(state, state.pages)
                self._publish(request, state, named, hashed)
        if state.named:
            self.blocks.release(state.blocks[: state.named][::-1].copy())
        request.memory = None

    def settle(self, scheduled: Mapping[Sequence, int], step: int) -> None:
        """Only to note how far each request can decode without a block or a hash."""
        for request, tokens in scheduled.items():
            request.quiet_until = self._quiet_until(request, tokens)

    def _quiet_until(self, request: Sequence, tokens: int) -> int:
        """Tokens up to which a request, after ``tokens`` more, needs no block of its own and no hash."""
        state: BlockState = request.memory
        if self._private(request, state) and state.pages == self.pages_for(request.computed + tokens):
            return self.sizes.max_model_len - 1
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
