"""What is asked of the engine: the description of a stream of requests.

The streams themselves are made in the ``workload`` room. Lengths, turns and times may be plain numbers or
distributions; see ``distributions.py`` and ``arrivals.py`` for the two families.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeInt, model_validator

from hisparse_sim.scenario import arrivals as arrivals_
from hisparse_sim.scenario import distributions
from hisparse_sim.scenario.arrivals import endless
from hisparse_sim.scenario.base import Record
from hisparse_sim.scenario.distributions import LognormalSpec, UniformSpec

MAX_S = 1e9
"""The longest time of a workload, 32 years: floats then still tell microseconds apart."""
MAX_COUNT = 10**12
"""The most tokens, requests or sessions: what sums of them need fits 64 bits."""
MAX_FACTOR = 1e6
"""The most that a trace is stretched, or a weight outweighs 1."""
MIN_RATE_PER_S, MAX_RATE_PER_S = 1 / MAX_S, 1e9


def _numbers(value: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """All numbers of a field, however deep, with their places in it."""
    if isinstance(value, Record):
        value = {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, (dict, tuple)):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for name, part in pairs:
            yield from _numbers(part, f"{place}.{name}" if place else str(name))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield place, value


def _at_most(most: float) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        for place, number in _numbers(value):
            if number > most:
                raise ValueError(f"{place + ': ' if place else ''}{number:g} is more than {most:g}")
        return value

    return check


def _usual_rates(value: Any) -> Any:
    for place, number in _numbers(value):
        most = MAX_RATE_PER_S if place.endswith("rate_per_s") else MAX_S
        if number > most:
            raise ValueError(f"{place}: {number:g} is more than {most:g}")
        if place.endswith("rate_per_s") and 0 < number < MIN_RATE_PER_S:
            raise ValueError(f"{place}: {number:g} is less than {MIN_RATE_PER_S:g}")
    return value


Count = Annotated[distributions.Count, AfterValidator(_at_most(MAX_COUNT))]
Seconds = Annotated[distributions.Seconds, AfterValidator(_at_most(MAX_S))]
ArrivalsSpec = Annotated[arrivals_.ArrivalsSpec, AfterValidator(_usual_rates)]
Time = Annotated[float, Field(ge=0, le=MAX_S)]
Whole = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Positive = Annotated[int, Field(gt=0, le=MAX_COUNT)]


class TenantSpec(Record):
    """A group of users: its share of the sessions, its priority and what its prompts begin with.

    ``priority``: a lower number goes first, under ``engine.policy: priority``. ``shared_prefix_tokens``:
    a prefix of the tenant's own; none: the workload's, which all tenants without their own share.
    """

    name: str = Field(min_length=1)
    share: float = Field(default=1.0, gt=0, le=MAX_FACTOR)
    priority: int = 0
    shared_prefix_tokens: Whole | None = None


class _Limited(Record):
    limit: Positive | None = None
    """Send only the first so many requests, in order of arrival."""


class _Generated(_Limited):
    shared_prefix_tokens: Whole = 0
    """Tokens that all first prompts begin with: a system prompt, tool definitions."""
    tenants: tuple[TenantSpec, ...] = ()

    @model_validator(mode="after")
    def _tenants_differ(self) -> Self:
        names = [tenant.name for tenant in self.tenants]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two tenants have the name {twice!r}")
        return self


class _Sessions(_Generated):
    """Sessions in a closed loop of ``concurrency`` clients, or in an open one at ``arrivals``.

    With ``arrivals``, ``concurrency`` is a cap on live sessions and may be left out.
    """

    concurrency: Positive | None = 32
    ramp_up_s: Time = 0.0
    """Closed loop: the clients begin one after the other, evenly over so long."""
    arrivals: ArrivalsSpec | None = None

    @model_validator(mode="before")
    @classmethod
    def _open_loop_needs_no_clients(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("arrivals") is not None and "concurrency" not in data:
            return {**data, "concurrency": None}
        return data

    @model_validator(mode="after")
    def _open_or_closed(self) -> Self:
        if self.arrivals is None and self.concurrency is None:
            raise ValueError("concurrency: missing; a closed loop needs clients, an open one arrivals")
        if self.arrivals is not None and self.ramp_up_s:
            raise ValueError("ramp_up_s: is for a closed loop; with arrivals, use arrivals of kind piecewise")
        return self

    def _sessions_known(self, count: int | None, field: str) -> None:
        if self.arrivals is not None and count is None and endless(self.arrivals):
            raise ValueError(f"{field}: missing; these arrivals never end by themselves")


class ToolsSpec(Record):
    """Turns that a tool answers instead of a person: a ``share`` of all but the first.

    The next prompt then grows by ``result_tokens`` after ``time_s``.
    """

    share: float = Field(ge=0, le=1)
    result_tokens: Count
    time_s: Seconds = 1.0


class SubagentsSpec(Record):
    """Sub-agents: after a ``share`` of the turns but the last, ``agents`` of them run beside each other.

    Each plays a conversation of its own, and their parent's next turn waits for all. ``time_s`` is
    between an agent's turns. ``shared_prefix_tokens`` are common to all sub-agents.
    """

    share: float = Field(ge=0, le=1)
    agents: Count = 1
    turns: Count = 5
    first_prompt_tokens: Count
    new_tokens_per_turn: Count
    output_tokens: Count
    shared_prefix_tokens: Whole = 0
    time_s: Seconds = 1.0


class ConversationsSpec(_Sessions):
    """Clients play conversations turn after turn, one after the other.

    Turn 1 has ``first_prompt_tokens``; each later turn's prompt is all that was said before plus
    ``new_tokens_per_turn``. ``shared_prefix_tokens`` of the first prompt are common to all.
    """

    kind: Literal["conversations"] = "conversations"
    conversations: Positive | None = None
    """None: max(4, 2 x concurrency)."""
    turns: Count = 13
    first_prompt_tokens: Count
    new_tokens_per_turn: Count
    output_tokens: Count
    think_time_s: Seconds = 0.0
    """Between the end of a turn and the arrival of the next."""
    tools: ToolsSpec | None = None
    subagents: SubagentsSpec | None = None

    @model_validator(mode="after")
    def _ends(self) -> Self:
        self._sessions_known(self.conversations, "conversations")
        return self


class AgenticCodingSpec(_Sessions):
    """Coding agents at work, after 710 recorded sessions of kv-cache-tester (github.com/callanjfox).

    Lengths, new tokens a turn, outputs, turns and think times have the quantiles of the recording; see
    ``workload/agentic.py`` for how sessions grow, are compacted and lose their cache.
    """

    kind: Literal["agentic-coding"] = "agentic-coding"
    sessions: Positive | None = None
    """None: max(4, 2 x concurrency)."""
    shared_prefix_tokens: Whole = 13_000
    """System prompt and tools of the 48 published sessions at hand have 12,700 to 16,700 tokens."""
    max_context_tokens: Positive | None = None
    """Prompt and output of a request stay within so many tokens; none: as recorded, up to 894,371."""
    think_time_s: Seconds | None = None
    """None: as recorded, which has a p99 of 40 minutes."""
    subagents: SubagentsSpec | None = None

    @model_validator(mode="after")
    def _ends(self) -> Self:
        self._sessions_known(self.sessions, "sessions")
        if self.max_context_tokens is not None and self.max_context_tokens < 32_768:
            raise ValueError("max_context_tokens: must be at least 32768 for sessions of this kind")
        return self


class DocumentsSpec(_Sessions):
    """Questions about long documents: each session asks a few about one document of a corpus.

    The document of rank k is asked about with a weight that falls as k to the ``popularity``.
    """

    kind: Literal["documents"] = "documents"
    sessions: Positive | None = None
    """None: max(4, 2 x concurrency)."""
    documents: int = Field(default=100, gt=0, le=10**7)
    popularity: float = Field(default=1.0, ge=0, le=100)
    """0: all alike."""
    document_tokens: Count = LognormalSpec(median=200_000, sigma=0.9, low=8_000, high=1_000_000)
    questions: Count = UniformSpec(low=1, high=5)
    question_tokens: Count = 200
    output_tokens: Count = 500
    think_time_s: Seconds = 30.0

    @model_validator(mode="after")
    def _ends(self) -> Self:
        self._sessions_known(self.sessions, "sessions")
        return self


class _Requests(_Generated):
    prompt_tokens: Count
    output_tokens: Count
    length_jitter: float = Field(default=0.0, ge=0, lt=1)
    """Lengths given as plain numbers are uniform within +-jitter of them."""


class PoissonSpec(_Requests):
    """Open loop: single requests at exponential intervals."""

    kind: Literal["poisson"] = "poisson"
    rate_per_s: float = Field(ge=MIN_RATE_PER_S, le=MAX_RATE_PER_S)
    requests: Positive


class OpenSpec(_Requests):
    """Open loop: single requests at ``arrivals``."""

    kind: Literal["open"] = "open"
    arrivals: ArrivalsSpec
    requests: Positive | None = None
    """None: until the arrivals end."""

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.requests is None and endless(self.arrivals):
            raise ValueError("requests: missing; these arrivals never end by themselves")
        return self


class StreamSpec(_Requests):
    """Closed loop of independent long prompts: the next starts when a client is free."""

    kind: Literal["stream"] = "stream"
    concurrency: Positive = 32
    requests: Positive
    ramp_up_s: Time = 0.0
    """The clients begin one after the other, evenly over so long."""
    think_time_s: Seconds = 0.0
    """Of a client between the end of a request and its next."""


TraceFormat = Literal["kv-cache-tester", "mooncake", "bailian", "azure", "vllm-bench", "openai", "plain"]


def _named(path: Any) -> Any:
    if isinstance(path, str) and (not path.strip() or "\0" in path):  # an empty one would mean "here"
        raise ValueError(f"{path!r} is no path; name a file or folder")
    return path


class TraceSpec(Record):
    """Recorded requests, of a file or a folder; times are the recording's seconds.

    Done in this order: ``from_s``/``to_s`` cut, ``repeat`` appends copies, ``time_scale`` stretches,
    ``limit`` ends.
    """

    kind: Literal["trace"] = "trace"
    path: Annotated[Path, BeforeValidator(_named)]
    format: TraceFormat | None = None
    """None: told from the content."""
    from_s: Time = 0.0
    """Leave out requests before; the rest starts so much earlier."""
    to_s: float | None = Field(default=None, gt=0, le=MAX_S)
    """Leave out requests from then on."""
    repeat: Positive = 1
    """Play all of it so many times; copies share no content and follow each other, except those of
    kv-cache-tester sessions, which start among the others."""
    time_scale: float = Field(default=1.0, gt=0, le=MAX_FACTOR)
    """Times and pauses are so many times as long: 0.5 sends twice as fast."""
    limit: Positive | None = None
    """The first so many requests in arrival order, sub-agent ones counted."""
    concurrency: Positive | None = None
    """Live sessions at a time; none: all, or what the file says."""
    skip_bad_lines: NonNegativeInt = 0
    """Leave out up to so many lines that cannot be used, and say which."""

    @model_validator(mode="after")
    def _cut_in_order(self) -> Self:
        if self.to_s is not None and self.to_s <= self.from_s:
            raise ValueError(f"to_s: {self.to_s:g} is not after from_s, {self.from_s:g}")
        return self


WorkloadSpec = Annotated[
    ConversationsSpec | PoissonSpec | StreamSpec | TraceSpec | OpenSpec | AgenticCodingSpec | DocumentsSpec,
    Field(discriminator="kind"),
]


class SeededWorkload(Record):
    """All that a stream of requests depends on."""

    workload: WorkloadSpec
    seed: NonNegativeInt = 0
