"""What a block holds, as one integer: equal integers mean equal tokens from the start on."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

import numpy as np

from hisparse_sim.errors import InputError
from hisparse_sim.memory.pool import GrowingArray, Ids

Piece = tuple[Hashable, int, int]
"""A stream, its first token that is meant, and how many."""


def _joined(segments: Iterable[Piece]) -> Iterator[Piece]:
    """The same tokens in as few segments as possible: how they were cut must not matter."""
    last: Piece | None = None
    for stream, start, length in segments:
        if last is not None and last[0] == stream and last[1] + last[2] == start:
            last = stream, last[1], last[2] + length
        elif length:
            if last is not None:
                yield last
            last = stream, start, length
    if last is not None:
        yield last


class ContentIndex:
    """Gives each distinct prefix block an id.

    A request's content comes as segments ``(stream, start, length)`` in token order or as ids of
    blocks that each stand for their whole prefix. Whole blocks that agree with another request's
    on everything up to their end get the same id; blocks that hold tokens nobody described are
    unique to the request.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._next = 0
        self._chains: dict[Hashable, Ids] = {}
        self._mixed: dict[Hashable, int] = {}
        self._scopes: dict[Hashable, GrowingArray] = {}

    def fresh(self, n: int) -> Ids:
        """Ids of ``n`` blocks that nobody else will ever have."""
        self._next += n
        return np.arange(self._next - n, self._next, dtype=np.int64)

    def of_segments(self, segments: tuple[Piece, ...], tokens: int) -> Ids:
        """Ids of the ``tokens // block_size`` whole blocks of a request."""
        size = self.block_size
        want = tokens // size
        parts: list[Ids] = []
        have = 0
        parent = -1
        open_parts: list[Piece] = []
        open_tokens = 0
        for stream, start, length in _joined(segments):
            if have >= want:
                break
            if open_parts:
                used = min(size - open_tokens, length)
                open_parts.append((stream, start, used))
                open_tokens += used
                start, length = start + used, length - used
                if open_tokens < size:
                    continue
                parent = self._mixed_block(parent, tuple(open_parts))
                parts.append(np.array([parent], dtype=np.int64))
                have += 1
                open_parts, open_tokens = [], 0
            whole = min(length // size, want - have)
            if whole > 0:
                run = self._chain((parent, stream, start), whole)
                parts.append(run)
                parent = int(run[-1])
                have += whole
            rest = length - whole * size
            if rest > 0 and have < want:
                open_parts, open_tokens = [(stream, start + whole * size, rest)], rest
        if have < want:
            parts.append(self.fresh(want - have))
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def of_hashes(self, scope: Hashable, ids: Ids, block_tokens: int, tokens: int) -> Ids:
        """The same for content given as one id per ``block_tokens`` tokens.

        Raises ``InputError`` unless ``block_tokens`` and the block size divide one another.
        """
        size = self.block_size
        want = tokens // size
        if max(size, block_tokens) % min(size, block_tokens):
            raise InputError(
                f"hashes of {block_tokens} tokens do not fit blocks of {size}; one must divide the other",
                where="engine.block_size",
            )
        if block_tokens < size:  # a block's id is that of the last piece in it
            step = size // block_tokens
            ids, per = ids[step - 1 :: step], 1
        else:
            per = block_tokens // size
        table = self._scopes.setdefault(scope, GrowingArray(-1))
        ids = ids[: -(-want // per)]
        if len(ids):
            table.reach(int(ids.max()) + 1)
            unknown = np.unique(ids[table.a[ids] < 0])
            if len(unknown):
                table.a[unknown] = self._next + per * np.arange(len(unknown))
                self._next += per * len(unknown)
            known = table.a[ids]
            if per > 1:
                known = (known[:, None] + np.arange(per)).reshape(-1)
            known = known[:want]
        else:
            known = np.empty(0, dtype=np.int64)
        if len(known) < want:
            known = np.concatenate([known, self.fresh(want - len(known))])
        return known

    def _chain(self, key: Hashable, n: int) -> Ids:
        have = self._chains.get(key)
        known = 0 if have is None else len(have)
        if known < n:
            more = self.fresh(n - known)
            have = more if have is None else np.concatenate([have, more])
            self._chains[key] = have
        assert have is not None
        return have[:n]

    def _mixed_block(self, parent: int, parts: tuple[Piece, ...]) -> int:
        key = (parent, parts)
        known = self._mixed.get(key)
        if known is None:
            known = self._mixed[key] = self._next
            self._next += 1
        return known
