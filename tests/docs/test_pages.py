"""What README and the pages of docs/ tell people to type works, and prints what they say it prints.

A block of kind ``bash`` is run in an empty folder with small files of the reader's; a block of kind ``text``
that follows it holds lines that it prints, ``...`` between. Where nothing is shown, runs are cut to a few
requests. What cannot be run here says why in a comment before it, and must still be a command with such
options.
"""

from __future__ import annotations

import io
import re
import shlex
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml
from page_files import PAGES, ROOT, Block, blocks, readers_files, recorded_rows
from typer.main import get_command

from hisparse_sim.cli.main import command_line, run

CUT = {
    "run": ["--limit", "13"],
    "sweep": ["--set", "workload.limit=4", "--jobs", "1"],
    "plan": ["--set", "workload.limit=13", "--simulate", "2", "--bisect", "1"],
    "sensitivity": ["--set", "workload.limit=13"],
}
MAY_SAY_NO = ("doctor", "plan")
"""Exit code 1 of these is an answer: of this host, or of so few requests."""
KINDS = {"bash", "text", "yaml", "python"}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def ids(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_what_a_page_tells_to_type_works(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = list(blocks(page))
    if any(block.kind in ("bash", "python") for block in found):
        readers_files(tmp_path)
    if "rows.npy" in page.read_text(encoding="utf-8"):
        recorded_rows(tmp_path / "rows.npy")
    for block in found:
        write_yaml(block, tmp_path)
    names: dict[str, Any] = {}
    for i, block in enumerate(found):
        if block.kind == "python" and not block.reason:
            with redirect_stdout(io.StringIO()):
                exec(compile(block.text, str(page), "exec"), names)
        if block.kind != "bash":
            continue
        after = found[i + 1] if found[i + 1 :] else None
        shown = after if after is not None and after.kind == "text" and after.follows else None
        printed = ""
        for command in block.commands:
            check_words(command) if block.reason else None
            printed += "" if block.reason else typed(command, whole=shown is not None)
        if shown is not None:
            lines = {line.rstrip() for line in printed.splitlines()}
            missing = [line for line in shown.text.splitlines() if line.rstrip() not in lines | {"...", ""}]
            assert not missing, "\n".join(["not printed:", *missing, "but:", printed])


def write_yaml(block: Block, folder: Path) -> None:
    """A YAML block that begins with a file's name is that file, or goes into one that is there."""
    if block.kind == "yaml" and (named := re.match(r"# (\w[\w.-]*\.yaml)\b", block.text)):
        path = folder / named[1]
        before = yaml.safe_load(path.read_text()) if path.exists() else {}
        path.write_text(yaml.safe_dump(before | yaml.safe_load(block.text)), encoding="utf-8")


def typed(command: str, *, whole: bool) -> str:
    """What ``command`` prints; it is cut short unless asked for ``whole``."""
    words = split(command)
    words, into = (words[:-2], words[-1]) if words[-2:-1] == [">"] else (words, None)
    if words[0].startswith("./scripts/"):
        check_words(command)
        return ""
    assert words[0] == "hisparse-sim", command
    more = [] if whole or "--limit" in words or "--estimate" in words else CUT.get(words[1], [])
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with redirect_stdout(out), redirect_stderr(out):
        code = run(words[1:] + more)
    printed = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert code == 0 or (code == 1 and words[1] in MAY_SAY_NO), f"{command}\n{printed}"
    if into is not None:
        Path(into).write_text(printed, encoding="utf-8")
    return printed


def split(command: str) -> list[str]:
    """Its words, without a comment at the end."""
    return shlex.split(re.sub(r"\s#.*", "", command))


def check_words(command: str) -> None:
    """``command`` is one, with options that it has."""
    words = split(command)
    if words[0] == "hisparse-sim":
        parsed: Any = get_command(command_line())
        names = words[1:]
        while hasattr(parsed, "commands"):
            parsed = parsed.commands[names.pop(0)]
        parsed.make_context(parsed.name, names)
    elif words[:2] == ["pip", "install"]:
        asked = re.fullmatch(r"\.(?:\[(\w+)\])?", words[2])
        assert asked and (asked[1] is None or asked[1] in EXTRAS), command
    else:
        file = words[1] if words[0] == "python" else words[0]
        assert file in ("mkdocs", "jupyter") or (ROOT / file).exists(), command


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_block_says_of_what_kind_it_is(page: Path) -> None:
    assert {block.kind for block in blocks(page)} <= KINDS


def test_an_option_that_is_not_there_is_found() -> None:
    with pytest.raises(Exception, match="No such option"):
        check_words("hisparse-sim validate published --nothing")


def test_readme_is_read_in_five_minutes() -> None:
    # 250 words a minute, tables and output included.
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) < 1250
