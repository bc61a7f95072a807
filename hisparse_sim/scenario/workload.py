"""What is asked of the engine: the description of a stream of requests.

The streams themselves are made in the ``workload`` room.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from hisparse_sim.scenario.base import Record


class _Limited(Record):
    limit: PositiveInt | None = None
    """Send only the first so many requests, in order of arrival."""


class ConversationsSpec(_Limited):
    """Closed loop: ``concurrency`` clients, each plays conversations turn after turn.

    Turn 1 has ``first_prompt_tokens``; each later turn's prompt is all that was said before plus
    ``new_tokens_per_turn``. ``shared_prefix_tokens`` of the first prompt are common to all.
    """

    kind: Literal["conversations"] = "conversations"
    concurrency: PositiveInt = 32
    conversations: PositiveInt | None = None
    """None: max(4, 2 x concurrency)."""
    turns: PositiveInt = 13
    first_prompt_tokens: PositiveInt
    new_tokens_per_turn: PositiveInt
    output_tokens: PositiveInt
    shared_prefix_tokens: NonNegativeInt = 0
    think_time_s: NonNegativeFloat = 0.0
    """Between the end of a turn and the arrival of the next."""


class PoissonSpec(_Limited):
    """Open loop: single requests at exponential intervals."""

    kind: Literal["poisson"] = "poisson"
    rate_per_s: PositiveFloat
    requests: PositiveInt
    prompt_tokens: PositiveInt
    output_tokens: PositiveInt
    length_jitter: float = Field(default=0.0, ge=0, lt=1)
    """Lengths are uniform within +-jitter of their mean."""
    shared_prefix_tokens: NonNegativeInt = 0


class StreamSpec(_Limited):
    """Closed loop of independent long prompts: the next starts when a client is free."""

    kind: Literal["stream"] = "stream"
    concurrency: PositiveInt = 32
    requests: PositiveInt
    prompt_tokens: PositiveInt
    output_tokens: PositiveInt
    length_jitter: float = Field(default=0.0, ge=0, lt=1)
    shared_prefix_tokens: NonNegativeInt = 0


class TraceSpec(Record):
    """Recorded requests: a kv-cache-tester session file or a folder of them."""

    kind: Literal["trace"] = "trace"
    path: Path
    limit: PositiveInt | None = None
    """The first so many requests in arrival order, sub-agent ones counted."""
    concurrency: PositiveInt | None = None
    """Live sessions at a time; none: all."""


WorkloadSpec = Annotated[
    ConversationsSpec | PoissonSpec | StreamSpec | TraceSpec, Field(discriminator="kind")
]
