"""Replay recorded traces of vLLM's own scheduler through this package's, and compare every step.

``python -m hisparse_sim.validation.golden DIR [--engine vllm-0.33|vllm-0.30] [--only GLOB] [--json]``
takes a folder with ``scenarios/NAME.json`` and ``v033/NAME.jsonl[.gz]`` or ``v030/…``; a trace begins
with a line of facts about the engine, ends with a line of totals and has the steps between. An engine
that died must die at the same step with the same words. Prints one line a trace; one that is there compressed
and plain is replayed twice. Exit code 0: all equal; 1: some differ or cannot be read; 2: no such folder;
130: interrupted.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hisparse_sim.errors import HiSparseError, InputError
from hisparse_sim.scenario.validate import locate
from hisparse_sim.validation.replay import Replay, Totals
from hisparse_sim.validation.trace_files import ENGINES, read_scenario, read_trace

APART = ("flushed", "ext")
"""Fields compared, but counted apart: the recording does not pin them down fully."""
_NAMES = {"kind", "vllm", "scenario", "spec", "role", "eviction_policy"}
"""Facts that are words for something else that is compared."""

Fields = dict[str, tuple[Any, Any]]
"""Name of each field that differs: recorded, replayed."""


@dataclass
class Difference:
    """Where a trace and its replay first disagree; ``step`` none: in the facts or the totals."""

    step: int | None
    fields: Fields


@dataclass
class Outcome:
    """How one trace compares. ``difference`` none: equal over ``steps`` steps."""

    name: str
    steps: int = 0
    difference: Difference | None = None
    apart: int = 0
    """Steps at which a field of ``APART`` differs."""
    first_apart: Difference | None = None
    error: str | None = None
    missing: bool = False
    """There is no trace to compare with; not counted as different."""

    @property
    def equal(self) -> bool:
        """Whether everything recorded was replayed."""
        return self.difference is None and self.error is None


def compare(scenario: dict[str, Any], trace: Path, engine: str = "vllm-0.33") -> Outcome:
    """Replay ``scenario`` and compare it with ``trace``, merged steps expanded.

    Raises InputError for a trace that is no trace; of a scenario's own fields without their file.
    """
    outcome = Outcome(_name(trace))
    facts, records, totals = read_trace(trace, engine)
    replay = Replay(scenario, facts, version=engine.removeprefix("vllm-"))
    fields = _unequal("config", {k: v for k, v in facts.items() if v is not None}, replay.facts)
    if fields:
        outcome.difference = Difference(None, fields)
        return outcome
    lines = replay.lines()
    summed = Totals()
    for record in records:
        first, last = record.get("steps") or (record["step"], record["step"])
        for step in range(first, last + 1):
            line = next(lines, None)
            fields = _differences({**record, "step": step}, line)
            if line is None or fields.keys() - set(APART):
                fields = {k: v for k, v in fields.items() if k not in APART}
                if replay.died:
                    fields["error"] = None, replay.died
                outcome.difference = Difference(step, fields)
                return outcome
            if fields:
                outcome.apart += 1
                outcome.first_apart = outcome.first_apart or Difference(step, fields)
            summed.add(line)
            outcome.steps += 1
    if totals.get("error") == "max_steps":  # the recording itself was cut there
        return outcome
    if (extra := next(lines, None)) is not None:
        fields = {"step": (None, extra["step"])}
        if totals.get("error"):
            fields["error"] = totals["error"], None
        outcome.difference = Difference(extra["step"], fields)
        return outcome
    summary = summed.record(replay)
    if replay.died:  # within a step, in the middle of taking blocks
        totals = {key: value for key, value in totals.items() if not key.endswith("_free_final")}
    fields = _unequal("totals", totals, summary)
    named = totals.get("requests")
    if named is not None and named.keys() != summary["requests"].keys():
        fields["totals requests"] = sorted(named), sorted(summary["requests"])
    if fields:
        outcome.difference = Difference(None, fields)
    return outcome


def _name(trace: Path) -> str:
    return trace.name.removesuffix(".gz").removesuffix(".jsonl")


def _unequal(what: str, want: dict[str, Any], got: dict[str, Any]) -> Fields:
    """Facts or totals that were recorded, and replayed otherwise or not at all; nested ones one by one."""
    fields: Fields = {}
    for key in want.keys() - _NAMES:
        a, b = want[key], got.get(key)
        if key == "groups" and b is not None and len(a) == len(b):
            a, b = dict(enumerate(a)), dict(enumerate(b))
        if isinstance(a, dict) and isinstance(b, dict):
            fields.update(_unequal(f"{what} {key}", a, b))
        elif (a or b) and a != b:
            fields[f"{what} {key}"] = a, b
    return fields


def _differences(want: dict[str, Any], got: dict[str, Any] | None) -> Fields:
    if got is None:
        return {"step": (want["step"], None)}
    fields: Fields = {}
    for key in (want.keys() | got.keys()) - {"steps"}:
        a, b = want.get(key), got.get(key)
        if not a and not b:
            continue
        if key in ("lost", "adopted"):  # recorded by request
            same = (sum(a.values()) if isinstance(a, dict) else a or 0) == b
        elif key == "scheduled":  # the order counts
            same = a == b and list(a or ()) == list(b or ())
        else:
            same = a == b
        if not same:
            fields[key] = a, b
    return fields


def replay_folder(folder: Path, only: str = "*", engine: str = "vllm-0.33") -> Iterator[Outcome]:
    """Compare each scenario of ``folder`` with its trace. Raises InputError if there is none."""
    scenarios = {p.stem: p for p in (folder / "scenarios").glob("*.json")}
    if not scenarios:
        raise InputError("no scenarios/*.json here", where=str(folder))
    traces: dict[str, list[Path]] = {}
    for end in ("", ".gz"):
        for path in (folder / ENGINES[engine]).glob(f"*.jsonl{end}"):
            traces.setdefault(_name(path), []).append(path)
    names = fnmatch.filter(sorted(scenarios.keys() | traces.keys()), only)
    if not names:
        raise InputError(f"{only}: no scenario of that name in {folder}", where="--only")
    for name in names:
        if name not in traces:
            yield Outcome(name, error="no trace for this engine", missing=True)
        for trace in traces.get(name, ()):
            if name not in scenarios:
                missing = folder / "scenarios" / f"{name}.json"
                outcome = Outcome(name, error=f"{missing}: no such file; {trace} is a trace of it")
            else:
                outcome = _outcome(name, scenarios[name], trace, engine)
            if len(traces[name]) > 1:
                outcome.name = trace.name
            yield outcome


def _outcome(name: str, path: Path, trace: Path, engine: str) -> Outcome:
    try:
        return compare(read_scenario(path), trace, engine)
    except HiSparseError as e:
        where = e.where or ""
        keys = [int(key) if key.isdigit() else key for key in where.split(".")]
        if keys[0] in ("engine", "model", "requests"):  # found out by the replay
            where = locate(str(path), tuple(keys))
        return Outcome(name, error=f"{where}: {e.message}")


def _as_json(outcome: Outcome) -> dict[str, Any]:
    d, apart = outcome.difference, outcome.first_apart
    return {
        "name": outcome.name,
        "equal": outcome.equal,
        "steps": outcome.steps,
        "first_difference": d and {"step": d.step, "fields": d.fields},
        "apart": outcome.apart,
        "first_apart": apart and {"step": apart.step, "fields": apart.fields},
        "error": outcome.error,
    }


def _as_text(outcome: Outcome) -> str:
    if outcome.error:
        return f"{outcome.name}: {outcome.error}"
    d, apart = outcome.difference, outcome.first_apart
    if d is None:
        equal = f"{outcome.name}: equal {outcome.steps} steps"
        if apart is None:
            return equal
        return f"{equal} ({outcome.apart} apart, first step {apart.step}: {'; '.join(_both(apart))})"
    where = "outside its steps" if d.step is None else f"at step {d.step}"
    return "\n  ".join([f"{outcome.name}: differs {where}", *_both(d)])


def _both(difference: Difference) -> list[str]:
    fields = sorted(difference.fields.items())
    return [f"{name}: recorded {want}, replayed {got}" for name, (want, got) in fields]


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m hisparse_sim.validation.golden", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--engine", default="vllm-0.33", choices=ENGINES, help="whose traces")
    parser.add_argument("--only", default="*", help="names to replay (a glob)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    rows: list[Outcome] = []
    code = 0
    try:
        for outcome in replay_folder(args.folder, args.only, args.engine):
            rows.append(outcome)
            if not args.json:
                print(_as_text(outcome), flush=True)
    except HiSparseError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    if args.json:
        print(json.dumps([_as_json(outcome) for outcome in rows]), flush=True)
    if not code and all(outcome.missing for outcome in rows):
        print(f"nothing was compared: {args.folder} has no trace of {args.engine} for it", file=sys.stderr)
    return code or int(not all(outcome.equal or outcome.missing for outcome in rows))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
