"""Flags about traces that ``run`` and ``workload`` have in common."""

from __future__ import annotations

from typing import Annotated

import typer

Format = Annotated[str | None, typer.Option(help="Of the trace; else told from its content.")]
Scale = Annotated[
    float | None, typer.Option(help="Times of the trace so many times as long; 0.5 is twice as fast.")
]
From = Annotated[float | None, typer.Option(help="Second of the trace to begin at.")]
To = Annotated[float | None, typer.Option(help="Second of the trace to end before.")]
Repeat = Annotated[int | None, typer.Option(help="Play the trace so many times.")]
SkipBadLines = Annotated[int | None, typer.Option(help="Leave out up to so many lines that cannot be used.")]

FLAGS = {
    "format": "--trace-format",
    "time_scale": "--trace-scale",
    "from_s": "--trace-from",
    "to_s": "--trace-to",
    "repeat": "--trace-repeat",
    "skip_bad_lines": "--skip-bad-lines",
}
"""The flag of each field of a trace."""
GENERATED = "is for traces; this scenario's requests are generated"
"""What is wrong with such a flag otherwise."""
