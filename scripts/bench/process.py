"""hisparse-sim as a process: what its user pays for, start-up included.

As it is from the second start on: with the package compiled, also where Python may not write that down.
"""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import hisparse_sim

COMMAND = [sys.executable, "-c", "from hisparse_sim.cli.main import main; main()"]


class Usage(NamedTuple):
    """What one process took."""

    wall_s: float
    cpu_s: float
    peak_mb: float


@cache
def _compile_package() -> None:
    compileall.compile_dir(Path(hisparse_sim.__file__).parent, quiet=2)


def run(arguments: Sequence[str]) -> Usage:
    """Run a hisparse-sim command and ask the kernel what it took. Exits if the command fails."""
    _compile_package()
    start = time.perf_counter()
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr
    with process.stderr as stderr:
        said = stderr.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if status:
        sys.exit(f"hisparse-sim {' '.join(arguments)} failed:\n{said}")
    # Linux counts in KiB, macOS in bytes.
    peak_bytes = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Usage(wall_s, used.ru_utime + used.ru_stime, peak_bytes / 1e6)
