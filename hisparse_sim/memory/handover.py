"""Prefill and decode apart: KV that one engine computes and another one takes over.

vLLM's order (NixlConnector): the prefilling engine keeps a finished request's blocks; the decoding one
admits the request, reserves blocks for the whole prompt and reads them; only then the first engine lets
go. The last token of the prompt is computed again. A request that is preempted later starts from nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from hisparse_sim.memory.base import Hit, Sequence
from hisparse_sim.memory.copies import PagedState
from hisparse_sim.memory.index_offload import IndexOffload
from hisparse_sim.memory.residency import HiSparseMemory, HiSparseSizes
from hisparse_sim.memory.resident import BlockState, ResidentMemory, ResidentSizes


class HoldingMemory(ResidentMemory):
    """Of an engine that prefills: finished requests keep their blocks until somebody has read them."""

    def __init__(self, sizes: ResidentSizes) -> None:
        super().__init__(sizes)
        self._held: dict[Sequence, BlockState] = {}

    def release(self, request: Sequence, *, finished: bool) -> None:
        """A request is preempted, or ends and is kept."""
        if finished:
            self._held[request], request.memory = request.memory, None
        else:
            super().release(request, finished=False)

    def let_go(self, request: Sequence) -> None:
        """A finished request has been read."""
        request.memory = self._held.pop(request)
        super().release(request, finished=True)


class Import(NamedTuple):
    """A read that begins: ``tokens`` of a request's prompt."""

    request: Sequence
    tokens: int
    to_host: bool


class Arrivals:
    """Requests whose KV comes from elsewhere."""

    def __init__(self) -> None:
        self.expected: set[Sequence] = set()
        self.under_way: set[Sequence] = set()
        self.started: list[Import] = []
        """Reads that have begun and are not on the network yet."""

    def add_to(self, request: Sequence, hit: Hit | None) -> Hit | None:
        """What is cached here, and the rest of the prompt if that is still to be had elsewhere."""
        if hit is None or request not in self.expected:
            return hit
        return hit._replace(load_tokens=request.prompt_tokens - hit.tokens)

    def begin(self, request: Sequence, hit: Hit, *, to_host: bool = False) -> None:
        """Blocks for it are reserved."""
        self.expected.discard(request)
        self.under_way.add(request)
        self.started.append(Import(request, hit.load_tokens, to_host))


class ResidentImports(ResidentMemory):
    """``ResidentMemory`` of an engine that decodes what others have prefilled."""

    def __init__(self, sizes: ResidentSizes) -> None:
        super().__init__(sizes)
        self.arrivals = Arrivals()

    def lookup(self, request: Sequence) -> Hit | None:
        """What is cached here, and the rest of the prompt."""
        return self.arrivals.add_to(request, super().lookup(request))

    def load(self, request: Sequence, hit: Hit, prefilling: list[Sequence], *, others_running: bool) -> bool:
        """Reserve blocks for the prompt and begin to read it."""
        if not self.fits(hit, request.num_tokens, others_running=others_running):
            return False
        state = self.start(request, hit)
        self.allocate(request, state, self.pages_for(request.prompt_tokens))
        request.memory = state
        self.arrivals.begin(request, hit)
        return True

    def loaded(self, request: Sequence) -> bool:
        """Whether the prompt has arrived; its blocks are findable from then on."""
        if request in self.arrivals.under_way:
            return False
        self.publish(request, request.memory, request.prompt_tokens)
        return True

    def readmit(self, request: Sequence, tokens: int, *, others_running: bool) -> bool:
        """Run a request whose prompt has arrived."""
        return self.extend(request, tokens)


class HiSparseImports(HiSparseMemory):
    """``HiSparseMemory`` of an engine that decodes what others have prefilled.

    To the host: whole blocks of the prompt come into the host pool, like a prefix hit, and the request
    reads them through a hot buffer; else they come into GPU pages, which are mirrored like computed ones.
    Its indexer blocks come to the GPU, and so does the last block, which decoding goes on to fill.
    ``lands``: which; ``auto``: the GPU if all of the prompt fits there when its turn comes, decided once
    for each request (vLLM, docs/design/hisparse.md; that free blocks decide, not all, is our reading).
    """

    def __init__(
        self,
        sizes: HiSparseSizes,
        index_offload: IndexOffload | None = None,
        *,
        lands: str,
    ) -> None:
        super().__init__(sizes, index_offload)
        self.arrivals = Arrivals()
        self._lands = lands
        self._to_host: set[Sequence] = set()
        """Those for which this was decided, and which have no room there yet."""

    def lookup(self, request: Sequence) -> Hit | None:
        """What is cached here, and the rest of the prompt."""
        return self.arrivals.add_to(request, super().lookup(request))

    def load(self, request: Sequence, hit: Hit, prefilling: list[Sequence], *, others_running: bool) -> bool:
        """Reserve pages for the prompt and begin to read it."""
        sizes = self.sizes
        watermark = sizes.admission_watermark_blocks if others_running else 0
        pages, hits = self._pages_for(request.prompt_tokens), len(hit.host)
        # The last block stays on the GPU: its last token is computed again, and others follow.
        on_host = hits
        to_host = self._lands == "host" or request in self._to_host
        if not to_host and not self._admits(hit, pages, pages, watermark):
            if self._lands == "gpu" or self.refusal != "GPU blocks":
                return False
            to_host = True
            self._to_host.add(request)
        if to_host:
            on_host = (request.prompt_tokens - 1) // self.block_size
            hot = self.hot_blocks if on_host and not hits else 0
            if not self._admits(hit, pages, hits + pages - on_host, watermark + hot):
                return False
            self._to_host.discard(request)
        request.memory = state = self._enter(request, hit)
        if on_host > hits:
            self._take_in(state, hits, on_host)
        self._allocate(state, pages)
        self.arrivals.begin(request, hit, to_host=to_host)
        return True

    def _take_in(self, state: PagedState, first: int, end: int) -> None:
        """Pages ``[first, end)`` that only the host will have."""
        new = end - first
        self.host_pool.take(new)
        self.gpu.take(new)
        state.reach(end)
        state.host[first:end] = self.host.new(new)
        state.index[first:end] = self.index.new(new)
        state.copy[first:end] = -1
        state.pages = state.hits = state.ready = state.planned = end
        state.host_only += new
        state.hot_required = True
        self.pages += new
        self.copies.host_only += new

    def loaded(self, request: Sequence) -> bool:
        """Whether the prompt has arrived; its blocks are findable from then on."""
        if request in self.arrivals.under_way:
            return False
        self._publish(request.memory, request.prompt_tokens - 1)
        return True

    def readmit(self, request: Sequence, tokens: int, *, others_running: bool) -> bool:
        """Run a request whose prompt has arrived."""
        return self.extend(request, tokens)
