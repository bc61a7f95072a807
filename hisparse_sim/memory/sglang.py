"""SGLang's HiSparse: all of a request's rows on the host, a hot buffer a layer on the GPU, no prefix cache.

A token takes a *logical* slot, which is one slot of the host pool and one of the indexer's pool in HBM, both
``host_to_device_ratio`` times as large as the device pool. While a prompt is prefilled, its rows also lie in
the device pool; before its first decode they shrink to the hot buffer. Prompts that come from another
instance never lie there. Sources: sgl-project/sglang, ``managers/hisparse_coordinator.py``,
``mem_cache/allocator/hisparse.py``, ``managers/schedule_policy.py`` (PrefillAdder), ``managers/
schedule_batch.py`` (retract_decode), ``disaggregation/decode.py``, autumn 2026.

Where this is plainer than the source: pages of a prompt are given back when its first decode is decided, not
when the copy to the host has been acknowledged; a decode is checked request by request, not as one sum over
the batch; a hot buffer that finds no page to grow retracts, where SGLang raises.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct

from hisparse_sim.memory.base import MISS, Hit
from hisparse_sim.memory.pool import NO_IDS, Pool

CLIP_NEW_TOKENS = 4096
"""More output than that is not reserved for (SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION)."""
INIT_RATIO, MIN_RATIO_FACTOR, RATIO_DECAY_STEPS = 0.7, 0.14, 600
"""new_token_ratio: where it starts, what part of that it falls to, and in how many decode steps (environ)."""
RETRACT_STEPS = 20
"""Decode steps that are provided for after a retraction (SGLANG_RETRACT_DECODE_STEPS)."""


class SGLangSizes(Struct, frozen=True):
    """Pools in pages (the padding page not counted); ``buffer_pages`` of a full hot buffer, newest row's too.

    ``imports``: prompts arrive in the host pool (disaggregation_mode decode).
    """

    page_size: int
    device_pages: int
    host_pages: int
    buffer_pages: int
    max_model_len: int
    conservativeness: float = 1.0
    imports: bool = False
    reserved_decode_tokens: int = 512


class HotState:
    """What a running request holds."""

    __slots__ = ("device", "end", "origin", "pages", "rows_on_host")

    def __init__(self, end: int) -> None:
        self.end = end
        """Tokens to prefill: it decodes once they are computed."""
        self.pages = 0
        """Logical: of the host and of the indexer."""
        self.device = 0
        """Of the device pool."""
        self.origin = -1
        """Tokens when it got its hot buffer; -1: it has none yet."""
        self.rows_on_host = False
        """Whether the hot buffer no longer holds the whole context."""

    @property
    def hot_blocks(self) -> int:
        """Pages of its hot buffer."""
        return self.device if self.origin >= 0 else 0

    @property
    def host_only(self) -> int:
        """Pages whose rows are looked up in the hot buffer: all, or none while it holds the whole context."""
        return self.pages if self.rows_on_host else 0

    @property
    def resident(self) -> int:
        """Pages of the context that lie on the GPU as a whole."""
        return 0 if self.rows_on_host else self.pages


class SGLangMemory:
    """The device pool and the host pool of one replica."""

    busy = counting = pressed = False
    fewer_blocks_refuse_too = True
    findable = 0
    """Nothing is ever found."""
    index_offload = None

    def __init__(self, sizes: SGLangSizes) -> None:
        self.sizes = sizes
        self.block_size = sizes.page_size
        self.gpu = Pool(sizes.device_pages)
        self.host_pool = Pool(sizes.host_pages)
        self.refusal = ""
        self.running: dict[Any, HotState] = {}
        self.init_ratio = min(INIT_RATIO * sizes.conservativeness, 1.0)
        self.ratio = self.init_ratio
        self._fresh_tokens = 0
        """Output of those admitted in this step, reserved in full."""
        self._decoded = False

    def expect(self, request: Any) -> None:
        """Nothing is remembered of a request that is over, so nothing is asked for."""

    def lookup(self, request: Any) -> Hit:
        """Nothing, or with prefill elsewhere all but the token that the first step decodes."""
        if self.sizes.imports:
            return Hit(request.num_tokens - 1, NO_IDS, imported=True)
        return MISS

    def pages_for(self, tokens: int) -> int:
        """Pages that hold ``tokens`` tokens."""
        return -(-min(tokens, self.sizes.max_model_len) // self.block_size)

    def device_pages_for(self, tokens: int) -> int:
        """Pages of the hot buffer of a request of ``tokens``."""
        full = self.sizes.buffer_pages
        pages = self.pages_for(tokens)
        return pages if pages < full - 1 else full

    @property
    def free_tokens(self) -> int:
        """What the allocator calls available: of the scarcer pool, whichever a step takes from."""
        return min(self.gpu.free, self.host_pool.free) * self.block_size

    def reserved_tokens(self) -> float:
        """What running requests are expected to produce yet, and those just admitted at most."""
        each = (min(r.limit_tokens - r.num_tokens, CLIP_NEW_TOKENS) for r in self.running)
        return float(sum(each) * self.ratio + self._fresh_tokens)

    def admit(self, request: Any, hit: Hit, tokens: int, *, others_running: bool) -> bool:
        """Start a request; False if it must wait. Alone it is taken if its prompt fits."""
        whole, first = self.pages_for(request.num_tokens), self.pages_for(hit.tokens + tokens)
        new = min(request.limit_tokens - request.num_tokens, CLIP_NEW_TOKENS)
        if not self.running:
            self.ratio = self.init_ratio
        if not self._admits(request, whole, new):
            return False
        request.memory = state = self.running[request] = HotState(request.num_tokens)
        if self.sizes.imports:
            self.host_pool.take(whole)
            state.pages = whole
            self._buffer(request, state, request.num_tokens)
        else:
            self._fresh_tokens += new
            self.host_pool.take(first)
            self.gpu.take(first)
            state.pages = state.device = first
        return True

    def _admits(self, request: Any, whole: int, new: int) -> bool:
        size, sizes = self.block_size, self.sizes
        if sizes.imports:
            wanted = whole * size + sizes.reserved_decode_tokens * (len(self.running) + 1)
            if whole > self.host_pool.free or (self.running and wanted > self.host_pool.free * size):
                self.refusal = "host blocks"
                return False
            self.refusal = "GPU blocks"
            return sizes.buffer_pages <= self.gpu.free
        self.refusal = "GPU blocks" if self.gpu.free <= self.host_pool.free else "host blocks"
        if not self.running:
            return whole * size <= self.free_tokens
        return bool(request.num_tokens + new + size < self.free_tokens - self.reserved_tokens())

    def shortage(self, request: Any) -> str:
        """What a waiting request would lack; empty: nothing."""
        new = min(request.limit_tokens - request.num_tokens, CLIP_NEW_TOKENS)
        return "" if self._admits(request, self.pages_for(request.num_tokens), new) else self.refusal

    def extend(self, request: Any, tokens: int) -> bool:
        """Room for ``tokens`` more; False, and nothing changed, if there is none."""
        state: HotState = request.memory
        after = request.computed + tokens
        new = max(self.pages_for(after) - state.pages, 0)
        if request.computed < state.end and state.origin < 0 and after <= state.end:
            if new > min(self.gpu.free, self.host_pool.free):
                return self._short()
            self.gpu.take(new)
            state.device += new
        else:
            grown = max(self.device_pages_for(after) - state.device, 0)
            # check_decode_mem asks both pools for what only the logical one gives.
            if new > min(self.gpu.free, self.host_pool.free) or grown > self.gpu.free:
                return self._short()
            self._decoded = True
            self._buffer(request, state, after)
        self.host_pool.take(new)
        state.pages += new
        return True

    def _short(self) -> bool:
        self.refusal = "GPU blocks" if self.gpu.free <= self.host_pool.free else "host blocks"
        return False

    def _buffer(self, request: Any, state: HotState, tokens: int) -> None:
        """Make what it holds of the device pool the hot buffer of a request of ``tokens``."""
        if state.origin < 0:
            state.origin = max(request.computed, state.end - 1)
        pages = self.device_pages_for(tokens)
        if pages > state.device:
            self.gpu.take(pages - state.device)
        else:
            self.gpu.push_front(state.device - pages)
        state.device = pages
        state.rows_on_host = tokens > (self.sizes.buffer_pages - 1) * self.block_size

    def release(self, request: Any, *, finished: bool) -> None:
        """A request ends or is retracted; after that more output of the others is provided for."""
        state: HotState = request.memory
        request.memory = None
        del self.running[request]
        self.host_pool.push_front(state.pages)
        self.gpu.push_front(state.device)
        if not finished:
            decoded = sum(r.num_tokens - r.prompt_tokens + RETRACT_STEPS for r in self.running)
            most = sum(r.limit_tokens - r.prompt_tokens for r in self.running)
            self.ratio = min(1.0, decoded / (most + 1))

    def settle(self, scheduled: Mapping[Any, int], step: int) -> None:
        """The step is decided: a decode lets the expected output sink."""
        self._fresh_tokens = 0
        if self._decoded:
            least = self.init_ratio * MIN_RATIO_FACTOR
            self.ratio = max(self.ratio - (self.init_ratio - least) / RATIO_DECAY_STEPS, least)
        self._decoded = False

    def returned(self, request: Any, known_tokens: int) -> None:
        """Nothing becomes findable."""

    def complete(self, step: int) -> int:
        """Backups run on a stream of their own and are waited for by the next one only."""
        return 0

    def may_preempt(self, victim: Any) -> bool:
        """Any time."""
        return True

    def reclaim_pending(self) -> bool:
        """No blocks come back by themselves."""
        return False

    # -- nobody rides in the cohort: a step with prefill leaves decodes out --------------------------

    def ride(self, request: Any) -> bool:
        """Never."""
        return False

    def alight(self, request: Any) -> None:
        """Nobody rides."""

    def covers(self, wants: Collection[tuple[Any, int]]) -> bool:
        """Nobody rides."""
        return True

    def grow(self, steps: int) -> None:
        """Nobody rides."""

    def free_after(self, steps: int) -> list[int]:
        """Device pages free, were nothing to change."""
        return [self.gpu.free] * steps
