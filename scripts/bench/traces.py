"""Recorded traffic, whole; and a trace too large for memory, described."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.markdown import markdown
from bench.process import Usage, run
from bench.repeats import alternate, spread
from bench.setup import Setup, Skip

NAME = "traces"
ABOUT = """\
As processes: recorded traffic through `run agentic-13turn-8xh200 --no-plots` (GLM-5.3, HiSparse), and
`workload describe` of the Mooncake trace repeated, later and with content of its own each time."""
SIZES_BYTES = (100_000_000, 1_000_000_000)


class Found(NamedTuple):
    """What one case took, each time; ``size_bytes`` of what was only read, else 0."""

    name: str
    size_bytes: int
    usages: Sequence[Usage]


def measure(setup: Setup) -> list[Found]:
    """All cases. Raises Skip without recorded traces."""
    folder = setup.traces
    if folder is None:
        raise Skip("no folder of recorded request streams beside this checkout; name one with --traces")
    mooncake, sessions = folder / "mooncake_conversation.jsonl", folder / "kv-cache-tester"
    if missing := [str(path) for path in (mooncake, sessions) if not path.exists()]:
        raise Skip(f"{' and '.join(missing)}: not there")
    cases: dict[str, Callable[[], Usage]] = {}
    for name, path in (("mooncake, run", mooncake), ("kv-cache-tester, run", sessions)):
        out = setup.work / path.stem
        cases[name] = partial(run, [*_RUN, "--trace", str(path), "--out", str(out)])
    sizes = {}
    for size in SIZES_BYTES:
        setup.say(f"making a trace of {size / 1e9:g} GB")
        made = setup.work / f"repeated-{size}.jsonl"
        repeat_mooncake(mooncake, made, size)
        name = f"mooncake to {size / 1e9:g} GB, described"
        cases[name] = partial(run, ["workload", "describe", str(made)])
        sizes[name] = made.stat().st_size
    try:
        found = alternate(cases, setup)
    finally:
        for made in setup.work.glob("repeated-*.jsonl"):
            made.unlink()
    return [Found(name, sizes.get(name, 0), usages) for name, usages in found.items()]


_RUN = ["run", "agentic-13turn-8xh200", "--no-plots"]


def repeat_mooncake(source: Path, target: Path, size_bytes: int) -> None:
    """Copies of a Mooncake trace, one after the other and with ids of their own, until ``size_bytes``.

    The number of the copy, from 1, is put before times and ids, which are filled up with zeros to the same
    number of digits: so a copy begins at a power of ten of milliseconds, and ids stay below 2^31 for 1 GB.
    """
    text = _marked(rb'(?<="timestamp": )\d+', source.read_bytes())
    text = _marked(rb'(?<="hash_ids": \[)[^]]*', text)
    written, copy = 0, 1
    with target.open("wb") as file:
        while written < size_bytes:
            written += file.write(text.replace(b"@", b"%d" % copy))
            copy += 1


def _marked(numbers: bytes, text: bytes) -> bytes:
    """An @ and zeros before each number in what the pattern ``numbers`` matches."""
    most = max(len(number) for found in re.findall(numbers, text) for number in found.split(b", "))
    return re.sub(
        numbers, lambda found: b", ".join(b"@" + n.zfill(most) for n in found[0].split(b", ")), text
    )


def table(found: Sequence[Found]) -> str:
    """A row a case."""
    rows = []
    for name, size, usages in found:
        wall_s, cpu_s, peak_mb = map(spread, zip(*usages, strict=True))
        speed = f"{spread(size / 1e6 / one.cpu_s for one in usages):.0f}" if size else "–"
        rows.append([name, f"{wall_s:.1f}", f"{cpu_s:.1f}", speed, f"{peak_mb:.0f}"])
    return markdown(["trace", "wall s", "CPU s", "MB per CPU s", "peak MB"], rows)
