"""HTML by hand: text, tables that sort, and the one file that a page is."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from hisparse_sim.errors import InputError
from hisparse_sim.report.sheet import printable


def text(value: object) -> str:
    """Anything as text that is safe in HTML, names from people's files included."""
    return escape(printable(str(value)))


@dataclass(frozen=True, slots=True)
class Cell:
    """What a table shows, and the number it is sorted by (none: last)."""

    shown: str
    value: float | str | None = None


def table(
    title: str,
    head: Sequence[str],
    rows: Sequence[Sequence[Cell | str]],
    *,
    sorts: bool = True,
    name: str = "",
) -> str:
    """A table with a caption; the first cell of a row is its heading. Text is escaped here."""
    heads = ""
    for i, heading in enumerate(head):
        words = ' class="words"' if all(isinstance(row[i], str) for row in rows) else ""
        shown = f'<button type="button">{text(heading)}</button>' if sorts else text(heading)
        heads += f'<th scope="col"{words}>{shown}</th>'
    body = "".join(f"<tr>{''.join(_cell(c, first=i == 0) for i, c in enumerate(row))}</tr>" for row in rows)
    mark = ' class="sorts"' if sorts else ""
    named = f' id="{name}"' if name else ""
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{text(title)}"><table{mark}{named}>'
        f"<caption>{text(title)}</caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(cell: Cell | str, *, first: bool) -> str:
    if isinstance(cell, str):
        cell = Cell(cell, cell)
    value = "" if cell.value is None else f' data-v="{text(cell.value)}"'
    kind = "" if first or not isinstance(cell.value, str) or cell.value == "" else ' class="words"'
    shown = text(cell.shown)
    return f'<th scope="row"{value}>{shown}</th>' if first else f"<td{value}{kind}>{shown}</td>"


def page(name: str, title: str, parts: Mapping[str, str], data: Any, scripts: Sequence[str]) -> str:
    """The template ``name`` with its ``parts`` (HTML), ``data`` for the scripts, style and scripts.

    ``title`` is plain text. Nothing on the page may load anything: its security policy says so as well.
    """
    # No "<" in data can end the element it stands in.
    packed = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=True).replace(
        "<", "\\u003c"
    )
    body = Template(asset(f"{name}.html")).substitute(parts)
    return Template(asset("frame.html")).substitute(
        title=text(title),
        style=asset("style.css"),
        body=body,
        data=packed,
        scripts="\n".join(asset(script) for script in ("page.js", *scripts)),
    )


def asset(name: str) -> str:
    """A file that lies beside this one."""
    return files("hisparse_sim.report.page").joinpath(name).read_text(encoding="utf-8")


def write_page(path: Path, content: str) -> None:
    """Write ``content`` whole or not at all. Raises ``InputError``."""
    try:
        if path.is_dir():
            raise InputError("is a folder; name a file, such as page.html", where=str(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".page-", dir=path.parent) as made:
            file = Path(made, "page.html")
            file.write_text(content, encoding="utf-8")
            file.replace(path)
    except OSError as error:
        raise InputError(f"cannot be written here ({error.strerror or error})", where=str(path)) from None
