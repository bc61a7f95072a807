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

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.workload import TraceSpec
from hisparse_sim.workload.lengths import Floats
from hisparse_sim.workload.request import BlockHashes, RequestSpec, Session
from hisparse_sim.workload.traces.kv_cache_tester import Agent, AgentRequest, read_file, session_name

STAGGER_S = 60.0
"""Sessions of a folder start uniformly within so long: they were recorded at unrelated times, and a
common start would be a burst that nobody recorded. A choice of this package."""


class RecordedSessions:
    """The sessions of a file or folder, read one at a time.

    Every file is read and checked when this is made (with ``check``, or where what is sent depends on
    all times), and again when its session is asked for, so memory holds one session whatever the size of
    the folder. Under a cap on live sessions a start time is the earliest, not the time itself. A lone file
    starts at 0. Copies of a repeated trace start within the same minute as the rest.
    """

    def __init__(self, spec: TraceSpec, seed: int, *, check: bool) -> None:
        self.spec = spec
        self.concurrency: int | None = spec.concurrency
        self.limit: int | None = None  # cut by recorded times, before anything is played
        self.notes: list[str] = []
        files = _files(spec.path)
        rng = np.random.Generator(np.random.PCG64(seed))
        count = len(files) * spec.repeat
        starts_s = rng.uniform(0, STAGGER_S, count) if count > 1 else np.zeros(1)
        cut = spec.limit is not None or spec.from_s > 0 or spec.to_s is not None
        plan = [
            _Part(float(start_s), files[index % len(files)], index // len(files))
            for index, start_s in enumerate(starts_s)
        ]
        if check or cut or spec.skip_bad_lines:
            plan = self._planned(plan, self._times(files))
        self._plan = sorted(plan, key=lambda part: (part.start_s, part.file, part.copy))

    def expected_requests(self, sessions: int, requests: int) -> int | None:
        """Known when the files were read."""
        ends = [(part.first, part.end) for part in self._plan]
        return sum(end - first for first, end in ends if end is not None) or None

    def sessions(self) -> Iterator[Session]:
        """The sessions, in order of their start."""
        for part in self._plan:
            recorded = read_session(part.file)[part.first : part.end]
            start_s = max(0.0, part.start_s - self.spec.from_s)
            suffix = f"#{part.copy + 1}" if part.copy else ""
            ids = {r.request.id for r in recorded}
            requests = tuple(
                self._replayed(r, ids, part.start_s - self.spec.from_s - start_s, suffix) for r in recorded
            )
            yield Session(
                id=session_name(part.file) + suffix,
                requests=requests,
                start_s=start_s * self.spec.time_scale,
            )

    def _replayed(self, recorded: Recorded, ids: set[str], shift_s: float, suffix: str) -> RequestSpec:
        """A request as it is sent; one whose predecessors were cut off comes at its time."""
        asked = recorded.request
        after = tuple(name + suffix for name in asked.after if name in ids)
        delay_s = asked.delay_s if after or not asked.after else max(0.0, recorded.start_s + shift_s)
        content = asked.content
        assert isinstance(content, BlockHashes)
        return replace(
            asked,
            id=asked.id + suffix,
            after=after,
            delay_s=delay_s * self.spec.time_scale,
            content=content._replace(scope=f"{content.scope}{suffix}"),
        )

    def _times(self, files: list[Path]) -> dict[Path, Floats]:
        """When each request was recorded, by file; files that cannot be used are left out as allowed."""
        times_s = {}
        for file in files:
            try:
                times_s[file] = np.array([recorded.start_s for recorded in read_session(file)])
            except InputError as error:
                if len(self.notes) >= self.spec.skip_bad_lines:
                    raise
                self.notes.append(f"session left out: {error}")
        if not times_s:
            raise InputError("holds no session that can be used", where=str(self.spec.path))
        return times_s

    def _planned(self, plan: list[_Part], times_s: dict[Path, Floats]) -> list[_Part]:
        """What of each session is sent, after the cut and the limit."""
        spec = self.spec
        to_s = math.inf if spec.to_s is None else spec.to_s
        parts, arrivals_s = [], []
        for part in plan:
            if part.file not in times_s:
                continue
            at_s = part.start_s + times_s[part.file]
            first, end = np.searchsorted(at_s, [spec.from_s, to_s]).tolist()
            parts.append(replace(part, first=first, end=end))
            arrivals_s.append(at_s[first:end])
        counts = _first(arrivals_s, spec.limit)
        kept = [
            replace(part, end=part.first + count) for part, count in zip(parts, counts, strict=True) if count
        ]
        if not kept:
            raise InputError("no request arrives between from_s and to_s", where="workload.from_s")
        return kept


class _Part(Struct, frozen=True):
    """Requests ``first`` to ``end`` of a file, as they come when it starts at ``start_s``."""

    start_s: float
    file: Path
    copy: int
    first: int = 0
    end: int | None = None


class Recorded(Struct, frozen=True):
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
    _place(session.agent, 0.0, (), session_name(file), session.block_tokens, placed)
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
        files = sorted(child for child in path.iterdir() if child.name.endswith((".json", ".json.gz")))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(path)) from None
    if not files:
        raise InputError("holds no .json session", where=str(path))
    by_name: dict[str, Path] = {}
    for file in files:
        if (other := by_name.setdefault(session_name(file), file)) != file:
            raise InputError(f"is the session of {other.name}, too; keep one of them", where=str(file))
    return files


def _first(arrivals_s: list[npt.NDArray[np.float64]], limit: int | None) -> list[int]:
    """How many requests of each session are among the first ``limit`` of all."""
    if limit is None:
        return [len(times) for times in arrivals_s]
    session = np.repeat(np.arange(len(arrivals_s)), [len(times) for times in arrivals_s])
    first = session[np.argsort(np.concatenate(arrivals_s), kind="stable")[:limit]]
    return [int(count) for count in np.bincount(first, minlength=len(arrivals_s))]
