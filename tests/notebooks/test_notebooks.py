"""The notebooks run anywhere from beginning to end, show pictures, and lie in git without outputs."""

from __future__ import annotations

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


@pytest.mark.notebooks
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_to_its_end_with_pictures_and_conclusions(path: Path, tmp_path: Path) -> None:
    notebook = executed(path, tmp_path)
    assert len(outputs(notebook, "image/png")) >= 3
    assert "nan" not in " ".join(outputs(notebook, "text/markdown")).lower().split()
    said = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    assert not [out for out in said if out.output_type == "stream" and out.name == "stderr"]
    assert "text/markdown" in notebook.cells[-1].outputs[-1]["data"]
