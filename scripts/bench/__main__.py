"""Time and memory of whole commands: ``.venv/bin/python scripts/bench [--profile]``.

Prints a table and writes it to results/bench.md. Nothing here passes or fails. ``--profile`` also shows
where the agentic run spends its time.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-c", "from hisparse_sim.cli.main import main; main()"]
RUN = ["run", "agentic-13turn-8xh200", "--concurrency", "32", "--no-plots"]


class Usage(NamedTuple):
    """What one process took."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def measure(arguments: Sequence[str]) -> Usage:
    """Run a hisparse-sim command and ask the kernel what it took. Exits if the command fails."""
    start = time.perf_counter()
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr
    said = process.stderr.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - start
    if status:
        sys.exit(f"hisparse-sim {' '.join(arguments)} failed:\n{said}")
    # Linux counts in KiB, macOS in bytes.
    peak_bytes = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Usage(wall_s, used.ru_utime + used.ru_stime, peak_bytes / 1e6)


def machine() -> str:
    """CPU, cores and Python."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line
        ]
        model = names[0] if names else model
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}"


def table(folder: Path, repeats: int) -> str:
    """Median of ``repeats`` of each command, as Markdown."""
    rows = ["| command | wall s | CPU s | peak MB |", "|---|---|---|---|"]
    commands = {
        "--help": ["--help"],
        "estimate --model glm-5.3 --node 8xh200": ["estimate", "--model", "glm-5.3", "--node", "8xh200"],
    }
    for mode in ("hisparse", "offload"):
        out = str(folder / mode)
        commands[f"{' '.join(RUN)} --mode {mode}"] = [*RUN, "--mode", mode, "--out", out]
    for name, arguments in commands.items():
        usages = [measure(arguments) for _ in range(repeats)]
        wall_s, cpu_s, peak_mb = (sorted(column)[repeats // 2] for column in zip(*usages, strict=True))
        rows.append(f"| `{name}` | {wall_s:.2f} | {cpu_s:.2f} | {peak_mb:.0f} |")
    return "\n".join(rows)


def profile(folder: Path) -> None:
    """Print the functions in which the agentic run spends most time."""
    statistics = folder / "profile"
    code = COMMAND[2]
    arguments = [*RUN, "--mode", "hisparse", "--out", str(folder / "profiled")]
    script = folder / "profiled.py"
    script.write_text(code)
    command = [sys.executable, "-m", "cProfile", "-o", str(statistics), str(script), *arguments]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    import pstats

    pstats.Stats(str(statistics)).sort_stats("tottime").print_stats(15)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Time and memory of whole commands.")
    parser.add_argument(
        "--profile", action="store_true", help="also show where the agentic run spends its time"
    )
    parser.add_argument("--repeats", type=int, default=3, help="take the median of so many (default 3)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        text = f"{machine()}\n\n{table(Path(name), max(1, options.repeats))}\n"
        print(text)
        results = ROOT / "results"
        results.mkdir(exist_ok=True)
        (results / "bench.md").write_text(text)
        if options.profile:
            profile(Path(name))


if __name__ == "__main__":
    main()
