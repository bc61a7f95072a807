"""Replay recorded traces of vLLM's own scheduler through this package's, and compare every step.

``python -m hisparse_sim.validation.golden DIR [--engine vllm-0.33|vllm-0.30] [--only GLOB] [--json]``
takes a folder with ``scenarios/NAME.json`` and ``v033/NAME.jsonl[.gz]`` or ``v030/…``; a trace begins
with a line of facts about the engine, ends with a line of totals and has the steps between. An engine
that died must die at the same step with the same words. Prints one line a trace. Exit code 0: all
equal; 1: some differ or cannot be read; 2: no such folder.
"""

from __future__ import annotations

import argparse
import fnmatch
import gzip
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hisparse_sim.errors import HiSparseError, InputError
from hisparse_sim.validation.replay import Replay, Totals

ENGINES = {"vllm-0.33": "v033", "vllm-0.30": "v030"}
"""The engines that traces were recorded from, and where a folder keeps them."""

APART = ("flushed", "ext")
"""Fields compared, but counted apart: the recording does not pin them down fully."""

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
    error: str | None = None
    missing: bool = False
    """There is no trace to compare with; not counted as different."""

    @property
    def equal(self) -> bool:
        """Whether everything recorded was replayed."""
        return self.difference is None and self.error is None


def read_trace(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The records of a trace with their line numbers. Raises InputError, with the line."""
    open_ = gzip.open if path.suffix == ".gz" else open
    try:
        with open_(path, "rt", encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                where = f"{path}:{number}"
                try:
                    record = json.loads(text)
                except json.JSONDecodeError as e:
                    raise InputError(f"not JSON: {e.msg}", where=where) from None
                if not isinstance(record, dict):
                    raise InputError("not a JSON object", where=where)
                if "kind" not in record and "step" not in record and "steps" not in record:
                    raise InputError("neither a step nor facts nor totals", where=where)
                yield number, record
    except (OSError, EOFError, UnicodeDecodeError) as e:
        raise InputError(f"cannot be read: {e}", where=str(path)) from None


def compare(scenario: dict[str, Any], trace: Path, engine: str = "vllm-0.33") -> Outcome:
    """Replay ``scenario`` and compare it with ``trace``, merged steps expanded.

    Raises InputError for a trace that is no trace.
    """
    name = trace.name.split(".")[0]
    records = read_trace(trace)
    _, config = next(records, (0, {}))
    if config.get("kind") != "config":
        raise InputError("does not begin with the engine's facts", where=f"{trace}:1")
    replay = Replay(scenario, config, version=engine.removeprefix("vllm-"))
    fields = _unequal("config", config, replay.facts)
    if fields:
        return Outcome(name, difference=Difference(None, fields))
    lines = replay.lines()
    totals = Totals()
    steps = apart = 0
    for number, record in records:
        if record.get("kind") == "totals":
            difference = None
            if record.get("error") != "max_steps":  # the recording itself was cut there
                extra = next(lines, None)
                if extra is not None:
                    difference = Difference(extra["step"], {"step": (None, extra["step"])})
                elif fields := _unequal("totals", record, totals.record(replay)):
                    if replay.died:  # it died within a step: the sums hold a part of that
                        fields = {k: v for k, v in fields.items() if k == "totals error"}
                    difference = Difference(None, fields) if fields else None
            return Outcome(name, steps, difference, apart)
        try:
            first, last = record.get("steps") or (record["step"], record["step"])
            span = range(first, last + 1)
        except (KeyError, TypeError, ValueError):
            raise InputError(
                "`steps` must be [first, last], `step` a number", where=f"{trace}:{number}"
            ) from None
        for step in span:
            line = next(lines, None)
            fields = _differences({**record, "step": step}, line)
            if line is None or fields.keys() - set(APART):
                fields = {k: v for k, v in fields.items() if k not in APART}
                return Outcome(name, steps, Difference(step, fields), apart)
            apart += bool(fields)
            totals.add(line)
            steps += 1
    raise InputError("ends before its totals: cut off", where=str(trace))


def _unequal(what: str, want: dict[str, Any], got: dict[str, Any]) -> Fields:
    """Facts or totals that were recorded and replayed, and differ; nested ones one by one."""
    fields: Fields = {}
    for key in want.keys() & got.keys():
        a, b = want[key], got[key]
        if isinstance(a, dict) and isinstance(b, dict):
            fields.update(_unequal(f"{what} {key}", a, b))
        elif a != b:
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
    scenarios = sorted((folder / "scenarios").glob("*.json"))
    if not scenarios:
        raise InputError("no scenarios/*.json here", where=str(folder))
    scenarios = [p for p in scenarios if fnmatch.fnmatch(p.stem, only)]
    if not scenarios:
        raise InputError(f"{only}: no scenario of that name in {folder}", where="--only")
    for path in scenarios:
        traces = [folder / ENGINES[engine] / f"{path.stem}.jsonl{gz}" for gz in (".gz", "")]
        found = next((t for t in traces if t.exists()), None)
        if found is None:
            yield Outcome(path.stem, error="no trace for this engine", missing=True)
            continue
        try:
            scenario = json.loads(path.read_text(encoding="utf-8"))
            yield compare(scenario, found, engine)
        except HiSparseError as e:
            yield Outcome(path.stem, error=str(e))
        except (OSError, ValueError) as e:
            yield Outcome(path.stem, error=f"{path}: cannot be read: {e}")
        except (LookupError, TypeError, AttributeError) as e:
            yield Outcome(path.stem, error=f"{path}: not a scenario to replay: {e!r}")


def _as_json(outcome: Outcome) -> dict[str, Any]:
    d = outcome.difference
    return {
        "name": outcome.name,
        "equal": outcome.equal,
        "steps": outcome.steps,
        "first_difference": d and {"step": d.step, "fields": d.fields},
        "apart": outcome.apart,
        "error": outcome.error,
    }


def _as_text(outcome: Outcome) -> str:
    if outcome.error:
        return f"{outcome.name}: {outcome.error}"
    d = outcome.difference
    if d is None:
        apart = f" ({outcome.apart} apart)" if outcome.apart else ""
        return f"{outcome.name}: equal {outcome.steps} steps{apart}"
    where = "outside its steps" if d.step is None else f"at step {d.step}"
    fields = [f"  {f}: recorded {want}, replayed {got}" for f, (want, got) in sorted(d.fields.items())]
    return "\n".join([f"{outcome.name}: differs {where}", *fields])


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m hisparse_sim.validation.golden", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--engine", default="vllm-0.33", choices=ENGINES, help="whose traces")
    parser.add_argument("--only", default="*", help="names to replay (a glob)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    equal = True
    rows = []
    try:
        for outcome in replay_folder(args.folder, args.only, args.engine):
            equal &= outcome.equal or outcome.missing
            if args.json:
                rows.append(_as_json(outcome))
            else:
                print(_as_text(outcome), flush=True)
    except HiSparseError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(rows))
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
