"""Plain-text tables: summaries of runs side by side."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Summary = Mapping[str, Any]
"""The content of a ``summary.json``."""

MAX_COLUMNS = 110
RUNS_ABREAST = 4
NOTHING = "-"
GB = 1e9


def side_by_side(runs: Sequence[tuple[str, Summary]]) -> str:
    """One column a run, one line a figure, at most 110 characters wide: after 4 runs a new table begins.

    A label may have several lines. Figures that are undefined or missing are ``-``; a line in which
    all are is left out.
    """
    tables = [_table(runs[i : i + RUNS_ABREAST]) for i in range(0, len(runs), RUNS_ABREAST)]
    return "\n\n".join(tables)


def _table(runs: Sequence[tuple[str, Summary]]) -> str:
    lines = [(title, [text(summary) for _, summary in runs]) for title, text in LINES]
    lines = [(title, cells) for title, cells in lines if any(cell != NOTHING for cell in cells)]
    heads = [label.split("\n") for label, _ in runs]
    height = max((len(head) for head in heads), default=0)
    header = [("", [head[i] if i < len(head) else "" for head in heads]) for i in range(height)]
    return grid(header, lines)


def grid(
    header: Sequence[tuple[str, Sequence[str]]],
    lines: Sequence[tuple[str, Sequence[str]]],
) -> str:
    """Text columns: the first to the left, the others to the right, a rule below the header.

    Words that make a column too wide for the page go on the next line of their cell.
    """
    first = max((len(title) for title, _ in (*header, *lines)), default=0)
    columns = max((len(cells) for _, cells in (*header, *lines)), default=0)
    header_rows, rows = list(header), list(lines)
    widths = _widths((*header_rows, *rows), columns)
    if first + sum(widths) + 2 * columns > MAX_COLUMNS:
        room = max(12, (MAX_COLUMNS - first) // columns - 2)
        header_rows = [row for line in header for row in _wrapped(line, room)]
        rows = [row for line in lines for row in _wrapped(line, room)]
        widths = _widths((*header_rows, *rows), columns)

    def written(row: tuple[str, Sequence[str]]) -> str:
        title, cells = row
        padded = (f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        return "  ".join([f"{title:<{first}}", *padded]).rstrip()

    rule = "  ".join("-" * width for width in (first, *widths))
    return "\n".join([*map(written, header_rows), rule, *map(written, rows)])


def _widths(rows: Sequence[tuple[str, Sequence[str]]], columns: int) -> list[int]:
    return [max((len(cells[column]) for _, cells in rows), default=0) for column in range(columns)]


def number(value: float | None, *, digits: int = 3) -> str:
    """A number to ``digits`` significant digits, thousands separated; ``-`` for none."""
    if value is None:
        return NOTHING
    if value == 0 or isinstance(value, int):
        return f"{value:,}" if isinstance(value, int) else "0"
    if abs(value) >= 10**digits - 0.5:
        return f"{value:,.0f}"
    text = f"{value:.{digits}g}"
    return text if "e" not in text else f"{value:.1e}"


def _wrapped(line: tuple[str, Sequence[str]], room: int) -> list[tuple[str, list[str]]]:
    title, cells = line
    folded = [_fold(cell, room) for cell in cells]
    height = max((len(parts) for parts in folded), default=1)
    return [
        (title if i == 0 else "", [parts[i] if i < len(parts) else "" for parts in folded])
        for i in range(height)
    ]


def _fold(cell: str, room: int) -> list[str]:
    """Break at spaces and, where a word alone is too long, after its hyphens and underscores."""
    parts: list[str] = []
    for word in cell.split(" "):
        pieces = [word] if len(word) <= room else re.findall(r"[^-_]+[-_]*|[-_]+", word)
        for index, piece in enumerate(pieces):
            glue = "" if index else " "
            if parts and len(parts[-1] + glue + piece) <= room:
                parts[-1] += glue + piece
            else:
                parts.append(piece)
    return parts or [""]


def plain(key: str) -> Callable[[Summary], str]:
    """Cells with the number of a key."""

    return lambda summary: number(summary.get(key))


def percent(*keys: str) -> Callable[[Summary], str]:
    """Cells with shares, in percent."""

    def text(summary: Summary) -> str:
        values = [summary.get(key) for key in keys]
        if all(value is None for value in values):
            return NOTHING
        return " / ".join(NOTHING if v is None else f"{100 * v:.1f}" for v in values)

    return text


def latency(key: str, *points: str, scale: float = 1.0) -> Callable[[Summary], str]:
    """Cells with percentiles, times ``scale``."""

    def text(summary: Summary) -> str:
        values = [(summary.get(key) or {}).get(point) for point in points]
        if all(value is None for value in values):
            return NOTHING
        return " / ".join(number(None if v is None else v * scale) for v in values)

    return text


def _moved(key: str) -> Callable[[Summary], str]:
    """Bytes in GB, and the mean rate over the run in GB/s."""

    def text(summary: Summary) -> str:
        moved, time_s = summary.get(key), summary.get("sim_time_s")
        if moved is None:
            return NOTHING
        rate = number(moved / GB / time_s) if time_s else NOTHING
        return f"{number(moved / GB)} / {rate}"

    return text


def done_failed(summary: Summary) -> str:
    """How many requests were completed, and how many failed."""
    done, failed = summary.get("requests_completed"), summary.get("requests_failed")
    return NOTHING if done is None and failed is None else f"{number(done)} / {number(failed)}"


def _under_way(summary: Summary) -> str:
    """Requests that were not over when the figures were written, of a run that was not."""
    return NOTHING if summary.get("complete", True) else number(summary.get("requests_incomplete"))


def _text(key: str) -> Callable[[Summary], str]:
    return lambda summary: str(summary.get(key) or NOTHING)


LINES: tuple[tuple[str, Callable[[Summary], str]], ...] = (
    ("running requests, mean", plain("running_mean")),
    ("waiting requests, mean", plain("waiting_mean")),
    ("output tokens/s", plain("output_tokens_per_s")),
    ("total tokens/s per GPU", plain("total_tokens_per_s_per_gpu")),
    ("TTFT p50 / p95 / p99, s", latency("ttft_s", "p50", "p95", "p99")),
    ("TPOT p50 / p95 / p99, ms", latency("tpot_s", "p50", "p95", "p99", scale=1e3)),
    ("ITL p50 / p95 / p99, ms", latency("itl_s", "p50", "p95", "p99", scale=1e3)),
    ("E2E p50 / p95 / p99, s", latency("e2e_s", "p50", "p95", "p99")),
    ("preemptions", plain("preemptions")),
    ("prefix hits, % of prompt", percent("prefix_hit_rate")),
    ("of these by offload tier", percent("offload_hit_rate")),
    ("hot-buffer hits, %", percent("hot_hit_rate")),
    ("HBM KV mean / max, %", percent("gpu_kv_usage_mean", "gpu_kv_usage_max")),
    ("host memory max, %", percent("host_usage_max")),
    ("host to GPU, GB / GB/s", _moved("host_to_device_bytes")),
    ("GPU to host, GB / GB/s", _moved("device_to_host_bytes")),
    ("link in / out, % of copy", percent("pcie_h2d_usage_mean", "pcie_d2h_usage_mean")),
    ("DRAM bandwidth, %", percent("dram_usage_mean")),
    ("requests done / failed", done_failed),
    ("not complete: under way", _under_way),
    ("goodput", plain("goodput")),
    ("simulated time, s", plain("sim_time_s")),
    ("verdict", _text("verdict")),
    ("what limits", _text("limit")),
)
"""Title and cell of each line, in the order printed."""
