"""What a workload hands to the simulation: sessions of requests, and what their tokens are.

Token identity decides prefix-cache hits and nothing else does: two requests share a block when
they agree on all content up to its end.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct


class Segment(NamedTuple):
    """``length`` tokens of the stream ``stream`` from its token ``start`` on."""

    stream: Hashable
    start: int
    length: int


class BlockHashes(NamedTuple):
    """Content given as one id per ``block_tokens`` tokens; an id stands for its whole prefix.

    ``scope`` keeps ids of different files apart. Tokens past the last whole id are unique to the
    request.
    """

    scope: Hashable
    ids: npt.NDArray[np.int64]
    block_tokens: int


Content = tuple[Segment, ...] | BlockHashes


class RequestSpec(Struct, frozen=True):
    """One request of a session.

    ``content`` covers the prompt and, as far as it is known, the output (a later turn of a
    conversation repeats it); what it does not cover is unique to the request. A request starts
    ``delay_s`` after all requests in ``after`` (ids of the same session) have finished, or, with
    none, ``delay_s`` after the session starts.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    content: Content = ()
    after: tuple[str, ...] = ()
    delay_s: float = 0.0
    priority: int = 0


class Session(Struct, frozen=True):
    """Requests that belong together.

    ``start_s``: not before that time, and under a cap on live sessions not before a client is free;
    none: as soon as one is.
    """

    id: str
    requests: Sequence[RequestSpec]
    start_s: float | None = None
    tags: dict[str, str] = {}
    """``tenant``: who asks; ``session``: what it was called where it was recorded, if that is not ``id``."""


class Workload(Protocol):
    """A reproducible stream of sessions, in order of their start."""

    concurrency: int | None
    """Sessions alive at a time; none: no cap."""
    limit: int | None
    """Only the first so many requests are sent, in order of arrival; none: all. Which those are is known when
    they are played."""
    notes: list[str]
    """What a person should know of it: lines of a trace that were left out."""

    def sessions(self) -> Iterator[Session]:
        """The stream from its beginning; the same on each call."""
        ...

    def expected_requests(self, sessions: int, requests: int) -> int | None:
        """How many requests the stream has; estimated, if need be, from the first ``sessions``.

        ``requests``: what those have together. None if nobody knows.
        """
        ...
