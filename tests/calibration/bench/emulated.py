"""The library for the host: emulation/ stands in for the CUDA runtime, CUDA C++ and PTX."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hisparse_sim.calibration.bench.gpu import Library

EMULATION = Path(__file__).parent / "emulation"


def emulate(sources: Path, into: Path, *, optimise: str = "-O2") -> Library:
    """The kernels of ``sources`` as a library that runs them on the host."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not on this machine")
    library = into / "libemulation.so"
    flags = f"{optimise} -std=c++17 -fPIC -shared -Wall -Wextra -Werror -Wno-unknown-pragmas"
    instead = '-DHISPARSE_PTX_INSTEAD="ptx_on_host.h"'
    inputs = [f"-I{EMULATION}", instead, "-x", "c++", str(sources / "library.cu"), "-o", str(library)]
    command = [compiler, *flags.split(), *inputs]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    made = Library(library)
    made.open()
    return made
