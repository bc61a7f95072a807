"""README's table and the page of published figures say what the code computes."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from hisparse_sim.scenario.catalogue import configs_dir
from hisparse_sim.validation.published import agentic, calculator, locality_rows, rtx_pro, single, watermark
from hisparse_sim.validation.published.comparison import simulated
from hisparse_sim.validation.published.rows import Row
from hisparse_sim.validation.published.tables import read_table
from hisparse_sim.validation.published.text import number

ROOT = Path(__file__).resolve().parents[2]
MADE = importlib.util.spec_from_file_location("figures", ROOT / "scripts" / "figures.py")
assert MADE is not None and MADE.loader is not None
figures: Any = importlib.util.module_from_spec(MADE)
MADE.loader.exec_module(figures)
PAGE = figures.PAGE.read_text(encoding="utf-8")


def on_the_page() -> list[Row]:
    """The rows of docs/explanation/published.md."""
    stems, metrics = (
        {words: key for key, words in table.items()} for table in (figures.SOURCES, figures.WORDS)
    )
    rows = []
    for section in PAGE.split("\n## ")[1:]:
        stem = stems[section.splitlines()[0]]
        for line in section.splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if len(cells) == 6 and re.fullmatch(r"[-+\d.%]+|-", cells[4]) and cells[1] in metrics:
                published, found = (float(cell.replace(",", "")) for cell in cells[2:4])
                rows.append(Row(stem, cells[0], metrics[cells[1]], published, found))
    return rows


def test_readmes_table_sums_up_the_page() -> None:
    readme = figures.README.read_text(encoding="utf-8")
    made = figures.with_table(readme, on_the_page())
    number_of = re.compile(r"(\d+\.\d) %")
    for old, new in zip(readme.splitlines(), made.splitlines(), strict=True):
        assert number_of.sub("", old) == number_of.sub("", new)
        # The page rounds to four digits.
        before, after = ([float(found) for found in number_of.findall(line)] for line in (old, new))
        assert before == pytest.approx(after, abs=0.11)  # per cent


@pytest.mark.parametrize(
    ("module", "only"),
    [
        (calculator, None),
        (watermark, 1),
        (rtx_pro, None),
        (locality_rows, None),
        (single, 3),
        (agentic, 2),
    ],
    ids=lambda value: getattr(value, "STEM", ""),
)
def test_the_page_says_what_is_simulated(module: Any, only: int | None) -> None:
    (path,) = (configs_dir() / "validation").glob(f"{module.STEM}*.csv")
    read = module.read(path) if hasattr(module, "read") else read_table(path, module.COLUMNS)
    comparisons = module.comparisons(read, str(path))
    said = {(row.case, row.metric): row for row in on_the_page() if row.source == module.STEM}
    for comparison in comparisons[:only]:
        answers = [
            simulated(run) if i == 0 or module is single else "not run"
            for i, run in enumerate(comparison.runs)
        ]
        for row in comparison.rows(answers):
            assert row.simulated is not None
            assert number(row.simulated) == number(said[row.case, row.metric].simulated or 0), row
