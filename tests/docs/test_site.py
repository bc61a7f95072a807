"""The site builds without a warning, says all that the code knows, and fetches nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
from page_files import PAGES, ROOT

pytest.importorskip("material", reason="the site needs the extra `docs`")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(to)]
    # The theme announces its successor on stderr unless told not to.
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return to


def words(page: Path) -> str:
    return unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))


def test_every_page_is_there(site: Path) -> None:
    for page in PAGES[1:]:
        assert (site / page.relative_to(ROOT / "docs").with_suffix(".html")).exists()


def test_every_command_and_option_is_in_the_reference(site: Path) -> None:
    from typer.main import get_command

    from hisparse_sim.cli.main import command_line

    text, queue = words(site / "reference/cli.html"), [("hisparse-sim", get_command(command_line()))]
    for name, command in queue:
        assert name in text
        queue += [(f"{name} {sub}", each) for sub, each in getattr(command, "commands", {}).items()]
        for parameter in command.params:
            assert all(option in text for option in parameter.opts if option.startswith("--")), name


def test_every_field_of_a_scenario_is_in_the_reference(site: Path) -> None:
    from hisparse_sim.scenario.engine import EngineSpec
    from hisparse_sim.scenario.workload import ConversationsSpec, TraceSpec

    text = words(site / "reference/scenario.html")
    for record in (EngineSpec, ConversationsSpec, TraceSpec):
        assert record.__name__ in text
        assert all(field in text for field in record.model_fields)
    assert "HiSparse device_buffer_size: rows of a request's hot buffer" in text


def test_every_python_name_is_in_the_reference(site: Path) -> None:
    import hisparse_sim as hs

    text = words(site / "reference/python.html")
    for name in set(hs.__all__) - {"__version__", "Scenario"}:
        assert re.search(rf"\b{name}\b", text), name
    assert "Contexts on the command line" in words(site / "reference/words.html")


def test_nothing_comes_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        for tag in re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page.read_text(encoding="utf-8")):
            fetched = re.search(r'(?:src|href)="(?:https?:)?//', tag)
            assert not fetched or 'rel="canonical"' in tag, (page, tag)
