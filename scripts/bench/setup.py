"""What the benchmarks are given: where to work, how often, and the recordings that are there."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Skip(Exception):
    """A benchmark cannot be run here; says why."""


@dataclass(frozen=True, slots=True)
class Setup:
    """``work``: a folder that is removed afterwards; ``results``: one that stays."""

    work: Path
    results: Path
    repeats: int = 3
    golden: Path | None = None
    """Recorded scheduler traces: ``scenarios/``, ``v033/``."""
    traces: Path | None = None
    """Recorded request streams: ``mooncake_conversation.jsonl``, ``kv-cache-tester/``."""

    def say(self, what: str) -> None:
        """What is being measured now, on a terminal."""
        if sys.stderr.isatty():
            print(f"\r\033[K{what}", end="", file=sys.stderr, flush=True)


def beside(sign: str) -> Path | None:
    """A folder beside this checkout that contains the path ``sign``: (folder / sign).exists()."""
    return next((p for p in sorted(ROOT.parent.iterdir()) if (p / sign).exists()), None)


def find_golden() -> Path | None:
    """The folder ``golden`` of a folder beside this checkout."""
    found = beside("golden/scenarios")
    return found and found / "golden"


def find_traces() -> Path | None:
    """The folder ``traces`` of a folder beside this checkout."""
    found = beside("traces/mooncake_conversation.jsonl")
    return found and found / "traces"
