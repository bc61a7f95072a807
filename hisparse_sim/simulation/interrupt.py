"""Ctrl-C, held back while something must not be cut in half."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread


@contextmanager
def held_interrupts() -> Iterator[Callable[[], bool]]:
    """Inside, Ctrl-C does nothing but turn what this yields to true.

    Where Python's own handler is not in place (another thread, a process started with interrupts
    ignored, a program with a handler of its own), nothing changes and it stays false.
    """
    pressed: list[int] = []
    if current_thread() is not main_thread() or signal.getsignal(signal.SIGINT) is not (
        signal.default_int_handler
    ):
        yield lambda: False
        return
    signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
