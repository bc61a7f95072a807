"""``hisparse-sim locality``: how selected rows repeat, from figures or recordings, and what then misses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hisparse_sim.cli import flags
from hisparse_sim.errors import InputError

if TYPE_CHECKING:
    from hisparse_sim.locality.file import Locality
    from hisparse_sim.locality.recording import Recording

app = typer.Typer(
    help="How selected rows repeat: fit, replay, plot, sample (docs/explanation/locality.md).",
    add_completion=False,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Context = Annotated[
    int | None,
    typer.Option("--context", metavar="TOKENS", min=1, help="In context at a recording's first step."),
]
Model = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="Check a recording's top-k against this model.")
]
RecordingFile = Annotated[
    Path,
    typer.Argument(parser=flags.named_path, metavar="FILE", help="Recorded positions, .npy or .parquet."),
]


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("fit")
def fit(
    source: Annotated[
        Path,
        typer.Argument(
            parser=flags.named_path,
            metavar="FILE",
            help="A recording (.npy, .parquet), or a table of published figures (.csv).",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            parser=flags.named_path,
            metavar="PATH",
            help="The locality file to write (.yaml); of a table the folder for one a model.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--id", help="Name of the locality of a recording.")] = None,
    said: Annotated[
        str | None, typer.Option("--source", metavar="TEXT", help="What a table's figures come from.")
    ] = None,
    context: Context = None,
    model: Model = None,
    as_json: Json = False,
) -> None:
    """Fit step overlap and tail, and say how far each figure is missed when it is left out."""
    if source.suffix.lower() == ".csv":
        from hisparse_sim.locality.figures import read_figures
        from hisparse_sim.locality.fit import localities

        _only_for_recordings({"--context": context, "--model": model, "--id": name})
        found = localities(
            read_figures(source), source=said or source.name, digest=_digest(source), file=source.name
        )
    else:
        from hisparse_sim.locality.recorded_fit import default_name, fit_recording

        if said is not None:
            raise InputError("is of a table of figures; a recording is its own source", where="--source")
        recording = _recording(source, context, model)
        with _layers(f"fitting {source.name}") as say:
            found = [
                fit_recording(
                    recording, name=name or default_name(source), digest=_digest(source), progress=say
                )
            ]
    if as_json:
        print(json.dumps([f.model_dump(mode="json", by_alias=True) for f in found], indent=2))
    else:
        for locality in found:
            print("\n".join(_fit_text(locality)))
    if out is not None:
        single = len(found) == 1 and out.suffix.lower() in (".yaml", ".yml")
        for locality in found:
            path = out if single else out / f"{locality.id}.yaml"
            _write(path, locality.text())
            print(path, file=sys.stderr)


@app.command("replay")
def replay(
    source: RecordingFile,
    hot_rows: Annotated[
        str | None,
        typer.Option(metavar="N,...", help="Buffers, in rows.", show_default="1, 2, 4 and 8 x top-k"),
    ] = None,
    policy: Annotated[str, typer.Option(metavar="NAME,...", help="lru, fifo, random, belady.")] = "lru",
    since: Annotated[
        int | None, typer.Option(metavar="STEP", min=0, help="First step counted.", show_default="half way")
    ] = None,
    resident: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of pages on the GPU, from the first on.")
    ] = 0.0,
    start: Annotated[
        str, typer.Option(help="What the buffer holds at first: empty or first-rows.")
    ] = "empty",
    against: Annotated[
        str | None, typer.Option(metavar="LOCALITY", help="Show what this one expects beside it.")
    ] = None,
    context: Context = None,
    model: Model = None,
    as_json: Json = False,
) -> None:
    """Put recorded selections through the exact hot buffer of the kernels, or of other policies."""
    from hisparse_sim.cli.locality_replay import replay_rows

    recording = _recording(source, context, model)
    sizes = _numbers(hot_rows, "--hot-rows") if hot_rows else [f * recording.topk_rows for f in (1, 2, 4, 8)]
    with _layers(f"replaying {source.name}") as say:
        rows = replay_rows(
            recording,
            sizes,
            _policies(policy),
            since=recording.steps // 2 if since is None else since,
            resident_share=resident,
            start=start,
            against=against,
            progress=say,
        )
    if as_json:
        print(json.dumps({"recording": str(source), "rows": [row._asdict() for row in rows]}, indent=2))
        return
    head = f"{'policy':8} {'hot rows':>9} {'lookups':>14} {'misses':>13} {'miss share':>10} {'by layer':>17}"
    print(head + (f" {'expected':>9}" if against else ""))
    for row in rows:
        line = (
            f"{row.policy:8} {row.hot_rows:>9,} {row.lookups:>14,} {row.misses:>13,} {row.miss_share:>10.4f} "
            f"{row.lowest:>8.4f} {row.highest:>8.4f}"
        )
        print(line + (f" {row.expected:>9.4f}" if row.expected is not None else ""))


@app.command("plot")
def plot(
    source: Annotated[
        str, typer.Argument(metavar="LOCALITY|FILE", help="A locality's name or file, or a recording.")
    ],
    out: Annotated[Path, typer.Option(parser=flags.named_path, metavar="FILE", help="A .png or .svg.")],
    context: Annotated[
        int | None, typer.Option("--context", metavar="ROWS", min=1, help="Rows in context.")
    ] = None,
    policy: Annotated[
        str, typer.Option(metavar="NAME,...", help="Replayed policies of a recording.")
    ] = "lru,fifo,random,belady",
) -> None:
    """Draw misses by buffer, resident share and steps since a transition; a recording with its replay."""
    from hisparse_sim.locality.file import load_locality
    from hisparse_sim.report.locality_plots import Point, draw, save

    if out.suffix.lower() not in (".png", ".svg"):
        raise InputError(f"ends in {out.suffix!r}; a picture ends in .png or .svg", where=str(out))
    points: list[Point] = []
    if Path(source).suffix.lower() in (".npy", ".parquet"):
        from hisparse_sim.cli.locality_replay import replay_rows
        from hisparse_sim.locality.recorded_fit import default_name, fit_recording

        path = Path(source)
        recording = _recording(path, context, None)
        with _layers(f"fitting {path.name}") as say:
            locality = fit_recording(recording, name=default_name(path), digest=_digest(path), progress=say)
        sizes = [f * recording.topk_rows for f in (1, 2, 4, 8)]
        with _layers(f"replaying {path.name}") as say:
            rows = replay_rows(recording, sizes, _policies(policy), since=recording.steps // 2, progress=say)
        points = [Point(row.policy, row.hot_rows, row.miss_share) for row in rows]
    else:
        locality = load_locality(source)
    figure = draw(
        locality, context_rows=context or locality.context_rows, points=points, points_are="replayed"
    )
    try:
        save(figure, out)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", where=str(out)) from None
    print(out)


@app.command("sample")
def sample(
    source: Annotated[str, typer.Argument(metavar="LOCALITY", help="A locality's name or file.")],
    out: Annotated[Path, typer.Option(parser=flags.named_path, metavar="FILE", help="The .npy to write.")],
    steps: Annotated[int, typer.Option(min=1, help="Decode steps.")] = 500,
    layers: Annotated[int, typer.Option(min=1, help="Layers, spread over the locality's classes.")] = 1,
    context: Annotated[
        int | None, typer.Option("--context", metavar="ROWS", min=1, help="Rows in context at first.")
    ] = None,
    topk: Annotated[int | None, typer.Option(min=1, help="Rows a step selects.")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Write selections drawn from a locality, in the format that replay reads."""
    import numpy as np

    from hisparse_sim.locality.file import load_locality
    from hisparse_sim.locality.selection import sample as draw_sample

    locality = load_locality(source)
    if out.suffix.lower() != ".npy":
        raise InputError(f"ends in {out.suffix!r}; samples are .npy", where=str(out))
    processes = locality.spread_over(layers)
    made = draw_sample(
        processes,
        topk_rows=topk or locality.topk_rows,
        context_rows=context or locality.context_rows,
        steps=steps,
        seed=seed,
    )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        np.save(out, made)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", where=str(out)) from None
    print(f"{out}: positions {list(made.shape)} [steps, layers, top-k]")


def _recording(path: Path, context: int | None, model: str | None) -> Recording:
    from hisparse_sim.locality.recording import read_recording
    from hisparse_sim.scenario.catalogue import load_model

    topk = None
    if model is not None:
        topk = load_model(model).index_topk
        if not topk:
            raise InputError(f"{model} selects no rows: it has no index_topk", where="--model")
    return read_recording(path, context_tokens=context, topk_rows=topk)


def _policies(text: str) -> list[str]:
    from hisparse_sim.locality.policies import POLICIES

    names = [name.strip().lower() for name in text.split(",")]
    for name in names:
        if name not in POLICIES:
            raise InputError(f"{name!r} is none of {', '.join(POLICIES)}", where="--policy")
    return list(dict.fromkeys(names))


def _numbers(text: str, flag: str) -> list[int]:
    found = []
    for part in text.split(","):
        if not part.strip().isdigit() or int(part) < 1:
            raise InputError(f"{part.strip()!r} is no number of rows (4096,8192)", where=flag)
        found.append(int(part))
    return found


def _only_for_recordings(given: dict[str, object]) -> None:
    for flag, value in given.items():
        if value is not None:
            raise InputError("is for recordings; a table names its models", where=flag)


def _fit_text(locality: Locality) -> Iterator[str]:
    yield f"{locality.id} (top-k {locality.topk_rows:,}, context {locality.context_rows:,} rows)"
    for c in locality.classes:
        spread = f" +- {c.overlap_spread:.3f} between layers" if c.overlap_spread else ""
        yield f"  {c.name}: step overlap {c.step_overlap:.3f}{spread}, tail exponent {c.tail_exponent:.3f}"
    width = max((len(row.figure) for row in locality.fit), default=0)
    if any("hit_rate" in row.figure for row in locality.fit):
        yield "  (errors of hit rates are those of the misses)"
    if locality.fit:
        yield f"  {'':{width}} {'given':>8} {'fitted':>8} {'error':>8} {'left out':>9} {'error':>8}"
    for row in locality.fit:
        of_hits = "hit_rate" in row.figure  # whose misses are what counts
        given, fitted, left_out = (
            1.0 - x if of_hits and x is not None else x for x in (row.given, row.fitted, row.left_out)
        )
        assert given is not None and fitted is not None
        line = f"  {row.figure:{width}} {row.given:>8.4f} {row.fitted:>8.4f} {_error(fitted, given)}"
        if row.left_out is not None and left_out is not None:
            line += f" {row.left_out:>9.4f} {_error(left_out, given)}"
        yield line


def _error(value: float, given: float) -> str:
    return f"{value / given - 1.0:>+8.1%}" if given else f"{'':8}"


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_name(f".{path.name}.part")
        made.write_text(text, encoding="utf-8")
        made.replace(path)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", where=str(path)) from None


@contextmanager
def _layers(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """How many layers are done, on a terminal; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status(what) as status:
        yield lambda done, of: status.update(f"{what}: {done} of {of} layers")
