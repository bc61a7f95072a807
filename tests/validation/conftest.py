"""An empty folder in the layout of recorded traces."""

import pytest


@pytest.fixture
def folder(tmp_path):
    for name in ("scenarios", "v033", "v030"):
        (tmp_path / name).mkdir()
    return tmp_path
