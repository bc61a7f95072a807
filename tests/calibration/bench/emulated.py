"""Builds the kernels for the host."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hisparse_sim.calibration.bench.library import Library

EMULATION = Path(__file__).parent / "emulation"


def emulate(sources: Path, into: Path, *, optimise: str = "-O2") -> Library:
    """The kernels of ``sources`` as a library that runs them on the host."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not on this machine")
    library = into / "libemulation.so"
    flags = [
        optimise,
        "-std=c++17",
        "-fPIC",
        "-shared",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-unknown-pragmas",
    ]
    command = [compiler, *flags, f"-I{EMULATION}", f"-I{sources}", EMULATION / "emulation.cpp", "-o", library]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    made = Library(library)
    made.open()
    return made
