"""Multi-turn conversations: each prompt repeats all that was said before."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hisparse_sim.scenario.workload import ConversationsSpec, SubagentsSpec
from hisparse_sim.workload.content import Prefix, check_shared_prefix
from hisparse_sim.workload.draws import Draws
from hisparse_sim.workload.lengths import Ints
from hisparse_sim.workload.request import Session
from hisparse_sim.workload.starts import expected_requests, session_count, session_starts_s
from hisparse_sim.workload.tenants import Tenants
from hisparse_sim.workload.turns import Agent, Turn, requests_of

SUBAGENT_STREAM = "subagent-prefix"


class Conversations:
    """Clients play one conversation after the other, or conversations begin at arrivals.

    In a closed loop every session starts as soon as a client is free, so the first ``concurrency``
    start at 0, or one after the other while clients ramp up. With plain numbers for all lengths a spec
    defines the whole stream, whatever the seed.
    """

    def __init__(self, spec: ConversationsSpec, seed: int) -> None:
        first = spec.first_prompt_tokens
        check_shared_prefix(spec.shared_prefix_tokens, first, "workload.shared_prefix_tokens")
        for tenant in spec.tenants:
            check_shared_prefix(tenant.shared_prefix_tokens or 0, first, "workload.tenants")
        self.spec = spec
        self.seed = seed
        self.notes: list[str] = []
        self.concurrency: int | None = spec.concurrency
        self.limit: int | None = spec.limit
        self.conversations = session_count(spec.conversations, spec)

    def expected_requests(self, sessions: int, requests: int) -> int | None:
        """By what the first sessions have."""
        return expected_requests(self.conversations, sessions, requests)

    def sessions(self) -> Iterator[Session]:
        """The conversations, in order."""
        width = len(str((self.conversations or 10**6) - 1))
        tenants = Tenants(self.spec.tenants, self.spec.shared_prefix_tokens)
        starts_s = session_starts_s(self.spec, self.conversations, self.seed)
        for index, start_s in enumerate(starts_s):
            draws = Draws(self.seed, index)
            tenant = tenants.of(draws)
            agent = self._agent(f"conversation-{index:0{width}d}", index, draws, tenant.prefix)
            requests = tuple(requests_of(agent, priority=tenant.priority))
            yield Session(id=agent.name, requests=requests, start_s=start_s, tags=tenant.tags)

    def _agent(self, name: str, index: int, draws: Draws, prefix: Prefix) -> Agent:
        spec = self.spec
        count = int(draws.counts(spec.turns, "turns", 1)[0])
        new_tokens = draws.counts(spec.new_tokens_per_turn, "new", count)
        new_tokens[0] = draws.counts(spec.first_prompt_tokens, "prompt", 1)[0]
        pause_s = draws.seconds(spec.think_time_s, "pause", count)
        if spec.tools is not None:
            rng = draws.generator("tools")
            by_tool = rng.random(count) < spec.tools.share
            by_tool[0] = False
            tools = Draws(self.seed, index, 0)
            new_tokens = np.where(by_tool, tools.counts(spec.tools.result_tokens, "new", count), new_tokens)
            pause_s = np.where(by_tool, tools.seconds(spec.tools.time_s, "pause", count), pause_s)
        turns = turns_of(new_tokens, draws.counts(spec.output_tokens, "output", count), pause_s.tolist())
        if spec.subagents is not None:
            add_subagents(turns, name, spec.subagents, draws)
        return Agent(name, turns, prefix)


def turns_of(new_tokens: Ints, output_tokens: Ints, pauses_s: list[float]) -> list[Turn]:
    """Turns that keep all; the first has no pause before it."""
    return [
        Turn(new, output, pause_s if number else 0.0)
        for number, (new, output, pause_s) in enumerate(
            zip(new_tokens.tolist(), output_tokens.tolist(), pauses_s, strict=True)
        )
    ]


def add_subagents(turns: list[Turn], name: str, spec: SubagentsSpec, draws: Draws) -> None:
    """Give some of the turns agents that run before the next one."""
    spawns = draws.generator("subagents").random(len(turns)) < spec.share
    agents = Draws(draws.seed, *draws.key, 1).counts(spec.agents, "subagents", len(turns))
    for number, turn in enumerate(turns[:-1]):
        if not spawns[number]:
            continue
        helpers = []
        for helper in range(int(agents[number])):
            own = Draws(draws.seed, *draws.key, 2, number, helper)
            count = int(own.counts(spec.turns, "turns", 1)[0])
            new_tokens = own.counts(spec.new_tokens_per_turn, "new", count)
            new_tokens[0] = own.counts(spec.first_prompt_tokens, "prompt", 1)[0]
            outputs = own.counts(spec.output_tokens, "output", count)
            pauses_s = own.seconds(spec.time_s, "pause", count).tolist()
            helpers.append(
                Agent(
                    f"{name}/{number + 1}.{helper + 1}",
                    turns_of(new_tokens, outputs, pauses_s),
                    Prefix(spec.shared_prefix_tokens, SUBAGENT_STREAM),
                )
            )
        turn.agents = helpers
