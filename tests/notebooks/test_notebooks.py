"""The notebooks run anywhere from beginning to end, show pictures, and lie in git without outputs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SECONDS = 300
"""For one cell; a limit against a cell that hangs, not a goal."""


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def outputs(notebook: Any, kind: str) -> list[str]:
    """What cells showed as ``kind`` (``image/png``)."""
    cells = (cell for cell in notebook.cells if cell.cell_type == "code")
    shown = (out.get("data", {}) for cell in cells for out in cell.outputs)
    return [data[kind] for data in shown if kind in data]


def executed(path: Path, folder: Path, *more: str) -> Any:
    """The notebook run in ``folder``, with ``more`` cells at its end. Raises what a cell raised."""
    notebook = read(path)
    notebook.cells += [nbformat.v4.new_code_cell(source) for source in more]
    NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_lies_in_git_without_outputs_and_begins_with_its_question(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
    assert "widgets" not in notebook.metadata
    first = notebook.cells[0]
    assert first.cell_type == "markdown"
    assert first.source.startswith("# ")
    assert "?" in first.source


SLIDERS = """
import json
asked = dict(service="writing: long answers", link="PCIe 5", dram=1.0, dram_rate=1.0, misses=1.0)
asked |= dict(topk=2048, clients=24)
moved = [{}, {"link": "C2C"}, {"misses": 0.3}, {"topk": 4096}, {"clients": 4}]
moved += [{"service": "waiting: people think"}]
told = [by_estimate(**(asked | one)).loc["output_tokens_per_s"].tolist() for one in moved]
few = asked | {"service": "acting: short answers", "link": "PCIe 6", "clients": 3}
shown = [widgets.interactive(by_estimate, **knobs()).children[0].description]
print(json.dumps({"told": told, "simulated": repr(by_simulation(**few)), "shown": shown}))
"""
"""A cell at the end of the notebook with sliders: what they call, called."""
MORE = {"3-what-if": SLIDERS}


@pytest.mark.notebooks
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_to_its_end_with_pictures_and_conclusions(path: Path, tmp_path: Path) -> None:
    more = [MORE[path.stem]] if path.stem in MORE else []
    notebook = executed(path, tmp_path, *more)
    said = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    assert not [out for out in said if out.output_type == "stream" and out.name == "stderr"]
    assert len(outputs(notebook, "image/png")) >= 2
    conclusions = outputs(notebook, "text/markdown")
    assert any(text.startswith("### ") for text in conclusions)
    assert not re.search(r"\b(nan|None|inf)\b", " ".join(conclusions))
    if more:
        assert_sliders_answer(json.loads(said[-1].text))


def assert_sliders_answer(found: dict[str, Any]) -> None:
    """``told``: output tokens/s as it is and as asked, for each move of a slider."""
    same, *moved = found["told"]
    assert same[0] == same[1]
    c2c, fewer_misses, larger_topk, few_clients, other = (what_if for _, what_if in moved)
    assert c2c > same[0]
    assert fewer_misses > same[0]
    assert larger_topk < same[0]
    assert few_clients < same[0]
    assert other != same[0]
    assert "running requests, mean" in found["simulated"]
    assert found["shown"] == ["service"]
