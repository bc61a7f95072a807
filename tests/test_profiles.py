"""Profiles of your own samples in Python."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import hisparse_sim as hs

pytest.importorskip("scipy", reason="fitting needs the extra `fit`")


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies at 40 GB/s after 5 us, exact; and one benchmark without a form."""
    path = tmp_path_factory.mktemp("samples") / "samples.json"
    points = [("copy_h2d", int(size), 5e-6 + size / 40e9) for size in 2.0 ** np.arange(12, 28)]
    points += [("probe", n, 1e-6 * n) for n in (1, 2, 4)]
    found = [
        {"name": name, "parameters": {"bytes": n}, "unit": "s", "n": 9, "status": "ok"}
        | {"p10_s": s, "median_s": s, "p90_s": s}
        for name, n, s in points
    ]
    whole = {"schema": "hisparse-sim/samples/1", "hardware": {"gpu": "NVIDIA H200"}, "samples": found}
    path.write_text(json.dumps(whole))
    return path


@pytest.fixture(scope="module")
def mine(samples: Path) -> hs.Calibration:
    return hs.calibrate(samples, samples.with_name("mine.json"), over=["h200-published"])


def test_samples_become_a_profile_in_a_file_with_its_errors(mine: hs.Calibration) -> None:
    assert mine.path.exists() and mine.profile.id == "mine"
    (row,) = mine.table.to_dict("records")
    assert row["term"] == "link.h2d" and row["left_out"] and row["error_median"] < 1e-6
    assert mine.seconds("link.h2d", bytes=[4e9])[0] == pytest.approx(0.1, rel=1e-3)
    assert "link.h2d" in repr(mine) and mine._repr_html_().startswith("<pre>")
    with pytest.raises(hs.HiSparseError, match="is not fitted; one of link"):
        mine.seconds("link.d2h", bytes=1)


def test_profiles_are_compared_by_terms_and_seconds_a_token(mine: hs.Calibration) -> None:
    found = hs.compare_profiles("h200-published", mine.path, "agentic-13turn-8xh200")
    assert set(found.terms["term"]) == {"link.h2d"}
    assert len(found.tpot) == 9
    assert "link.h2d" in repr(found) and found._repr_html_().startswith("<pre>")
    assert hs.compare_profiles("h200-published", mine.path).tpot.empty


def test_samples_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(hs.HiSparseError, match="nope"):
        hs.calibrate(tmp_path / "nope.json", tmp_path / "mine.json")
