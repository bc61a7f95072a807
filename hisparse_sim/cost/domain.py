"""Where prices were measured and where they are extrapolated, and how far."""

from __future__ import annotations

from math import inf
from typing import NamedTuple


class Limit(NamedTuple):
    """A variable of a step beside the largest value that was measured."""

    variable: str
    value: float
    most: float

    @property
    def beyond(self) -> float:
        """How many times what was measured."""
        return self.value / self.most

    def words(self) -> str:
        """``1,000,000 tokens in context of a request, measured to 131,072 (7.63 x)``."""
        return f"{self.value:,.0f} {self.variable}, measured to {self.most:,.0f} ({self.beyond:.3g} x)"


VARIABLES = (
    "requests that decode",
    "tokens in context of a request",
    "tokens in context of all requests",
    "tokens of a step",
    "past tokens of a prefill chunk",
    "tokens of a step of all DP replicas",
)
"""What the fields of ``Domain`` bound, in their order."""


class Domain(NamedTuple):
    """The largest value of each variable that was measured; infinite where nothing was fitted.

    Decode is bounded in the context of one request (the mean of a step) and, apart from that, in that
    of all requests. New tokens of a prefill have no bound of their own: a chunk above the table's is
    priced as consecutive ones.
    """

    batch: float = inf
    context: float = inf
    pairs: float = inf
    tokens: float = inf
    past: float = inf
    group: float = inf

    def beyond(
        self, batch: int, context_tokens: int, tokens: int, past: int, group_tokens: int
    ) -> tuple[Limit, ...]:
        """The variables of a step that lie outside. ``past``: the longest of its prefill chunks."""
        mean = context_tokens / batch if batch else 0.0
        values = (batch, mean, context_tokens, tokens, past, group_tokens)
        found = zip(VARIABLES, values, self, strict=True)
        return tuple(Limit(name, value, most) for name, value, most in found if value > most)

    def within(self, other: Domain) -> Domain:
        """What both cover."""
        return Domain(*map(min, self, other))


class Outside:
    """Counts steps priced outside ``domain``, and keeps the furthest of each variable.

    ``count``: steps with a variable beyond its limit, or for which something else stands in.
    """

    __slots__ = ("_batch", "_context", "_group", "_pairs", "_past", "_tokens", "count", "domain")

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.count = 0
        self._batch = self._context = self._pairs = self._tokens = self._past = self._group = 0.0

    def note(
        self, batch: int, context_tokens: int, tokens: int, past: int, group_tokens: int, steps: int = 1
    ) -> None:
        """A step outside, or the furthest of several: called so often that it keeps maxima alone."""
        self.count += steps
        if batch:
            if context_tokens > self._context * batch:
                self._context = context_tokens / batch
            if batch > self._batch:
                self._batch = batch
            if context_tokens > self._pairs:
                self._pairs = context_tokens
        if tokens > self._tokens:
            self._tokens = tokens
        if past > self._past:
            self._past = past
        if group_tokens > self._group:
            self._group = group_tokens

    @property
    def furthest(self) -> tuple[Limit, ...]:
        """The largest value of each variable that was outside, the furthest first."""
        values = (self._batch, self._context, self._pairs, self._tokens, self._past, self._group)
        found = [
            Limit(name, value, most)
            for name, value, most in zip(VARIABLES, values, self.domain, strict=True)
            if value > most
        ]
        return tuple(sorted(found, key=lambda limit: -limit.beyond))

    def words(self, steps: int) -> str:
        """One sentence for a person about a run of ``steps``; empty if all were inside."""
        if not self.count:
            return ""
        text = f"{self.count:,} of {steps:,} steps are priced outside what was measured"
        return f"{text}; furthest: {self.furthest[0].words()}" if self.furthest else text
