"""From ``csrc`` to a library in the user's cache, once for each state of sources, flags and compiler."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from hisparse_sim.calibration.bench.toolchain import Toolchain, find_toolchain
from hisparse_sim.cost.hardware import Build
from hisparse_sim.errors import HiSparseError, InputError

SOURCES = Path(__file__).resolve().parent.parent / "csrc"
LIBRARY = "libhisparse.so"
DEFAULT_ARCHITECTURE = "90a"

WRITTEN_FOR = ("90", "90a")

FLAGS = (
    *("-O3", "-std=c++17", "-lineinfo", "--shared", "-cudart=static", "-Xptxas=-v"),
    "-Xcompiler=-fPIC,-fvisibility=hidden,-static-libstdc++,-static-libgcc",
)


@dataclass(frozen=True, slots=True)
class Kernel:
    """What ptxas says of one kernel."""

    name: str
    registers: int
    spilled_bytes: int
    shared_bytes: int
    """Static only; what a launch adds is not known here."""


@dataclass(frozen=True, slots=True)
class Built:
    """A library, how it was built, and what its kernels take."""

    path: Path
    build: Build
    kernels: tuple[Kernel, ...]
    fresh: bool
    """Compiled just now, not found in the cache."""


def build(*, nvcc: str | None = None, architecture: str = DEFAULT_ARCHITECTURE) -> Built:
    """The library for ``architecture`` (``90a``, or several with commas). Raises ``HiSparseError``.

    Kernels that spill registers to memory are refused on Hopper, for which they are written: their times
    would be those of the spills. Elsewhere a run notes them.
    """
    if not re.fullmatch(r"\d{2,3}a?(,\d{2,3}a?)*", architecture):
        raise InputError(f"{architecture!r} is not of the form 90a or 90a,100", where="--arch")
    tools = find_toolchain(nvcc)
    sources = source_sha256()
    flags = flags_for(architecture, tools)
    key = hashlib.sha256(f"{sources} {flags} {tools.version} {tools.host_version}".encode()).hexdigest()[:20]
    folder = cache_folder() / key
    library = folder / LIBRARY
    fresh = not library.is_file()
    if fresh:
        _compile(tools, flags, folder)
    kernels = tuple(Kernel(**k) for k in json.loads((folder / "kernels.json").read_text(encoding="utf-8")))
    spilling = [k.name for k in kernels if k.spilled_bytes]
    if spilling and not set(WRITTEN_FOR).isdisjoint(architecture.split(",")):
        raise HiSparseError(
            f"these kernels spill registers, so their times would mislead: {', '.join(spilling)}"
        )
    return Built(library, _record(tools, flags, architecture, sources, library), kernels, fresh)


def flags_for(architecture: str, tools: Toolchain | None = None) -> list[str]:
    """The compiler's flags, all but input and output."""
    codes = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in architecture.split(",")]
    extra = ["-L", str(tools.libraries)] if tools and tools.libraries else []
    return [*FLAGS, *codes, *extra]


def source_sha256() -> str:
    """Over the names and contents of all sources."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def cache_folder() -> Path:
    """Where libraries are kept: ``$XDG_CACHE_HOME/hisparse-sim``, or ``~/.cache/hisparse-sim``."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "hisparse-sim"


def read_kernels(report: str) -> list[Kernel]:
    """Registers and spills of every kernel from what ``ptxas -v`` printed, in its order.

    A kernel that was compiled for several architectures appears once for each.
    """
    kernels = []
    name, spilled = "", 0
    for line in report.splitlines():
        if match := re.search(r"(?:Compiling entry function|Function properties for) '?(\w+)", line):
            name = readable(match[1])
        elif match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spilled = int(match[1]) + int(match[2])
        elif match := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            kernels.append(Kernel(name, int(match[1]), spilled, int(shared[1]) if shared else 0))
            spilled = 0
    return kernels


def readable(mangled: str) -> str:
    """``gather_rows<656,4>`` of ``_ZN8hisparse11gather_rowsILi656ELi4EEEvNS_6GatherE``."""
    match = re.match(r"_ZN8hisparse(\d+)", mangled)
    if not match:
        return mangled
    start = match.end()
    end = start + int(match[1])
    values = re.match(r"I((?:L[a-z]+\d+E)+)E", mangled[end:])
    return mangled[start:end] + (f"<{','.join(re.findall(r'[0-9]+', values[1]))}>" if values else "")


def _compile(tools: Toolchain, flags: list[str], folder: Path) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".building-"))
    except OSError as error:
        raise HiSparseError(
            f"cannot be written: {error.strerror}; set XDG_CACHE_HOME to a folder that can",
            where=str(folder.parent),
        ) from None
    try:
        inputs = [
            "-ccbin",
            str(tools.host_compiler),
            str(SOURCES / "library.cu"),
            "-o",
            str(scratch / LIBRARY),
        ]
        command = [str(tools.nvcc), *flags, *inputs]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        report = done.stdout + done.stderr
        if done.returncode != 0:
            wrong = [
                line for line in report.splitlines() if "error" in line.lower() or "fatal" in line.lower()
            ]
            raise HiSparseError(f"nvcc {tools.version} failed: {' | '.join(wrong[:3]) or report[-300:]}")
        kernels = [asdict(k) for k in read_kernels(report)]
        (scratch / "kernels.json").write_text(json.dumps(kernels, indent=1), encoding="utf-8")
        (scratch / "build.log").write_text(report, encoding="utf-8")
        if folder.exists():  # another process was faster
            return
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _record(tools: Toolchain, flags: list[str], architecture: str, sources: str, library: Path) -> Build:
    from hisparse_sim import __version__

    return Build(
        tool_version=__version__,
        git=_git_commit(),
        source_sha256=sources,
        library_sha256=hashlib.sha256(library.read_bytes()).hexdigest(),
        nvcc=tools.version,
        host_compiler=tools.host_version,
        architecture=architecture,
        flags=" ".join(flags),
    )


def _git_commit() -> str:
    """The last commit that changed the sources; empty outside a clone of them."""
    command = ["git", "-C", str(SOURCES), "log", "-1", "--format=%H", "--", "."]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
