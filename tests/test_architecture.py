"""What keeps the rooms apart, and the command quick to start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {"pandas", "pyarrow", "matplotlib", "scipy", "simpy", "numpy"}


def test_lower_rooms_never_import_upper_ones() -> None:
    pytest.importorskip("importlinter", reason="import-linter is not installed")
    program = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_command_starts_without_heavy_libraries() -> None:
    program = (
        "import json, sys; from hisparse_sim.cli.main import command_line; command_line(); "
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not HEAVY & set(json.loads(done.stdout))


def test_modules_stay_small() -> None:
    too_long = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / "hisparse_sim").rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 650
    }
    assert not too_long
