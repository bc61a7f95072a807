"""The table of laws and the tests of laws agree."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "explanation" / "laws.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and "`tests/" in line
]
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", PAGE)


def defined_in(path: Path) -> set[str]:
    """Names of the tests that a module defines."""
    functions = ast.parse(path.read_text(encoding="utf-8")).body
    return {f.name for f in functions if isinstance(f, ast.FunctionDef) and f.name.startswith("test_")}


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_test_that_the_page_names_is_there(file: str, name: str) -> None:
    assert name in defined_in(ROOT / file)


@pytest.mark.parametrize("path", sorted(Path(__file__).parent.glob("test_*.py")), ids=lambda path: path.stem)
def test_every_test_of_a_law_is_on_the_page(path: Path) -> None:
    if path == Path(__file__):
        return
    file = path.relative_to(ROOT).as_posix()
    assert defined_in(path) <= {name for named, name in NAMED if named == file}


def test_each_row_has_a_name_a_statement_and_its_test() -> None:
    assert len(ROWS) > 20
    assert all(len(row) == 3 and all(row) for row in ROWS)
    names = [row[0] for row in ROWS]
    assert len(set(names)) == len(names)
