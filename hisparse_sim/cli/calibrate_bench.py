"""``hisparse-sim calibrate build`` and ``run``: the CUDA benchmarks, made and run on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

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
    typer.echo(f"nvcc {built.build.nvcc}, sm_{built.build.architecture}: {made}: {built.library}")
