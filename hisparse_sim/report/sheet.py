"""A sheet of panels, laid out in inches: rows of quantities by columns of runs, one key a row.

Everything is placed by hand, so that pictures of any run have the same sizes, and quickly: the layout
engines of matplotlib draw all text several times. Colours are those of Okabe and Ito ("Color Universal
Design", jfly.uni-koeln.de/color), told apart with any colour vision.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK, GREY = "#E69F00", "#56B4E9", "#000000", "#BBBBBB"
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)
_MARKS = 5
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")

COLUMN_IN = 3.3
"""Width of one column of a page; all text is readable at that size."""
PAGE_IN = 7.0
ABREAST = 4
"""Columns of a sheet; more go below."""
FONT_PT = 7
SMALL_PT = 6.5
_LEFT_IN, _RIGHT_IN, _TOP_IN, _BOTTOM_IN = 0.4, 0.12, 0.06, 0.36
_LINE_IN = 0.135
"""Height of a line of text."""
_CHARACTER_IN, _SMALL_CHARACTER_IN = 0.05, 0.045
"""Mean widths of characters of ``FONT_PT`` and ``SMALL_PT``."""
_HANDLE_IN = 0.25
"""What an entry of a key takes beside its label, the gap after it included."""
_BETWEEN_IN = 0.12
_BELOW_IN = 0.09
_TICKS_IN = 0.15


@dataclass(frozen=True, slots=True)
class Row:
    """Panels beside each other: ``draw`` gets the axes and the number of the column.

    ``key`` stands at the right of the title. ``own_x``: not the sheet's x axis, but one of its own.
    """

    title: str
    height_in: float
    draw: Callable[[Axes, int], None]
    key: Sequence[Artist] = ()
    own_x: bool = False


@contextmanager
def style() -> Iterator[None]:
    """The house's style and nothing of the user's, so that the same runs give the same bytes.

    Names come from people's files: a dollar sign in them begins no formula, and a letter that the font
    lacks is drawn as a box without a word.
    """
    import matplotlib as mpl

    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        mpl.rcdefaults()
        mpl.rcParams.update(
            {
                "text.parse_math": False,
                "font.size": FONT_PT,
                "axes.titlesize": FONT_PT,
                "axes.labelsize": FONT_PT,
                "xtick.labelsize": SMALL_PT,
                "ytick.labelsize": SMALL_PT,
                "xtick.major.size": 2.5,
                "ytick.major.size": 2.5,
                "xtick.major.pad": 2,
                "ytick.major.pad": 2,
                "axes.linewidth": 0.6,
                "xtick.major.width": 0.6,
                "ytick.major.width": 0.6,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.grid": True,
                "axes.axisbelow": True,
                "grid.color": "#dddddd",
                "grid.linewidth": 0.5,
                "legend.frameon": False,
                "legend.fontsize": SMALL_PT,
                "lines.linewidth": 1.0,
                "hatch.linewidth": 0.5,
                "svg.hashsalt": "hisparse-sim",
            }
        )
        yield


def sheet(
    rows: Sequence[Row],
    *,
    title: str,
    columns: Sequence[str] = ("",),
    key: Sequence[Artist] = (),
    x_title: str = "",
    left_in: float = _LEFT_IN,
) -> Figure:
    """The rows for each column; after ``ABREAST`` columns they begin again below.

    ``columns``: what stands above each; ``key``: of the whole sheet. All panels of a row share their y
    axis, and all panels of the sheet their x axis, except those of rows with their own.
    """
    from matplotlib.figure import Figure

    abreast = min(len(columns), ABREAST)
    width_in = COLUMN_IN if abreast == 1 else PAGE_IN
    panel_in = (width_in - left_in - _RIGHT_IN - _BETWEEN_IN * (abreast - 1)) / abreast
    title_lines = _fold(title, width_in - left_in - _RIGHT_IN) if title else []
    key_at_in = left_in if _key_in(key) <= width_in - left_in - _RIGHT_IN else _RIGHT_IN
    key_columns = _key_columns(key, width_in - key_at_in - _RIGHT_IN)
    key_lines = -(-len(key) // key_columns)
    head_in = _TOP_IN + _LINE_IN * (len(title_lines) + key_lines) + (0.08 if key else 0.03)
    heads = [_fold(text, panel_in, most=2) if text else [] for text in columns]
    head_lines = max(map(len, heads))
    strips = [_strip_lines(row, width_in - left_in - _RIGHT_IN) for row in rows]
    row_in = [
        lines * _LINE_IN + 0.03 + row.height_in + _BELOW_IN + (_TICKS_IN if row.own_x else 0)
        for row, lines in zip(rows, strips, strict=True)
    ]
    foot_in = 0.04 if all(row.own_x for row in rows) else _BOTTOM_IN - _BELOW_IN
    band_in = head_lines * _LINE_IN + sum(row_in) + foot_in
    bands = -(-len(columns) // abreast)
    height_in = head_in + bands * band_in
    figure = Figure(figsize=(width_in, height_in))

    def up(from_top_in: float) -> float:
        return 1 - from_top_in / height_in

    left = left_in / width_in
    if title_lines:
        figure.text(left, up(_TOP_IN), "\n".join(title_lines), va="top", fontweight="bold")
    if key:
        at = (key_at_in / width_in, up(_TOP_IN + _LINE_IN * len(title_lines) + 0.03))
        _legend(figure, key, at, loc="upper left", ncols=key_columns)
    shared_x: Axes | None = None
    shared_y: list[Axes | None] = [None] * len(rows)
    for number in range(len(columns)):
        band, place = divmod(number, abreast)
        top_in = head_in + band * band_in
        x = (left_in + place * (panel_in + _BETWEEN_IN)) / width_in
        if heads[number]:
            figure.text(x, up(top_in + 0.01), "\n".join(heads[number]), va="top", color="#333333")
        top_in += head_lines * _LINE_IN
        last = max((i for i, row in enumerate(rows) if not row.own_x), default=-1)
        for i, row in enumerate(rows):
            strip_in = strips[i] * _LINE_IN + 0.03
            if place == 0:
                title_y = up(top_in + _LINE_IN + 0.005)
                _strip(figure, row, (left, title_y), up(top_in + strip_in - 0.025), width_in)
            axes = figure.add_axes(
                (x, up(top_in + strip_in + row.height_in), panel_in / width_in, row.height_in / height_in),
                sharex=None if row.own_x else shared_x,
                sharey=shared_y[i],
            )
            shared_y[i] = axes
            shared_x = shared_x if row.own_x else axes
            axes.tick_params(labelleft=place == 0, labelbottom=row.own_x or i == last)
            row.draw(axes, number)
            if i == last and x_title:
                axes.set_xlabel(x_title, labelpad=2)
            top_in += row_in[i]
    return figure


def line(label: str, **look: Any) -> Artist:
    """A line in a key."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=printable(label), **look)


def area(label: str, colour: str, **look: Any) -> Artist:
    """An area in a key."""
    from matplotlib.patches import Patch

    return Patch(facecolor=colour, label=label, linewidth=0, **look)


def look(index: int, *, of: int, points: int = 0) -> dict[str, Any]:
    """Colour and marker of one of several runs (56 in all); a lone one needs no marker.

    A line of so many ``points`` has some markers, not where the others have theirs and, of earlier lines,
    larger, so that they show below one that covers them. Dashes would be lost where a line goes up and down.
    """
    if of < 2:
        return {"color": COLOURS[0]}
    every = max(points // _MARKS, 1)
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "markersize": 3.0 + 0.8 * min(of - 1 - index, 2),
        "markeredgewidth": 0,
        "markevery": (every * (index % _MARKS) // _MARKS, every),
    }


def run_key(labels: Sequence[str]) -> list[Artist]:
    """An entry a run, unless there is only one."""
    count = len(labels)
    return [line(label, **look(index, of=count)) for index, label in enumerate(labels)] if count > 1 else []


def say(axes: Axes, words: str) -> None:
    """Words instead of data."""
    axes.text(0.5, 0.5, words, ha="center", va="center", transform=axes.transAxes, color="#555555")


def plain_y(axes: Axes, *, whole: bool = False, percent: bool = False) -> None:
    """A y axis from 0 with few, short numbers; ``percent``: to 100."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    if percent:
        axes.set_ylim(0, 104)
        axes.set_yticks([0, 50, 100])
        return
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=whole, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    top = max(axes.dataLim.y1 if np.isfinite(axes.dataLim.y1) else 0.0, axes.get_ylim()[1] / 1.05)
    axes.set_ylim(0, top * 1.05 if top > 0 else 1)


def plain_x(axes: Axes, end: float, *, ticks: int = 5) -> None:
    """An x axis from 0 to ``end``."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=ticks, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.set_xlim(0, end)


def short(value: float) -> str:
    """A number on an axis: 1500000 is 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.4g}{letter}"
    return f"{value:.6g}"


def time_unit(end_s: float) -> tuple[str, float]:
    """A unit for times up to ``end_s``, and its seconds."""
    for unit, scale in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if end_s >= 5 * scale:
            return unit, scale
    return ("ms", 1e-3) if end_s < 0.5 else ("s", 1.0)


def tick_label_in(text: str) -> float:
    """The width of a label of a tick, in inches."""
    from matplotlib.textpath import TextPath

    return float(TextPath((0, 0), text, size=SMALL_PT).get_extents().width) / 72


def printable(text: str) -> str:
    """``text`` without control characters, which no SVG may hold and terminals obey."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def fits(text: str, room_in: float) -> str:
    """``text``, cut in its middle where it is too long for ``room_in``."""
    text = printable(text)
    most = max(int(room_in / _CHARACTER_IN), 5)
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}…{text[-(most - most // 2 - 1) :]}"


def _fold(text: str, room_in: float, *, most: int = 3) -> list[str]:
    """Lines of ``text`` that fit, at most so many, broken after commas and spaces."""
    lines: list[str] = []
    for word in text.split(" "):
        if lines and (len(lines[-1]) + 1 + len(word)) * _CHARACTER_IN * 1.1 <= room_in:
            lines[-1] += " " + word
        else:
            lines.append(word)
    if len(lines) > most:
        lines = [*lines[: most - 1], " ".join(lines[most - 1 :])]
    return [fits(text, room_in / 1.1) for text in lines]


def _key_in(key: Sequence[Artist]) -> float:
    return sum(len(str(entry.get_label())) * _SMALL_CHARACTER_IN + _HANDLE_IN for entry in key) - 0.09


def _key_columns(key: Sequence[Artist], room_in: float) -> int:
    if not key or _key_in(key) <= room_in:
        return max(len(key), 1)
    longest = max(len(str(entry.get_label())) for entry in key)
    return max(1, int(room_in / (longest * _CHARACTER_IN + _HANDLE_IN)))


def _strip_lines(row: Row, room_in: float) -> int:
    """Lines of text above a row: title and key share one if they fit."""
    return 1 if len(row.title) * _CHARACTER_IN + 0.1 + _key_in(row.key) <= room_in else 2


def _strip(figure: Figure, row: Row, at: tuple[float, float], bottom: float, width_in: float) -> None:
    figure.text(*at, row.title, va="bottom")
    if row.key:
        _legend(figure, row.key, (1 - _RIGHT_IN / width_in, bottom), loc="lower right", ncols=len(row.key))


def _legend(figure: Figure, key: Sequence[Artist], at: tuple[float, float], **how: Any) -> None:
    figure.legend(
        handles=list(key),
        bbox_to_anchor=at,
        borderaxespad=0,
        borderpad=0,
        handlelength=1.3,
        handleheight=0.7,
        handletextpad=0.4,
        columnspacing=0.9,
        labelspacing=0.35,
        **how,
    )
