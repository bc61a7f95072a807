"""Multi-turn conversations: each prompt repeats all that was said before."""

from __future__ import annotations

from collections.abc import Iterator

from hisparse_sim.scenario.workload import ConversationsSpec
from hisparse_sim.workload.content import said
from hisparse_sim.workload.request import RequestSpec, Session


class Conversations:
    """Closed loop: ``concurrency`` clients, each plays one conversation after the other.

    Every session starts as soon as a client is free, so the first ``concurrency`` start at 0. The
    token of position p in a conversation never changes, output included; turn k + 1 therefore
    shares all of turn k's prompt and output. A spec defines the whole stream: no seed is used.
    """

    def __init__(self, spec: ConversationsSpec) -> None:
        self.spec = spec
        self.concurrency: int | None = spec.concurrency
        self.conversations = spec.conversations or max(4, 2 * spec.concurrency)

    def sessions(self) -> Iterator[Session]:
        """The conversations, in order."""
        for index in range(self.conversations):
            name = f"conversation-{index:0{len(str(self.conversations - 1))}d}"
            yield Session(id=name, requests=tuple(self._turns(name)))

    def _turns(self, name: str) -> Iterator[RequestSpec]:
        spec = self.spec
        prompt_tokens, previous = spec.first_prompt_tokens, ""
        for turn in range(1, spec.turns + 1):
            known_tokens = prompt_tokens + spec.output_tokens
            request = RequestSpec(
                id=f"{name}/{turn}",
                prompt_tokens=prompt_tokens,
                output_tokens=spec.output_tokens,
                content=said(name, known_tokens, spec.shared_prefix_tokens),
                after=(previous,) if previous else (),
                delay_s=spec.think_time_s if previous else 0.0,
            )
            yield request
            previous = request.id
            prompt_tokens = known_tokens + spec.new_tokens_per_turn
