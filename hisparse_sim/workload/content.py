"""What generated requests say: tokens that many share first, then a stream of their own."""

from __future__ import annotations

from typing import NamedTuple

from hisparse_sim.errors import InputError
from hisparse_sim.workload.request import Segment

SHARED_STREAM = "shared-prefix"


class Prefix(NamedTuple):
    """What prompts begin with: the first ``tokens`` of ``stream``."""

    tokens: int = 0
    stream: str = SHARED_STREAM


def said(stream: str, tokens: int, prefix: Prefix) -> tuple[Segment, ...]:
    """The first ``tokens`` tokens of ``stream``, the prefix in place of as many of them."""
    shared_tokens = min(prefix.tokens, tokens)
    segments = (
        Segment(prefix.stream, 0, shared_tokens),
        Segment(stream, shared_tokens, tokens - shared_tokens),
    )
    return tuple(segment for segment in segments if segment.length)


def cut(content: tuple[Segment, ...], tokens: int) -> tuple[Segment, ...]:
    """The first ``tokens`` tokens of ``content``."""
    kept: list[Segment] = []
    for segment in content:
        if tokens <= 0:
            break
        kept.append(segment._replace(length=min(segment.length, tokens)))
        tokens -= segment.length
    return tuple(kept)


def check_shared_prefix(shared_tokens: int, prompt_tokens: object, where: str) -> None:
    """Refuse a shared prefix longer than a prompt of fixed length. Raises InputError."""
    if isinstance(prompt_tokens, int) and shared_tokens > prompt_tokens:
        raise InputError(
            f"{shared_tokens} shared tokens in a prompt of {prompt_tokens}; give at most {prompt_tokens}",
            where=where,
        )
