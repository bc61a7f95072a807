"""How far a simulation is, or the reading of a workload, on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_EVERY_S = 0.1
_SPEED_OVER_S = 60.0
"""The time left is told from the requests of so many seconds: batches end together, and queues grow."""


@contextmanager
def progress_bar() -> Iterator[Callable[[float, int, int | None], None] | None]:
    """A bar on a terminal; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=14),
        TextColumn("{task.fields[done]} requests"),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, speed_estimate_period=_SPEED_OVER_S) as bar:
        task = bar.add_task("simulating", total=None, done="0")
        next_s = 0.0

        def progress(now_s: float, over: int, expected: int | None) -> None:
            nonlocal next_s
            if time.monotonic() < next_s:
                return
            next_s = time.monotonic() + _EVERY_S
            done = f"{over:,}" if expected is None else f"{over:,} of {expected:,}"
            bar.update(
                task,
                completed=over,
                total=expected,
                description=f"{now_s:,.0f} s simulated",
                done=done,
            )

        yield progress


@contextmanager
def request_counter(what: str) -> Iterator[Callable[[int], None] | None]:
    """How many requests were read, on a terminal; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what)
        yield lambda requests: bar.update(task, description=f"{what}: {requests:,} requests")


@contextmanager
def spinner(what: str) -> Iterator[None]:
    """Something that takes a while is under way, on a terminal; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


@contextmanager
def counted_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """How many of how many are done, and the time left, on a terminal; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
