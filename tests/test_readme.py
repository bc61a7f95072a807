"""The README's commands work, one after the other, in an empty folder."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from hisparse_sim.cli.main import run

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, flags=re.S | re.M)
COMMANDS = [line for kind, block in BLOCKS if not kind for line in block.splitlines() if line.strip()]


def some_requests(path: Path) -> None:
    rows = [{"arrival_s": float(i), "prompt_tokens": 500 + i, "output_tokens": 20} for i in range(20)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_the_readme_has_commands_of_each_kind() -> None:
    said = "\n".join(COMMANDS)
    for word in ("./scripts/demo", "estimate", " run ", "models", "nodes", "plot", "workload"):
        assert word in said


def test_each_command_of_the_readme_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    some_requests(tmp_path / "path/to/requests.jsonl")
    # Stands for the folder of recorded sessions, which is somewhere else on each machine.
    some_requests(tmp_path / "path/to/kv-cache-tester/traces")
    for command in COMMANDS:
        words = shlex.split(command)
        if words[0].startswith("./scripts/"):
            assert (ROOT / words[0]).is_file()
            continue
        assert Path(words[0]).name == "hisparse-sim", command
        assert run(words[1:]) == 0, command


def test_the_python_of_the_readme_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"^```python\n(.*?)^```", README, flags=re.S | re.M)
    exec(compile(block, "README.md", "exec"), {})
    assert (tmp_path / "timeline.png").stat().st_size > 10_000
