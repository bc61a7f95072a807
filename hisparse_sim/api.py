"""The package in Python, as short as the command line.

    import hisparse_sim as hs

    run = hs.simulate(hs.scenario("agentic-13turn-8xh200", concurrency=8))
    run                       # a table, in Jupyter as well
    run.requests              # a DataFrame: a row a request
    run.plot("timeline")      # a matplotlib figure
    hs.compare(run, hs.simulate(hs.scenario("agentic-13turn-8xh200", mode="offload", concurrency=8)))

Whatever is refused raises ``HiSparseError`` with one line that says what is wrong and what would be right.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisparse_sim.errors import HiSparseError, InputError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from hisparse_sim.estimate.answer import Answer
    from hisparse_sim.planning.point import Kind
    from hisparse_sim.report.run_picture import RunPicture
    from hisparse_sim.scenario.scenario import Scenario
    from hisparse_sim.simulation.result import Result

__all__ = [
    "Comparison",
    "Estimate",
    "HiSparseError",
    "Run",
    "compare",
    "estimate",
    "save_workload",
    "scenario",
    "simulate",
    "sweep",
]

Settings = Mapping[str, Any]
"""Fields by their paths: ``{"engine.host_pool_gib": 256, "workload.turns": 4}``."""
_SCREEN_DPI = 150


def scenario(
    name_or_path: str | Path,
    settings: Settings | None = None,
    *,
    mode: str | None = None,
    concurrency: int | None = None,
    limit: int | None = None,
    seed: int | None = None,
) -> Scenario:
    """A shipped scenario or a YAML file, with fields set. Raises ``InputError`` naming the field."""
    from hisparse_sim.scenario.loader import load_scenario

    short = {"engine.mode": mode, "workload.concurrency": concurrency, "workload.limit": limit, "seed": seed}
    given = {path: value for path, value in short.items() if value is not None} | dict(settings or {})
    return load_scenario(name_or_path, overrides=[f"{path}={_text(value)}" for path, value in given.items()])


def _text(value: Any) -> str:
    try:
        return json.dumps(value)
    except TypeError:
        return str(value)


def save_workload(what: Scenario | str | Path, path: str | Path) -> int:
    """Write the requests of a scenario's workload to a .jsonl, .jsonl.gz or .parquet file; how many.

    ``{"workload": {"kind": "trace", "path": path}}`` plays them again, the same for every engine.
    """
    from hisparse_sim.workload.make import make_workload
    from hisparse_sim.workload.save import save

    asked = scenario(what) if isinstance(what, str | Path) else what
    workload = make_workload(asked.workload, asked.seed, check=False)
    about = {"source": asked.name, "seed": asked.seed, **getattr(workload, "about", {})}
    return save(workload, Path(path), about=about)


def simulate(what: Scenario | str | Path, *, progress: bool | None = None) -> Run:
    """Simulate a scenario (or the one of a name or file) to its end.

    ``progress``: show a bar on stderr; none: on a terminal. Ctrl-C ends it early with what is done.
    Raises ``Infeasible`` for what vLLM would not start with.
    """
    from hisparse_sim.cli.progress import progress_bar
    from hisparse_sim.simulation.run import simulate as to_its_end

    asked = scenario(what) if isinstance(what, str | Path) else what
    shown = sys.stderr.isatty() if progress is None else progress
    with progress_bar() if shown else nullcontext() as bar:
        return Run(to_its_end(asked, progress=bar))


class Run:
    """A run: ``summary`` (figures, as ``summary.json``), ``requests`` and ``steps`` (DataFrames)."""

    def __init__(self, result: Result) -> None:
        self.result = result

    @property
    def scenario(self) -> Scenario:
        """What was asked."""
        return self.result.scenario

    @property
    def summary(self) -> dict[str, Any]:
        """The figures; ``hisparse_sim.simulation.summary`` defines each."""
        return self.result.summary

    @cached_property
    def requests(self) -> pd.DataFrame:
        """A row a request, times in seconds."""
        return self.result.requests

    @cached_property
    def steps(self) -> pd.DataFrame:
        """A row a run of equal engine steps."""
        return self.result.steps

    @property
    def _picture(self) -> RunPicture:
        from hisparse_sim.report.run_picture import RunPicture

        return RunPicture(self.summary, self.requests, self.steps)

    def plot(self, name: str = "timeline") -> Figure:
        """``timeline``, ``gantt`` or ``latency``."""
        return _drawn(name, [self._picture])

    def save(self, folder: str | Path) -> Path:
        """Write what ``hisparse-sim run --out`` does, pictures apart."""
        self.result.write(Path(folder))
        return Path(folder)

    def __repr__(self) -> str:
        return _table([self])

    def _repr_html_(self) -> str:
        return _html([self])


@dataclass(frozen=True)
class Comparison:
    """Runs side by side."""

    runs: tuple[Run, ...]

    @property
    def table(self) -> pd.DataFrame:
        """A column a run, a row a figure of the summaries that is a number."""
        import pandas as pd

        def plain(value: object) -> bool:
            return isinstance(value, int | float) and not isinstance(value, bool)

        labels = _labels(self.runs)
        columns = {
            label: {k: v for k, v in run.summary.items() if plain(v)}
            for label, run in zip(labels, self.runs, strict=True)
        }
        return pd.DataFrame(columns)

    def plot(self, name: str = "timeline") -> Figure:
        """``timeline``, ``gantt``, ``latency`` or ``overlay``, with the same scales."""
        return _drawn(name, [run._picture for run in self.runs])

    def __repr__(self) -> str:
        return _table(self.runs)

    def _repr_html_(self) -> str:
        return _html(self.runs)


def compare(*runs: Run) -> Comparison:
    """Runs side by side. Raises ``InputError`` for fewer than two."""
    if len(runs) < 2:
        raise InputError("give at least two runs", where="compare")
    return Comparison(runs)


class Estimate:
    """An estimate: ``table`` (a row a context and mode), ``data`` (all of it, as ``estimate --json``)."""

    def __init__(self, found: Answer) -> None:
        self.answer = found

    @cached_property
    def data(self) -> dict[str, Any]:
        """Plain data."""
        from hisparse_sim.estimate.as_json import answer_json

        return answer_json(self.answer, None, [])

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row a context length and mode: requests at once, what limits them, seconds a token."""
        import pandas as pd

        rows = []
        for row in self.data["rows"]:
            for mode, found in row["modes"].items():
                plain = {k: v for k, v in found.items() if not isinstance(v, dict | list)}
                rows.append({"context_tokens": row["context_tokens"], "mode": mode, **plain})
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        return str(self._short.to_string(index=False))

    def _repr_html_(self) -> str:
        return str(self._short.to_html(index=False))

    @property
    def _short(self) -> pd.DataFrame:
        short = self.table[["context_tokens", "mode", "requests", "tokens_per_s", "limit_words"]].copy()
        short.insert(3, "tpot_ms", 1e3 * self.table["tpot_s"])
        return short.round({"tpot_ms": 2, "tokens_per_s": 0})


def estimate(
    model: str = "glm-5.3",
    node: str = "8xh200",
    context: int | str | Sequence[int | str] = "128k",
    *,
    output_tokens: int = 1024,
    users: int | None = None,
    settings: Settings | None = None,
    **engine: Any,
) -> Estimate:
    """What ``hisparse-sim estimate`` answers; ``engine``: fields of ``EngineSpec`` (``tp=8, mtp=3``).

    ``settings``: fields of model, node or engine by their paths, as of ``scenario``.
    """
    from hisparse_sim.estimate.answer import answer
    from hisparse_sim.estimate.question import deployment
    from hisparse_sim.scenario.units import parse_tokens

    contexts = [context] if isinstance(context, int | str) else list(context)
    laid = [f"{path}={_text(value)}" for path, value in (settings or {}).items()]
    asked, _ = deployment(model, node, engine, settings=laid)
    tokens = [parse_tokens(each, where="context") for each in contexts]
    if asked.engine.kind == "sglang":
        raise InputError("SGLang is estimated by hisparse_sim.estimate.sglang", where="engine.kind")
    found = answer(asked.model, asked.node, asked.engine, tokens, output_tokens=output_tokens, users=users)
    return Estimate(found)


def sweep(
    what: Scenario | str | Path,
    vary: Mapping[str, Sequence[Any]],
    *,
    seeds: int = 1,
    estimate_only: bool = False,
    jobs: int = 1,
    folder: str | Path | None = None,
) -> pd.DataFrame:
    """A row a point and seed of the grid ``vary`` (``{"workload.concurrency": [8, 16]}``), in its order.

    ``folder``: where it is kept and goes on from; none: nowhere.
    """
    from itertools import product

    from hisparse_sim.planning.point import make_points
    from hisparse_sim.planning.sweep import Sweep, run_sweep

    base = scenario(what) if isinstance(what, str | Path) else what
    choices = [dict(zip(vary, values, strict=True)) for values in product(*vary.values())]
    kind: Kind = "estimate" if estimate_only else "run"
    points = make_points(base, choices, seeds=seeds, kind=kind)
    with nullcontext(folder) if folder is not None else tempfile.TemporaryDirectory() as into:
        outcome = run_sweep(
            Sweep(base, points, kind, Path(into) / "" if folder else Path(into) / "sweep", jobs)
        )
    if outcome.interrupted:
        raise KeyboardInterrupt
    if outcome.lost:
        raise InputError(f"workers were lost: {outcome.lost}", where="jobs")
    place = {point.key: number for number, point in enumerate(points)}
    return outcome.frame.sort_values("key", key=lambda keys: keys.map(place), ignore_index=True)


def _drawn(name: str, runs: Sequence[RunPicture]) -> Figure:
    from hisparse_sim.report.plots import PICTURES
    from hisparse_sim.report.sheet import style

    if name not in PICTURES:
        raise InputError(f"{name!r} is no picture; one of {', '.join(PICTURES)}", where="plot")
    with style():
        return show_itself(PICTURES[name](runs))


def show_itself(figure: Figure) -> Figure:
    """``figure`` as a picture in Jupyter, which shows figures only once pyplot was imported.

    Pages are printed at 3.3 or 7 inches with small letters: on a screen they need more dots.
    """
    figure.set_dpi(_SCREEN_DPI)
    figure.__dict__["_repr_png_"] = partial(_png, figure)
    return figure


def _png(figure: Figure) -> bytes:
    from io import BytesIO

    buffer = BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight")
    return buffer.getvalue()


def _labels(runs: Sequence[Run]) -> list[str]:
    from hisparse_sim.report.run_files import label_of

    labels = [label_of(run.summary) for run in runs]
    return [f"{label}\n{i + 1}" if labels.count(label) > 1 else label for i, label in enumerate(labels)]


def _table(runs: Sequence[Run]) -> str:
    from hisparse_sim.report.tables import side_by_side

    return side_by_side([(label, run.summary) for label, run in zip(_labels(runs), runs, strict=True)])


def _html(runs: Sequence[Run]) -> str:
    from hisparse_sim.report.tables import LINES, NOTHING

    head = "".join(f"<th>{escape(label).replace(chr(10), '<br>')}</th>" for label in _labels(runs))
    body = []
    for title, of in LINES:
        cells = [of(run.summary) for run in runs]
        if any(cell != NOTHING for cell in cells):
            body.append(f"<tr><th>{escape(title)}</th>{''.join(f'<td>{escape(c)}</td>' for c in cells)}</tr>")
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
