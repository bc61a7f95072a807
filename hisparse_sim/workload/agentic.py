"""Coding agents at work, with the quantiles of recorded sessions.

The quantiles are those of the 48,658 requests (sub-agents' left out) of the 710 sessions of kv-cache-tester
(github.com/callanjfox/kv-cache-tester, ``traces/``, Apache-2.0): anonymised sessions of one coding
assistant. New tokens are those of the prompt past the blocks of 64 that an earlier prompt of the session
began with. What lies below p5 and how a session moves are read off the 48 sessions whose requests were at
hand:

* 98.3 % of the prompts are the one before, longer: ``new`` tokens, the last output among them.
* The context is rewritten when it nears a limit. In most sessions that is at 146,000 to 159,000 tokens (a
  window of 200,000), in some it lies anywhere up to 894,371. What stays is the system prompt and a summary.
* About 1 % of the prompts are nearly as long as the one before, but all past the system prompt is new.
* Sessions that begin with more (a quarter of them with more than 104,189 tokens) are shorter.

What the recording does not say in numbers (how the long sessions' limits are spread, how first input and
number of turns hang together, that contexts grow faster early on) was chosen so that input lengths come
out near their recorded quantiles; the tests say how near.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from hisparse_sim.scenario.distributions import QuantilesSpec
from hisparse_sim.scenario.workload import AgenticCodingSpec
from hisparse_sim.workload.content import Prefix
from hisparse_sim.workload.draws import Draws
from hisparse_sim.workload.lengths import Floats, Quantiles, draw
from hisparse_sim.workload.request import Session
from hisparse_sim.workload.sessions import add_subagents
from hisparse_sim.workload.starts import expected_requests, session_count, session_starts_s
from hisparse_sim.workload.tenants import Tenants
from hisparse_sim.workload.turns import Agent, Turn, requests_of

_LEVELS = ("min", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "max")
_REQUESTS, _SESSIONS = 48_658, 710


def _quantiles(samples: int, *values: float, **more: float) -> QuantilesSpec:
    return QuantilesSpec(points=dict(zip(_LEVELS, values, strict=True)) | more, samples=samples)


RECORDED = {
    "input_tokens": _quantiles(
        _REQUESTS, 8_000, 31_487, 43_308, 67_717, 104_644, 139_213, 235_882, 302_362, 500_022, 894_371
    ),
    "output_tokens": _quantiles(_REQUESTS, 1, 89, 105, 137, 216, 429, 899, 1_544, 3_663, 18_195),
    "new_tokens": _quantiles(_REQUESTS, 45, 189, 230, 372, 705, 1_675, 4_077, 7_988, 65_875, 697_351),
    "requests": _quantiles(_SESSIONS, 1, 4, 7, 18, 45, 94, 156, 232, 330, 514),
    "first_input_tokens": _quantiles(
        _SESSIONS, 8_000, 13_048, 15_459, 18_587, 24_522, 104_189, 259_335, 378_386, 716_145, 851_858
    ),
    "think_time_s": _quantiles(_REQUESTS, 1, 3, 4, 5, 9, 25, 127, 307, 2_415, 77_589, **{"p99.9": 17_230}),
}
"""Quantiles of the recording; ``min`` and ``p99.9`` are of the sessions at hand, all else of all 710."""
MOST_NEW_TOKENS = 697_351
"""Of a prompt that is not the first: no cache of more was lost."""

APPENDED_SHARE = 0.986
"""New tokens up to this quantile are appended; rewrites make those above it."""
LOST_SHARE = 0.01
"""Of the prompts whose cache is lost past the system prompt, apart from compaction."""
FIRST_INPUT_AND_TURNS = -0.33
"""Correlation, of the normal scores of the two."""
LONG_SHARE = 0.31
"""Of the sessions that would fit in the small window: so many have a larger one anyway."""
SMALL_WINDOW_TOKENS = (146_000, 159_000)
LONG_WINDOW_TOKENS = (190_000, 700_000)
LONGEST_TOKENS = 894_371
COMPACTED_TOKENS = (47_000, 112_000)
SYSTEM_TOKENS = 14_500
EARLY = 1.0
"""How much sooner a session's larger growths come than chance would have them."""
BLOCK_TOKENS = 64


class AgenticCoding:
    """Sessions of coding agents; see above."""

    def __init__(self, spec: AgenticCodingSpec, seed: int) -> None:
        self.spec = spec
        self.seed = seed
        self.notes: list[str] = []
        self.concurrency: int | None = spec.concurrency
        self.limit: int | None = spec.limit
        self._count = session_count(spec.sessions, spec)
        self._inverse = {name: Quantiles(points) for name, points in RECORDED.items()}

    def expected_requests(self, sessions: int, requests: int) -> int | None:
        """By what the first sessions have."""
        return expected_requests(self._count, sessions, requests)

    def sessions(self) -> Iterator[Session]:
        """The sessions, in order."""
        tenants = Tenants(self.spec.tenants, self.spec.shared_prefix_tokens)
        width = len(str((self._count or 10**6) - 1))
        for index, start_s in enumerate(session_starts_s(self.spec, self._count, self.seed)):
            draws = Draws(self.seed, index)
            tenant = tenants.of(draws)
            name = f"agent-{index:0{width}d}"
            turns = self._turns(draws, tenant.prefix)
            if self.spec.subagents is not None:
                add_subagents(turns, name, self.spec.subagents, draws)
            requests = tuple(requests_of(Agent(name, turns, tenant.prefix), priority=tenant.priority))
            yield Session(id=name, requests=requests, start_s=start_s, tags=tenant.tags)

    def _turns(self, draws: Draws, prefix: Prefix) -> list[Turn]:
        """Walk the context through a session: appended to, compacted at its limit, lost now and then."""
        rng = draws.generator("shape")
        longest = min(LONGEST_TOKENS, self.spec.max_context_tokens or LONGEST_TOKENS)
        first, count = self._first_and_count(rng)
        outputs = self._outputs(draws, count, longest)
        prompt = max(1, min(first, longest - outputs[0]))
        system = min(SYSTEM_TOKENS * math.exp(0.12 * rng.standard_normal()), 0.9 * prompt)
        system = max(round(system), min(prefix.tokens, prompt))
        window = min(self._window(prompt, rng), longest)
        grown = self._growths(draws, count - 1, rng)
        lost = rng.random(count - 1) < LOST_SHARE
        low, high = (math.log(min(tokens, 0.6 * window)) for tokens in COMPACTED_TOKENS)
        compacted = np.exp(rng.uniform(low, high, count - 1)).astype(np.int64).tolist()
        pauses_s = self._pauses_s(draws, count - 1)
        turns = [Turn(prompt, outputs[0])]
        for number in range(1, count):
            # New is counted from the last whole block of the prompt before.
            known = prompt - prompt % BLOCK_TOKENS
            longer = max(known + grown[number - 1], prompt + 1)
            before_tokens, output = outputs[number - 1], outputs[number]
            if longer + output > window:
                prompt = max(min(compacted[number - 1], round(0.9 * prompt)), system + BLOCK_TOKENS)
                kept = system
            elif lost[number - 1] and longer - system <= MOST_NEW_TOKENS:
                prompt, kept = longer, system
            else:
                # A prompt that grew by less did not send the output back as it was.
                kept = prompt + before_tokens if longer - prompt > before_tokens else prompt
                prompt = longer
            turns.append(Turn(prompt - kept, output, pauses_s[number - 1], kept))
        return turns

    def _first_and_count(self, rng: np.random.Generator) -> tuple[int, int]:
        """First input and number of requests, by a Gaussian copula."""
        one, other = rng.standard_normal(2).tolist()
        both = FIRST_INPUT_AND_TURNS * one + math.sqrt(1 - FIRST_INPUT_AND_TURNS**2) * other
        levels = [0.5 * (1 + math.erf(score / math.sqrt(2))) for score in (one, both)]
        first = self._inverse["first_input_tokens"].at(np.array(levels[:1]))
        count = self._inverse["requests"].at(np.array(levels[1:]))
        return round(float(first[0])), max(1, round(float(count[0])))

    def _outputs(self, draws: Draws, count: int, longest: int) -> list[int]:
        outputs = self._inverse["output_tokens"].at(draws.generator("output").random(count))
        tokens: list[int] = np.clip(np.rint(outputs), 1, longest // 4).astype(np.int64).tolist()
        return tokens

    def _window(self, first: int, rng: np.random.Generator) -> int:
        """The length at which the session's context is compacted."""
        small, level = rng.uniform(*SMALL_WINDOW_TOKENS), rng.random()
        low, high = np.log(LONG_WINDOW_TOKENS)
        long = math.exp(rng.uniform(low, high))
        if level >= LONG_SHARE and first < SMALL_WINDOW_TOKENS[0] - 3_000:
            return round(small)
        return min(LONGEST_TOKENS, round(max(long, 1.15 * first)))

    def _growths(self, draws: Draws, count: int, rng: np.random.Generator) -> list[int]:
        """New tokens of appending prompts; the order is chance, with larger ones a little earlier."""
        new = self._inverse["new_tokens"].at(draws.generator("new").random(count) * APPENDED_SHARE)
        places = np.argsort(np.arange(count) / max(count, 1) * EARLY + rng.random(count), kind="stable")
        sizes = np.argsort(rng.standard_normal(count) - EARLY / 4 * np.log(new), kind="stable")
        ordered = np.empty(count, dtype=np.int64)
        ordered[places] = np.rint(new[sizes]).astype(np.int64)
        tokens: list[int] = ordered.tolist()
        return tokens

    def _pauses_s(self, draws: Draws, count: int) -> list[float]:
        spec, rng = self.spec.think_time_s, draws.generator("pause")
        recorded = self._inverse["think_time_s"]
        pauses_s: Floats = recorded.at(rng.random(count)) if spec is None else draw(spec, rng, count)
        return [float(pause_s) for pause_s in pauses_s]
