"""nvcc and the C++ compiler that it needs: where they are, or one line on what to install."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hisparse_sim.errors import HiSparseError, InputError

OLDEST_NVCC = (12, 3)
"""sm_90a with all instructions used here; older ones were never tried."""


class ToolMissing(HiSparseError):
    """A program that the build needs is not on this machine; the message says what to install."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """``nvcc`` and its ``version`` (``13.0.88``), ``host_compiler`` and its first line of ``--version``."""

    nvcc: Path
    version: str
    host_compiler: Path
    host_version: str
    libraries: Path | None
    """Where the CUDA runtime's library is when nvcc itself would not look there (the pip packages)."""


def find_toolchain(nvcc: str | None = None) -> Toolchain:
    """The tools of this machine; ``nvcc`` names one instead of looking for it. Raises ``HiSparseError``."""
    found = _named(nvcc, "--nvcc") if nvcc else find_nvcc()
    host = _host_compiler()
    version = _nvcc_version(found)
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_NVCC:
        raise ToolMissing(
            f"nvcc {version} is too old: CUDA {OLDEST_NVCC[0]}.{OLDEST_NVCC[1]} or newer is needed",
            where=str(found),
        )
    beside = found.resolve().parent.parent / "lib"
    return Toolchain(
        nvcc=found,
        version=version,
        host_compiler=host,
        host_version=_first_line([str(host), "--version"]),
        libraries=beside if "site-packages" in beside.parts else None,
    )


def find_nvcc() -> Path:
    """nvcc from the environment, the PATH, the usual folder or the pip packages. Raises ``ToolMissing``."""
    for variable in ("HISPARSE_NVCC", "CUDACXX"):
        if name := os.environ.get(variable):
            return _named(name, f"${variable}")
    for candidate in _usual_places():
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    raise ToolMissing(
        "nvcc is not on this machine: install the CUDA toolkit or `pip install 'hisparse-sim[nvcc]'`, "
        "or name it with --nvcc or HISPARSE_NVCC"
    )


def pip_tool(name: str) -> Path | None:
    """A program out of NVIDIA's pip packages (``cuobjdump``), when they are installed."""
    for folder in sys.path:
        for tool in sorted(Path(folder or ".").glob(f"nvidia/cu*/bin/{name}"), reverse=True):
            return tool
    return None


def _usual_places() -> Iterator[Path]:
    if home := os.environ.get("CUDA_HOME"):
        yield Path(home) / "bin/nvcc"
    if on_path := shutil.which("nvcc"):
        yield Path(on_path)
    yield Path("/usr/local/cuda/bin/nvcc")
    if from_pip := pip_tool("nvcc"):
        yield from_pip


def _named(name: str, where: str) -> Path:
    path = shutil.which(name)
    if path is None:
        raise InputError(f"{name} is no program that can be run", where=where)
    return Path(path)


def _host_compiler() -> Path:
    named = os.environ.get("NVCC_CCBIN")
    if named and not (Path(named).is_dir() or shutil.which(named)):
        raise InputError(f"{named} is no program that can be run", where="$NVCC_CCBIN")
    compiler = (
        shutil.which("g++", path=named) if named and Path(named).is_dir() else shutil.which(named or "g++")
    )
    if compiler is None:
        raise ToolMissing(
            "g++ is not on this machine, and nvcc needs it: install it (Debian, Ubuntu: apt install g++), or "
            "name a C++ compiler with NVCC_CCBIN"
        )
    return Path(compiler)


def _nvcc_version(nvcc: Path) -> str:
    try:
        said = subprocess.run(
            [nvcc, "--version"], capture_output=True, text=True, check=False, timeout=60
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolMissing(f"cannot be run: {error}", where=str(nvcc)) from None
    if match := re.search(r"release [\d.]+, V([\d.]+)", said):
        return match[1]
    raise ToolMissing("does not tell a version, so it is no nvcc", where=str(nvcc))


def _first_line(command: list[str]) -> str:
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return said.splitlines()[0] if said else ""
