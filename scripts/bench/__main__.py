"""Time and memory: ``.venv/bin/python scripts/bench [--only NAME] [--repeats N] [--profile]``.

Prints a section a benchmark and writes them to results/bench.md. Nothing here passes or fails. ``--profile``
also shows where the agentic run spends its time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import commands, curve, long, plain, scheduler, traces
from bench.machine import load, machine, version
from bench.process import COMMAND
from bench.setup import ROOT, Setup, Skip, find_golden, find_traces

BENCHMARKS = {module.NAME: module for module in (commands, scheduler, plain, long, curve, traces)}

PREAMBLE = """\
{machine}; {version}

Each row is measured {repeats}, the rows of a section in turn; figures are the median (least–most). Other
processes on the machine make CPU seconds longer, too: the load (processes that want a core, mean of a
minute) stands with each section. Nothing passes or fails here.
"""


def section(name: str, setup: Setup) -> str:
    """One benchmark as Markdown: what it is, its table, and how busy the machine was."""
    benchmark = BENCHMARKS[name]
    before, start = load(), time.perf_counter()
    try:
        shown = benchmark.table(benchmark.measure(setup))
    except Skip as reason:
        return f"## {name}\n\nSkipped: {reason}.\n"
    took_s = time.perf_counter() - start
    busy = f"Load {before} before, {load()} after; {took_s:.0f} s in all."
    return f"## {name}\n\n{benchmark.ABOUT}\n\n{shown}\n\n{busy}\n"


def profile(folder: Path) -> None:
    """Print the functions in which the agentic run spends most time."""
    statistics = folder / "profile"
    script = folder / "profiled.py"
    script.write_text(COMMAND[2])
    arguments = [*commands.RUN, "--mode", "hisparse", "--out", str(folder / "profiled")]
    command = [sys.executable, "-m", "cProfile", "-o", str(statistics), str(script), *arguments]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    import pstats

    pstats.Stats(str(statistics)).sort_stats("tottime").print_stats(15)


def options() -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Time and memory of hisparse-sim.")
    parser.add_argument(
        "--only", action="append", choices=BENCHMARKS, help="this one and no other; may be repeated"
    )
    parser.add_argument("--repeats", type=int, default=3, help="measure so many times (default 3)")
    parser.add_argument("--golden", type=Path, default=find_golden(), help="recorded scheduler traces")
    parser.add_argument("--traces", type=Path, default=find_traces(), help="recorded request streams")
    parser.add_argument(
        "--profile", action="store_true", help="also show where the agentic run spends its time"
    )
    return parser.parse_args()


def main() -> int:
    """Measure, print and write; what was measured stays if interrupted."""
    asked = options()
    repeats = max(1, asked.repeats)
    results = ROOT / "results"
    results.mkdir(exist_ok=True)
    times = "once" if repeats == 1 else f"{repeats} times"
    text = PREAMBLE.format(machine=machine(), version=version(), repeats=times)
    print(text)
    with tempfile.TemporaryDirectory() as name:
        setup = Setup(Path(name), results, repeats, asked.golden, asked.traces)
        try:
            for benchmark in asked.only or BENCHMARKS:
                text += f"\n{(found := section(benchmark, setup))}"
                print(found, flush=True)
                (results / "bench.md").write_text(text, encoding="utf-8")
            if asked.profile:
                profile(Path(name))
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
