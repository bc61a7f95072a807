"""``hisparse-sim calibrate build`` and ``run``: the CUDA benchmarks, made and run on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from hisparse_sim.cli.flags import named_path
from hisparse_sim.errors import InputError

Nvcc = Annotated[str | None, typer.Option("--nvcc", metavar="PATH", help="The CUDA compiler to use.")]


def build(
    nvcc: Nvcc = None,
    architecture: Annotated[
        str, typer.Option("--arch", help="GPU architectures, with commas: 90a is Hopper.")
    ] = "90a",
) -> None:
    """Compile the benchmarks' CUDA library into the cache, and show what each kernel takes."""
    from hisparse_sim.calibration.bench.build import build as build_library

    built = build_library(nvcc=nvcc, architecture=architecture)
    typer.echo(f"{'registers':>9}  {'spilled':>7}  {'shared':>7}  kernel")
    for kernel in sorted(built.kernels, key=lambda k: k.name):
        typer.echo(f"{kernel.registers:9}  {kernel.spilled_bytes:7}  {kernel.shared_bytes:7}  {kernel.name}")
    made = "built" if built.fresh else "was built before"
    typer.echo(f"nvcc {built.build.nvcc}, sm_{built.build.architecture}: {made}: {built.path}")


CHECK_FAILED = 1
"""Exit code when a kernel did not pass its check; what depends on it was not timed."""

NO_GPU = 3
"""Exit code of a run on a machine without a GPU that could be measured."""


def run(
    budget_s: Annotated[
        float,
        typer.Option(
            "--budget", metavar="S", min=1.0, max=86_400.0, help="Wall time for all of it, in seconds."
        ),
    ] = 170.0,
    out: Annotated[
        str, typer.Option("--out", metavar="FILE", help="Samples file; written again after each benchmark.")
    ] = "samples.json",
    nvcc: Nvcc = None,
) -> None:
    """Measure this machine's GPU: build, check every kernel, time it; exit code 3 without a GPU."""
    import sys

    from hisparse_sim.calibration.bench.gpu import NoGpu
    from hisparse_sim.calibration.bench.suite import run as run_suite
    from hisparse_sim.calibration.bench.table import table

    path = check_writable(named_path(out))
    quiet = not sys.stderr.isatty()
    try:
        samples = run_suite(
            path, budget_s=budget_s, nvcc=nvcc, say=lambda text: None if quiet else typer.echo(text, err=True)
        )
    except NoGpu as none:
        typer.echo(f"error: {none}", err=True)
        raise typer.Exit(NO_GPU) from None
    for line in table(samples):
        typer.echo(line)
    typer.echo(f"\n{len(samples.measured)} of {len(samples.samples)} points measured: {path}")
    if not all(check.passed for check in samples.checks):
        raise typer.Exit(CHECK_FAILED)


def check_writable(path: Path) -> Path:
    """``path``, if a file can be written there. Raises ``InputError`` before anything long begins."""
    if path.is_dir():
        raise InputError("is a folder; name a file", where=f"--out {path}")
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {path.parent}", where=f"--out {path}")
    if not os.access(path.parent, os.W_OK):
        raise InputError("cannot be written", where=f"--out {path}")
    return path
