"""The session format of kv-cache-tester (github.com/callanjfox/kv-cache-tester), read and checked.

A file is one session: ``{"id", "block_size", "hash_id_scope", "requests": [...]}``. A request has
``t`` (start, s), ``in`` and ``out`` (tokens), ``hash_ids`` (one id per full block of the prompt) and,
mostly, ``api_time`` (duration, s) and ``think_time`` (``t`` less the end of the request before, s). An
entry of type ``subagent`` nests the requests of another agent, whose ``t`` starts at 0 again.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.workload import MAX_COUNT, MAX_S
from hisparse_sim.workload.traces.blocks import check_kind


class AgentRequest(Struct):
    """One recorded request; times in seconds of its agent. ``ids``: of the full blocks of the prompt."""

    id: str
    t_s: float
    prompt_tokens: int
    output_tokens: int
    ids: npt.NDArray[np.int64]
    api_time_s: float | None
    think_time_s: float | None
    returned: list[Agent]
    """Sub-agents whose result came back between the request before this one and this one."""


class Agent(Struct):
    """Requests that follow each other; of a sub-agent also when it returned and how long it took.

    ``returned_s`` is in seconds of the parent. ``unread`` are sub-agents that returned after the
    last request.
    """

    name: str
    requests: list[AgentRequest] = []
    unread: list[Agent] = []
    returned_s: float = 0.0
    duration_s: float | None = None

    def walk(self) -> Iterator[AgentRequest]:
        """All requests, those of sub-agents included."""
        for request in self.requests:
            for agent in request.returned:
                yield from agent.walk()
            yield request
        for agent in self.unread:
            yield from agent.walk()


class RecordedSession(Struct, frozen=True):
    """A file's content."""

    block_tokens: int
    agent: Agent


def read_file(file: Path) -> RecordedSession:
    """Read one session, whose ids then stand for whole prefixes, as ``BlockHashes`` wants them.

    Raises InputError naming the file and the place in it.
    """
    session = load(file)
    block_tokens = _whole(session, "block_size", str(file), least=1)
    if (scope := session.get("hash_id_scope", "local")) != "local":
        raise InputError(f"hash_id_scope is {scope!r}; only 'local' ids can be read", where=str(file))
    agent = _agent(session, f"{file}: ", session_name(file), block_tokens)
    requests = list(agent.walk())
    if not requests:
        raise InputError("holds no requests", where=str(file))
    seen: set[str] = set()
    for request in requests:
        if request.id in seen:
            raise InputError(
                f"two requests have the id {request.id}: an agent_id is used twice", where=str(file)
            )
        seen.add(request.id)
    _make_prefix_consistent(requests)
    return RecordedSession(block_tokens, agent)


def session_name(file: Path) -> str:
    """What a session is called, and the scope of its ids: its file without the ending."""
    return file.name.removesuffix(".gz").removesuffix(".json")


def load(file: Path) -> dict[str, Any]:
    """The JSON object that a file holds. Raises InputError with the place of what is wrong."""
    data = _bytes_of(file)
    try:
        session = json.loads(data)
    except UnicodeDecodeError:
        raise InputError("is not UTF-8 text; a kv-cache-tester session is JSON", where=str(file)) from None
    except json.JSONDecodeError as error:
        more = error.msg == "Extra data"
        what = "goes on after its JSON has ended" if more else f"is not whole JSON (cut short?): {error.msg}"
        raise InputError(what, where=f"{file}:{error.lineno}:{error.colno}") from None
    except ValueError as error:  # a number of thousands of digits
        raise InputError(f"is not JSON that can be read: {error}", where=str(file)) from None
    except RecursionError:
        raise InputError("is nested too deeply to be a session", where=str(file)) from None
    if not isinstance(session, dict):
        raise InputError("must hold a JSON object with 'requests'", where=str(file))
    return session


def _bytes_of(file: Path) -> bytes:
    check_kind(file)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(file)) from None
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"the gzip is cut short or damaged: {error}", where=str(file)) from None


def _agent(holder: dict[str, Any], where: str, name: str, block_tokens: int) -> Agent:
    """Read the list ``requests`` of a session or sub-agent; ``where`` is the text before that word."""
    entries = holder.get("requests")
    if not isinstance(entries, list):
        raise InputError("must be a list of requests", where=f"{where}requests")
    agent = Agent(name)
    returned: list[Agent] = []
    last_t_s = 0.0
    for index, entry in enumerate(entries):
        at = f"{where}requests[{index}]"
        if not isinstance(entry, dict):
            raise InputError("must be a JSON object", where=at)
        t_s = _seconds(entry, "t", at)
        if t_s is None:
            raise InputError("'t' is missing: the start in seconds", where=at)
        if entry.get("type") == "subagent":
            nested = _agent(entry, f"{at}.", f"{name}/{entry.get('agent_id', index)}", block_tokens)
            nested.returned_s = t_s
            duration_ms = _seconds(entry, "duration_ms", at)
            nested.duration_s = None if duration_ms is None else duration_ms / 1e3
            returned.append(nested)
            continue
        if t_s < last_t_s:
            raise InputError(f"t {t_s:g} is before that of the request before it, {last_t_s:g}", where=at)
        last_t_s = t_s
        prompt_tokens = _whole(entry, "in", at, least=1)
        agent.requests.append(
            AgentRequest(
                id=f"{name}/{index}",
                t_s=t_s,
                prompt_tokens=prompt_tokens,
                output_tokens=_whole(entry, "out", at, least=0),
                ids=_ids(entry, at, prompt_tokens // block_tokens),
                api_time_s=_seconds(entry, "api_time", at),
                think_time_s=_seconds(entry, "think_time", at),
                returned=returned,
            )
        )
        returned = []
    agent.unread = returned
    return agent


def _whole(entry: dict[str, Any], key: str, where: str, *, least: int) -> int:
    value = entry.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_COUNT:
        shown = "missing" if value is None else repr(value)
        raise InputError(
            f"'{key}' is {shown}; it must be a whole number >= {least} and at most {MAX_COUNT:,}", where=where
        )
    return value


def _seconds(entry: dict[str, Any], key: str, where: str) -> float | None:
    value = entry.get(key)
    if value is None:
        return None
    most = MAX_S * 1e3 if key.endswith("_ms") else MAX_S
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= most:
        raise InputError(f"'{key}' is {value!r}; it must be a number >= 0 and at most {most:g}", where=where)
    return float(value)


def _ids(entry: dict[str, Any], where: str, full_blocks: int) -> npt.NDArray[np.int64]:
    """The ids of the prompt's full blocks; one for a partial last block says nothing and is left out."""
    given = entry.get("hash_ids")
    if not isinstance(given, list):
        raise InputError("'hash_ids' is missing or not a list of whole numbers", where=where)
    try:
        ids = np.array(given) if given else np.zeros(0, dtype=np.int64)
    except ValueError:
        ids = np.zeros(1, dtype=object)
    if ids.ndim != 1 or ids.dtype.kind != "i":
        raise InputError("'hash_ids' must be whole numbers", where=where)
    if not full_blocks <= len(ids) <= full_blocks + 1:
        raise InputError(
            f"'hash_ids' has {len(ids)} ids for a prompt with {full_blocks} full blocks", where=where
        )
    return ids[:full_blocks].astype(np.int64, copy=False)


def _make_prefix_consistent(requests: list[AgentRequest]) -> None:
    """Renumber ids if one follows two different ids somewhere, so that an id stands for all before it."""
    ids = np.concatenate([request.ids for request in requests])
    if not len(ids):
        return
    before = np.concatenate(([-1], ids[:-1]))
    firsts = np.cumsum([0, *(len(request.ids) for request in requests)])[:-1]
    before[firsts[firsts < len(ids)]] = -1
    order = np.lexsort((before, ids))
    same_id = np.diff(ids[order]) == 0
    if not np.any(same_id & (np.diff(before[order]) != 0)):
        return
    numbers: dict[tuple[int, int], int] = {}
    for request in requests:
        parent = -1
        for place, old in enumerate(request.ids.tolist()):
            parent = numbers.setdefault((parent, old), len(numbers))
            request.ids[place] = parent
