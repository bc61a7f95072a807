"""What generated requests say: tokens that all share first, then a stream of their own."""

from __future__ import annotations

from hisparse_sim.errors import InputError
from hisparse_sim.workload.request import Segment

SHARED_STREAM = "shared-prefix"


def said(stream: str, tokens: int, shared_tokens: int) -> tuple[Segment, ...]:
    """The first ``tokens`` tokens of ``stream``, of which the first ``shared_tokens`` are everybody's."""
    shared_tokens = min(shared_tokens, tokens)
    segments = (
        Segment(SHARED_STREAM, 0, shared_tokens),
        Segment(stream, shared_tokens, tokens - shared_tokens),
    )
    return tuple(segment for segment in segments if segment.length)


def check_shared_prefix(shared_tokens: int, prompt_tokens: int) -> None:
    """Refuse a shared prefix longer than the (mean or first) prompt. Raises InputError."""
    if shared_tokens > prompt_tokens:
        raise InputError(
            f"{shared_tokens} shared tokens in a prompt of {prompt_tokens}; give at most {prompt_tokens}",
            where="workload.shared_prefix_tokens",
        )
