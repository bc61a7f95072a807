"""A whole run: build, check, measure in order of value, within a budget of wall time.

Everything that touches the GPU is in processes of its own (``worker``). The samples file is written
again whenever a benchmark ends, so that a run that is killed leaves what it had.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import hisparse_sim
from hisparse_sim.calibration.bench.benchmarks import GROUPS, Group
from hisparse_sim.calibration.bench.build import build
from hisparse_sim.calibration.bench.checks import CHECKS
from hisparse_sim.calibration.bench.driver import find_gpu
from hisparse_sim.calibration.bench.gpu import NoGpu
from hisparse_sim.calibration.bench.points import untaken
from hisparse_sim.calibration.bench.toolchain import ToolMissing, find_toolchain
from hisparse_sim.calibration.samples import Check, Sample, Samples, write_samples
from hisparse_sim.cost.hardware import Build, Hardware
from hisparse_sim.errors import HiSparseError

Say = Callable[[str], None]

SILENT_S = 25.0
"""A process that tells nothing for so long hangs; the longest silence is while memory is pinned."""
GRACE_S = 8.0
"""Beyond its time a group may finish the point it is at; then its process is ended."""
LEAST_S = 3.0
"""A group with less time than that is not begun: it would only start up."""
END_S = 3.0
"""Kept for the last look at the clocks."""


class Run:
    """One run and what it has so far. ``command`` makes a process's command from its arguments."""

    def __init__(
        self,
        out: Path,
        *,
        budget_s: float,
        say: Say = lambda _: None,
        command: Callable[[list[str]], list[str]] | None = None,
    ) -> None:
        self._out = out
        self._stop = time.monotonic() + budget_s - END_S
        self._say = say
        self._command = command or _worker_command
        self.samples = Samples(hardware=Hardware(gpu="unknown"))

    def measure(self, library: Path, built: Build) -> Samples:
        """Check and measure with a built library; the samples are in the file, too."""
        self._extend(write=False, created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), build=built)
        self._identify(library)
        checks = self._check(library)
        self._extend(checks=checks)
        passed = {check.name for check in checks if check.passed}
        for at, group in enumerate(GROUPS):
            failed = [name for name in group.checks if name not in passed]
            if failed:
                why = f"the check of {', '.join(failed)} did not pass, so nothing was timed"
                self._give_up(group, "failed", why)
                continue
            shares = sum(g.share for g in GROUPS[at:])
            seconds = (self._stop - time.monotonic()) * group.share / shares
            if seconds < LEAST_S:
                self._give_up(group, "truncated", "the budget was used up")
                continue
            self._say(f"{group.name}: {seconds:.0f} s")
            self._measure(library, group, time.monotonic() + seconds)
        # Clocks and link as they are when the GPU has just worked.
        self._identify(library)
        return self.samples

    def note(self, text: str) -> None:
        """A remark for whoever reads the samples."""
        self._extend(write=False, notes=(*self.samples.notes, text))

    def _identify(self, library: Path) -> None:
        for key, value in self._lines(library, ["machine"]):
            if key == "hardware":
                self._extend(hardware=Hardware.model_validate(value))
            elif key == "died" and self.samples.hardware.gpu == "unknown":
                raise NoGpu(f"the GPU cannot be used: {value}")

    def _check(self, library: Path) -> tuple[Check, ...]:
        """All checks, in a process that is begun again behind one that does not come back."""
        left = list(CHECKS)
        done: list[Check] = []

        def add(check: Check) -> None:
            done.append(check)
            left.pop(0)
            self._say(f"check of {check.name}: {'passed' if check.passed else 'FAILED'}")

        while left:
            why = "its process told nothing of it"
            for key, value in self._lines(library, ["check", *left]):
                if key == "check":
                    add(Check.model_validate(value))
                elif key == "died":
                    why = str(value)
            if left:
                name = left[0]
                add(Check(name=name, reference=CHECKS[name][1], cases=0, passed=False, detail=why))
        return tuple(done)

    def _measure(self, library: Path, group: Group, until_s: float) -> None:
        seen: list[str] = []
        for key, value in self._lines(library, [group.name, f"{until_s:.3f}"], until_s + GRACE_S):
            if key == "sample":
                sample = Sample.model_validate(value)
                if seen and seen[-1] != sample.name:
                    self._write()
                seen.append(sample.name)
                self._add(sample)
            elif key == "note":
                self.note(str(value))
            elif key == "died":
                name = seen[-1] if seen else next(iter(group.benchmarks))
                seen.append(name)
                self._add(untaken(name, {}, "failed", str(value)))
        for name in group.benchmarks:
            if name not in seen:
                self._add(untaken(name, {}, "truncated", "its group's time was up, or its process ended"))
        self._write()

    def _give_up(self, group: Group, status: str, why: str) -> None:
        for name in group.benchmarks:
            self._add(untaken(name, {}, status, why))
        self._write()

    def _add(self, sample: Sample) -> None:
        self._extend(write=False, samples=(*self.samples.samples, sample))

    def _extend(self, *, write: bool = True, **fields: Any) -> None:
        self.samples = self.samples.model_copy(update=fields)
        if write:
            self._write()

    def _write(self) -> None:
        write_samples(self._out, self.samples)

    def _lines(
        self, library: Path, arguments: list[str], until_s: float = math.inf
    ) -> Iterator[tuple[str, Any]]:
        """What a process tells. Last, if it failed, hung or ran over its time: ``died`` and why."""
        lines: queue.Queue[str | None] = queue.Queue()
        with (
            tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
            subprocess.Popen(
                self._command([str(library), *arguments]),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=_environment(),
                start_new_session=True,  # Ctrl-C is for this process, which ends the other
            ) as process,
        ):
            reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
            reader.start()
            try:
                if (yield from _told(lines, until_s)):
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(SILENT_S)
            finally:
                if process.poll() is None:
                    process.kill()
                reader.join()
            code = process.wait()
            errors.seek(0)
            said = [line for line in errors.read().splitlines() if line.strip()]
        if code != 0:
            # The last line of a traceback, less the name of the class.
            yield "died", re.sub(r"^[\w.]+: ", "", said[-1])[:300] if said else _ending(code)


def _read(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in stream:
        if line.endswith("\n"):  # else it was ended within the line
            lines.put(line)
    lines.put(None)


def _told(lines: queue.Queue[str | None], until_s: float) -> Generator[tuple[str, Any], None, bool]:
    """The lines of a process until it ends (true), is silent too long or its time is up (false)."""
    while True:
        try:
            line = lines.get(timeout=max(0.0, min(SILENT_S, until_s - time.monotonic())))
        except queue.Empty:
            return False
        if line is None:
            return True
        ((key, value),) = json.loads(line).items()
        yield key, value


def _ending(code: int) -> str:
    if code == -signal.SIGKILL:
        return "its process hung, or ran over its time, and was ended"
    return f"its process ended with {'signal' if code < 0 else 'exit code'} {abs(code)}"


def _worker_command(arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", "hisparse_sim.calibration.bench.worker", *arguments]


def _environment() -> dict[str, str]:
    """This process's, with this package found whether it is installed or not."""
    root = str(Path(hisparse_sim.__file__).resolve().parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}


def run(out: Path, *, budget_s: float, nvcc: str | None, say: Say) -> Samples:
    """Build for this machine's GPU, check and measure. Raises ``NoGpu`` and ``HiSparseError``."""
    begun = time.monotonic()
    gpu = find_gpu()
    tools = find_toolchain(nvcc)
    if int(tools.version.split(".")[0]) > gpu.cuda[0]:
        raise ToolMissing(
            f"the NVIDIA driver is too old: it knows CUDA {gpu.cuda[0]}.{gpu.cuda[1]}, and nvcc is "
            f"{tools.version}; update the driver, or name an nvcc of CUDA {gpu.cuda[0]} with --nvcc"
        )
    say(f"building for sm_{gpu.architecture} with nvcc {tools.version}")
    built = build(nvcc=nvcc, architecture=gpu.architecture)
    left = budget_s - (time.monotonic() - begun)
    if left <= 0:
        raise HiSparseError(
            f"the build alone took longer than {budget_s:g} s; run it again", where="--budget"
        )
    made = Run(out, budget_s=left, say=say)
    if spilling := [k.name for k in built.kernels if k.spilled_bytes]:
        made.note(
            f"spill registers on sm_{gpu.architecture}, so their times are too long: {', '.join(spilling)}"
        )
    return made.measure(built.path, built.build)
