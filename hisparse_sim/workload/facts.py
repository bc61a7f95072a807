"""What a stream of requests amounts to, before anything is simulated."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from hisparse_sim.workload.request import BlockHashes, RequestSpec, Segment, Workload

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


def describe(workload: Workload) -> dict[str, Any]:
    """Counts, token quantiles and the prefix-hit bound of a whole stream.

    ``prefix_hit_bound`` is the share of all prompt tokens that a cache of unlimited size would have
    (null without requests). A request of n tokens hits at most n - 1: its last token is computed.
    """
    cache = _UnlimitedCache()
    sessions, hit_tokens = 0, 0
    prompts: list[int] = []
    outputs: list[int] = []
    for session in workload.sessions():
        sessions += 1
        for request in session.requests:
            prompts.append(request.prompt_tokens)
            outputs.append(request.output_tokens)
            hit_tokens += cache.hit_tokens(request)
    return {
        "sessions": sessions,
        "requests": len(prompts),
        "prompt_tokens": _quantiles(prompts),
        "output_tokens": _quantiles(outputs),
        "prefix_hit_bound": hit_tokens / sum(prompts) if prompts else None,
    }


class _UnlimitedCache:
    """Everything said so far."""

    def __init__(self) -> None:
        self._ids: dict[Hashable, set[int]] = {}
        self._lengths: dict[tuple[Any, ...], int] = {}

    def hit_tokens(self, request: RequestSpec) -> int:
        """Prompt tokens that were said before; remembers the request."""
        content = request.content
        if isinstance(content, BlockHashes):
            hit = self._hit_blocks(content) * content.block_tokens
        else:
            hit = self._hit_segments(content)
        return min(hit, request.prompt_tokens - 1)

    def _hit_blocks(self, content: BlockHashes) -> int:
        known = self._ids.setdefault(content.scope, set())
        ids = content.ids.tolist()
        # An id stands for its prefix, so those known come first: bisect for their end.
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if ids[middle] in known else (low, middle)
        known.update(ids[low:])
        return low

    def _hit_segments(self, content: tuple[Segment, ...]) -> int:
        path: tuple[Any, ...] = ()
        hit, matching = 0, True
        for segment in content:
            key = (*path, segment.stream, segment.start)
            known = self._lengths.get(key, 0)
            if matching:
                hit += min(known, segment.length)
                matching = known >= segment.length
            self._lengths[key] = max(known, segment.length)
            path = (*path, segment)
        return hit


def _quantiles(values: list[int]) -> dict[str, float]:
    """Mean, extremes and quantiles; empty without values."""
    if not values:
        return {}
    points = {"mean": float(np.mean(values)), "min": float(min(values))}
    points |= {f"p{round(q * 100)}": float(np.quantile(values, q)) for q in QUANTILES}
    return points | {"max": float(max(values))}
