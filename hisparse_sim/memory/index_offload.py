"""The indexer's cache on the host: OffloadingConnector beside HiSparse (MultiConnector).

HiSparse keeps KV rows on the host but the indexer's keys only on the GPU. A prefix whose indexer
blocks were reused is a miss unless they can be copied back. Source: vLLM's blog on hybrid sparse
offloading (2026-09-08) and docs/design/hisparse.md; the order of eviction is that of the native
offloading connector.

Simplified: a copy counts as complete with the step that makes it, and a restored block is usable in
the step that admits its request; the seconds of both are charged to the link.
"""

from __future__ import annotations

from hisparse_sim.memory.base import Sequence
from hisparse_sim.memory.chunks import Access, ChunkStore
from hisparse_sim.memory.pool import Ids


class IndexOffload:
    """``chunks`` indexer blocks on the host; only whole blocks of prompts are stored."""

    def __init__(self, chunks: int, block_size: int) -> None:
        self.store = ChunkStore(chunks)
        self.block_size = block_size
        self.stored_blocks = 0
        self.restored_blocks = 0
        self._access: dict[Sequence, Access] = {}

    def run(self, content: Ids) -> int:
        """Length of the leading run of ``content`` that can be restored."""
        return self.store.run(content)[0]

    def begin(self, request: Sequence) -> None:
        """The request is admitted, perhaps again: all its blocks are offered anew."""
        access = self._access.get(request)
        if access is not None:
            access.next_stored = 0

    def offer(self, request: Sequence, tokens: int) -> bool:
        """Store the prompt blocks of a request that are complete after this step.

        Returns whether all prompt blocks are stored.
        """
        access = self._access.get(request)
        if access is None:
            access = self._access[request] = Access(len(request.content))
        first = access.next_stored
        whole = request.prompt_tokens // self.block_size
        end = min(tokens // self.block_size, whole)
        if end > first:
            new = self.store.store(access, request.content[first:end], first, self.block_size)
            if new is not None:
                self.store.ready(new)
                self.stored_blocks += len(new)
                access.next_stored = first = end
        return first >= whole

    def finish(self, request: Sequence) -> None:
        """The request is over: what it used becomes the most recent."""
        access = self._access.pop(request, None)
        if access is not None:
            self.store.finish(access, request.content)
