"""Where the figures come from: machine, version, and what else was running."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

from bench.setup import ROOT


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


def version() -> str:
    """The package's, with the commit if there is one."""
    from hisparse_sim import __version__

    try:
        git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
        commit = subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return f"hisparse-sim {__version__}"
    return f"hisparse-sim {__version__} ({commit})"


def load() -> str:
    """Processes that want a core, over the last minute."""
    return f"{os.getloadavg()[0]:.1f}"
