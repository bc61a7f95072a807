"""From what is said turn by turn to the requests of a session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct, field

from hisparse_sim.workload.content import Prefix, cut, said
from hisparse_sim.workload.request import RequestSpec, Segment


class Turn(Struct):
    """One request of an agent or a person.

    ``new_tokens`` of the prompt were never sent before; of the first turn that is the whole prompt.
    ``kept_tokens``: so much of the last turn's prompt and output comes before them; none: all.
    ``delay_s``: after the end of the turn before and of its ``agents``, which run once this turn is over.
    """

    new_tokens: int
    output_tokens: int
    delay_s: float = 0.0
    kept_tokens: int | None = None
    agents: Sequence[Agent] = ()


class Agent(Struct):
    """Turns that follow each other in one context, whose prompts begin with ``prefix``."""

    name: str
    turns: Sequence[Turn]
    prefix: Prefix = field(default_factory=Prefix)


def requests_of(agent: Agent, *, priority: int = 0, after: tuple[str, ...] = ()) -> Iterator[RequestSpec]:
    """The requests of an agent, those of its sub-agents between them; the first waits for ``after``.

    The token of position p in a context never changes, output included, until a turn keeps less than
    all: what it says from there on is a stream of its own.
    """
    content: tuple[Segment, ...] = ()
    held_tokens, branches = 0, 0
    for number, turn in enumerate(agent.turns, 1):
        total_tokens = turn.new_tokens + turn.output_tokens
        if number == 1:
            kept_tokens = 0
            prefix = agent.prefix._replace(tokens=min(agent.prefix.tokens, turn.new_tokens))
            content = said(agent.name, total_tokens, prefix)
        else:
            kept_tokens = held_tokens if turn.kept_tokens is None else min(turn.kept_tokens, held_tokens)
            if kept_tokens == held_tokens:
                *before, last = content
                content = (*before, last._replace(length=last.length + total_tokens))
            else:
                branches += 1
                branch = Segment(f"{agent.name}~{branches}", 0, total_tokens)
                content = (*cut(content, kept_tokens), branch)
        request = RequestSpec(
            id=f"{agent.name}/{number}",
            prompt_tokens=kept_tokens + turn.new_tokens,
            output_tokens=turn.output_tokens,
            content=content,
            after=after,
            delay_s=turn.delay_s,
            priority=priority,
        )
        yield request
        held_tokens = kept_tokens + total_tokens
        after = (request.id,)
        for helper in turn.agents:
            last_id = ""
            for asked in requests_of(helper, priority=priority, after=(request.id,)):
                last_id = asked.id
                yield asked
            after = (*after, last_id)
