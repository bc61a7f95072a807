"""Recorded sessions, replayed: closed by think time, started at times drawn from the seed.

* A request starts ``think_time`` after the one before it has finished, whatever the simulated engine
  makes of that one.
* A sub-agent was spawned ``duration_ms`` before its result came back at its ``t``. In all 8 of the
  recorded sessions at hand that is within 0.8 s of the end of the parent's request before it, equal
  for agents side by side, and the parent's next request comes after ``t``. So sub-agents start
  when that request has finished, run beside each other, and their parent waits for all of them.
* A prompt that continues the one before it, and is long enough to, repeats that one's output; the
  output's blocks then have that prompt's ids. One that is too short (thinking left out, tokens
  counted otherwise) did not send the output back as it was, and none of it is taken as shared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.workload import TraceSpec
from hisparse_sim.workload.kv_cache_tester import Agent, AgentRequest, read_file
from hisparse_sim.workload.request import BlockHashes, RequestSpec, Session

STAGGER_S = 60.0
"""Sessions of a folder start uniformly within so long: they were recorded at unrelated times, and a
common start would be a burst that nobody recorded. A choice of this package."""


class TraceSessions:
    """The sessions of a file or folder, read one at a time.

    Every file is read and checked when this is made, and again when its session is asked for, so
    memory holds one session whatever the size of the folder. Under a cap on live sessions a start
    time is the earliest, not the time itself. A lone file starts at 0.
    """

    def __init__(self, spec: TraceSpec, seed: int) -> None:
        self.concurrency: int | None = spec.concurrency
        files = _files(spec.path)
        rng = np.random.Generator(np.random.PCG64(seed))
        starts_s = rng.uniform(0, STAGGER_S, len(files)) if len(files) > 1 else np.zeros(1)
        arrivals_s = [
            start_s + np.array([recorded.start_s for recorded in read_session(file)])
            for file, start_s in zip(files, starts_s, strict=True)
        ]
        self._plan = sorted(
            (float(start_s), file, count)
            for start_s, file, count in zip(starts_s, files, _first(arrivals_s, spec.limit), strict=True)
            if count
        )

    def sessions(self) -> Iterator[Session]:
        """The sessions, in order of their start."""
        for start_s, file, count in self._plan:
            requests = tuple(recorded.request for recorded in read_session(file)[:count])
            yield Session(id=file.stem, requests=requests, start_s=start_s)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A request to replay, and when it started and ended in the recording, in seconds of its session."""

    request: RequestSpec
    start_s: float
    end_s: float


def read_session(file: Path) -> list[Recorded]:
    """The requests of one session in order of their recorded start, each after all it waits for.

    Raises InputError naming the file and the place in it.
    """
    session = read_file(file)
    placed: list[Recorded] = []
    _place(session.agent, 0.0, (), file.stem, session.block_tokens, placed)
    return sorted(placed, key=lambda recorded: recorded.start_s)


def _place(
    agent: Agent,
    start_s: float,
    after: tuple[Recorded, ...],
    scope: str,
    block_tokens: int,
    placed: list[Recorded],
) -> Recorded | None:
    """Place an agent's requests, the first after ``after``, and return the last of them."""
    done: list[Recorded] = []
    for index, asked in enumerate(agent.requests):
        following = agent.requests[index + 1] if index + 1 < len(agent.requests) else None
        subagents = _place_all(asked.returned, done, start_s, scope, block_tokens, placed)
        waits_for = (done[-1] if done else None, *subagents)
        before = tuple(r for r in waits_for if r is not None) or after
        at_s = max([start_s + asked.t_s, *(r.start_s for r in before)])
        if done and not subagents and asked.think_time_s is not None:
            delay_s = asked.think_time_s
        else:
            delay_s = max(0.0, at_s - max((r.end_s for r in before), default=0.0))
        request = RequestSpec(
            id=asked.id,
            prompt_tokens=asked.prompt_tokens,
            output_tokens=asked.output_tokens,
            content=BlockHashes(scope, _known_ids(asked, following, block_tokens), block_tokens),
            after=tuple(r.request.id for r in before),
            delay_s=delay_s,
        )
        done.append(Recorded(request, at_s, at_s + _duration_s(asked, following)))
        placed.append(done[-1])
    _place_all(agent.unread, done, start_s, scope, block_tokens, placed)
    return done[-1] if done else None


def _place_all(
    agents: list[Agent],
    parents: list[Recorded],
    start_s: float,
    scope: str,
    block_tokens: int,
    placed: list[Recorded],
) -> list[Recorded]:
    """Place sub-agents beside each other; the last request of each that made one."""
    lasts = []
    for agent in agents:
        spawned_s = start_s + agent.returned_s - (agent.duration_s or 0.0)
        if agent.duration_s is None and parents:
            spawned_s = parents[-1].end_s
        spawner = next((r for r in reversed(parents) if r.start_s <= spawned_s), None)
        after = (spawner,) if spawner else ()
        last = _place(agent, max(0.0, spawned_s), after, scope, block_tokens, placed)
        if last is not None:
            lasts.append(last)
    return lasts


def _duration_s(asked: AgentRequest, following: AgentRequest | None) -> float:
    """How long a request took; without ``api_time``, what its successor's ``think_time`` leaves."""
    if asked.api_time_s is not None:
        return asked.api_time_s
    if following is not None and following.think_time_s is not None:
        return max(0.0, following.t_s - following.think_time_s - asked.t_s)
    return 0.0


def _known_ids(
    asked: AgentRequest, following: AgentRequest | None, block_tokens: int
) -> npt.NDArray[np.int64]:
    """Ids of the full blocks of the prompt and, if the following prompt repeats it, of the output."""
    total_tokens = asked.prompt_tokens + asked.output_tokens
    if following is None or following.prompt_tokens < total_tokens:
        return asked.ids
    if not np.array_equal(following.ids[: len(asked.ids)], asked.ids):
        return asked.ids
    return following.ids[: total_tokens // block_tokens]


def _files(path: Path) -> list[Path]:
    """The session files of ``path``, by name."""
    if path.is_file():
        return [path]
    if not path.exists():
        raise InputError("no such file or folder; give a session file or a folder of them", where=str(path))
    try:
        files = sorted(child for child in path.iterdir() if child.suffix == ".json")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(path)) from None
    if not files:
        raise InputError("holds no .json session", where=str(path))
    return files


def _first(arrivals_s: list[npt.NDArray[np.float64]], limit: int | None) -> list[int]:
    """How many requests of each session are among the first ``limit`` of all."""
    if limit is None:
        return [len(times) for times in arrivals_s]
    session = np.repeat(np.arange(len(arrivals_s)), [len(times) for times in arrivals_s])
    first = session[np.argsort(np.concatenate(arrivals_s), kind="stable")[:limit]]
    return [int(count) for count in np.bincount(first, minlength=len(arrivals_s))]
