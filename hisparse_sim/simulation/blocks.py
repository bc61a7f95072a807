"""The blocks of a request's tokens, from what its workload says of them."""

from __future__ import annotations

from hisparse_sim.memory.content import ContentIndex
from hisparse_sim.memory.pool import Ids
from hisparse_sim.workload.request import BlockHashes, Content


def described_tokens(content: Content) -> int:
    """How many tokens, from the first on, somebody else may have, too."""
    if isinstance(content, BlockHashes):
        return len(content.ids) * content.block_tokens
    return sum(length for _, _, length in content)


def blocks_of(index: ContentIndex, content: Content, tokens: int) -> Ids:
    """Ids of the whole blocks of the first ``tokens`` tokens."""
    if isinstance(content, BlockHashes):
        return index.of_hashes(content.scope, content.ids, content.block_tokens, tokens)
    return index.of_segments(content, tokens)
