"""One process of a run: checks or one group of benchmarks, told line by line on stdout.

A kernel that hangs or faults takes its process with it, so each group has one of its own. Arguments: the
library, then ``machine``, ``check NAME...`` or ``GROUP UNTIL``, in seconds of ``time.monotonic``. Each line
is a JSON object with one key: ``hardware``, ``check``, ``sample`` or ``note``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hisparse_sim.calibration.bench.benchmarks import GROUPS, Group, points_of
from hisparse_sim.calibration.bench.checks import run_check
from hisparse_sim.calibration.bench.gpu import Library
from hisparse_sim.calibration.bench.machine import (
    hardware,
    host_pool_bytes,
    query_gpu,
    rates_of,
    stay_near,
)
from hisparse_sim.calibration.bench.operations import stream
from hisparse_sim.calibration.bench.points import Ground, take, untaken
from hisparse_sim.calibration.samples import Sample


def measure(
    group: Group, ground: Ground, until_s: float, clock: Callable[[], float] = time.monotonic
) -> Iterator[Sample | str]:
    """The samples of a group until ``until_s`` on the clock, and notes on how well a point repeats.

    The point that would have been next is said to be truncated.
    """
    again: set[str] = set()
    for name, point in points_of(group, ground):
        if clock() > until_s:
            yield untaken(name, point.parameters, "truncated", "the time was up")
            return
        sample = take(ground, name, point)
        yield sample
        if sample.median_s and name not in again and point.verify is None:
            again.add(name)
            second = take(ground, name, point)
            if second.median_s:
                apart = second.median_s / sample.median_s - 1
                yield f"{name} {point.parameters}: timed again at once, {apart:+.1%}"


def spin_up(library: Library) -> None:
    """Some 0.3 s of work, so that the GPU's clocks are up when the first point is timed."""
    with library.scope():
        memory = library.empty(1 << 30)
        library.run([stream(2, memory, memory, ctas=1024)] * 500)


def main(arguments: list[str]) -> int:
    """Do what the module says."""
    # Loading a kernel at its first launch can wait for the GPU, which may be waiting for the host.
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    path, what, *rest = arguments
    library = Library(Path(path))
    device = library.open()
    stay_near(device)
    if what == "machine":
        record = hardware(device, query_gpu(device.pci_bus.decode()))
        _say("hardware", record.model_dump(mode="json"))
    elif what == "check":
        for name in rest:
            check = run_check(library, name, full=True)
            _say("check", check.model_dump(mode="json"))
    else:
        group = next(g for g in GROUPS if g.name == what)
        scratch = library.empty(4 * max(int(device.l2_bytes), 1 << 20))
        flush = stream(0, scratch, scratch, ctas=4 * int(device.sms))
        ground = Ground(library, device, host_pool_bytes(), rates_of(device.name.decode()), flush)
        spin_up(library)
        for said in measure(group, ground, float(rest[0])):
            if isinstance(said, str):
                _say("note", said)
            else:
                _say("sample", said.model_dump(mode="json"))
        if reasons := hardware(device, query_gpu(device.pci_bus.decode())).throttle:
            _say("note", f"clocks were held down right after {what}: {', '.join(reasons)}")
    return 0


def _say(key: str, value: object) -> None:
    print(json.dumps({key: value}), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
