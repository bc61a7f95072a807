"""A recorded samples file becomes a profile with its errors, and prices a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("scipy", reason="fitting needs the extra `fit`")

from hisparse_sim.calibration.importer import to_text
from hisparse_sim.calibration.measured import fit_samples, kept_out
from hisparse_sim.calibration.plan import sample_groups
from hisparse_sim.calibration.samples import Sample, Samples
from hisparse_sim.cost.hardware import Hardware
from hisparse_sim.cost.links import LinkRates
from hisparse_sim.cost.profile import Profile, load_profile
from hisparse_sim.cost.tiers import Tiers
from hisparse_sim.errors import InputError
from hisparse_sim.scenario.loader import load_node, load_scenario
from hisparse_sim.simulation.run import simulate

RNG = np.random.default_rng(3)


def _sample(name: str, seconds: float, **parameters: Any) -> Sample:
    seconds *= RNG.normal(1.0, 0.01)
    return Sample(
        name=name,
        parameters=parameters,
        unit="s",
        median_s=seconds,
        p10_s=0.99 * seconds,
        p90_s=1.02 * seconds,
        n=31,
        status="ok",
    )


def synthetic(*, gpu: str = "NVIDIA H200") -> Samples:
    """A link of 50 GB/s each way and 80 both ways, gathers to 42 GB/s, and resolves of 12 us a wave."""
    found = []
    for name, rate in (("copy_h2d", 50e9), ("copy_d2h", 50e9), ("copy_both", 40e9)):
        found += [_sample(name, 3e-6 + b / rate, bytes=int(b)) for b in 2.0 ** np.arange(12, 29)]
    for rows in (1, 8, 64, 512, 4096, 32_768):
        for ctas in (1, 8, 64):
            for size, lines in ((576, 5), (656, 6), (1152, 9)):
                moved = rows * lines * 128
                seconds = 4e-6 + moved / min(42e9, ctas * 7e9)
                found.append(
                    _sample(
                        "gather",
                        seconds,
                        rows=rows,
                        row_bytes=size,
                        ctas=ctas,
                        kernel="sm",
                        locality="random",
                    )
                )
                found.append(
                    _sample(
                        "gather",
                        seconds / 2,
                        rows=rows,
                        row_bytes=size,
                        ctas=ctas,
                        kernel="bulk",
                        locality="random",
                    )
                )
    for batch in (1, 16, 64, 132, 133, 200, 264, 265, 300):
        for misses in (41, 205):
            seconds = (5e-6 + 12e-6 * -(-batch // 132)) * (1.0 if misses == 205 else 0.5)
            found.append(
                _sample(
                    "resolve",
                    seconds,
                    batch=batch,
                    kernel="split",
                    misses=misses,
                    hot_rows=4096,
                    resident=0.0,
                )
            )
    found += [_sample("launch", 1.1e-6 * n, kernel="graph", launches=n) for n in (1, 16, 256)]
    found += [_sample("copy_issue", 2e-6, kernel="single", bytes=n) for n in (656, 41_984, 262_144)]
    found += [
        _sample("probe", 9e-6 + 4e-10 * length, length=length) for length in (4096, 16_384, 65_536, 2**20)
    ]
    found.append(Sample(name="spill", unit="s", status="truncated", reason="budget of 170 s used up"))
    return Samples(hardware=Hardware(gpu=gpu), created="2026-11-29T00:00:00Z", samples=tuple(found))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profiles") / "box.json"
    fitted = fit_samples(synthetic(), profile_id="box", over=["h200-published"])
    assert not fitted.refused
    path.write_text(to_text(fitted.profile))
    return path


def test_the_profile_states_samples_domains_and_errors_on_points_left_out(measured: Path) -> None:
    profile = Profile.model_validate(json.loads(measured.read_text()))
    assert profile.kind == "measured" and len(profile.samples) == len(synthetic().samples)
    assert {term.id for term in profile.terms} == {
        "link.h2d", "link.d2h", "link.both_ways", "link.copy_issue", "hisparse.kernel",
        "hisparse.gather", "hisparse.resolve",
    }  # fmt: skip
    for term in profile.terms:
        assert term.residual and term.domain and "points" in term.note
        assert term.form == "constant" or (term.holdout and term.holdout.median_abs_rel < 0.05)
    assert profile.term("hisparse.kernel").value() == pytest.approx(1.1e-6, rel=0.05)
    # Of the misses that were timed, those next to what the cost model expects.
    assert profile.term("hisparse.resolve").value("wave_s") == pytest.approx(12e-6, rel=0.1)
    gather = profile.term("hisparse.gather")
    assert gather.value("saturated_bytes_per_s") == pytest.approx(42e9, rel=0.05)
    assert gather.value("block_bytes_per_s") == pytest.approx(7e9, rel=0.05)


def test_measured_terms_hide_what_the_node_and_the_publications_say(measured: Path) -> None:
    node, whole = load_node("8xh200"), load_profile(measured)
    rates = LinkRates(node, ranks=1, profile=whole)
    assert rates.h2d_bytes_per_s == pytest.approx(50e9, rel=0.03)
    assert rates.both_ways_bytes_per_s == pytest.approx(80e9, rel=0.03)
    tiers = Tiers(node, whole, layers=78, leaders=21, row_bytes=656, ranks=8)
    published = Tiers(node, load_profile("h200-published"), layers=78, leaders=21, row_bytes=656, ranks=8)
    many = tiers.layer_gather_s(100_000, 0.0, 64), published.layer_gather_s(100_000, 0.0, 64)
    assert many[0] / many[1] == pytest.approx(35 / 42, rel=0.06)


def test_a_run_with_a_measured_profile_names_it(measured: Path) -> None:
    scenario = load_scenario(
        "agentic-13turn-8xh200",
        overrides=[f"calibration={measured}", "workload.limit=3", "engine.mode=hisparse"],
    )
    summary = simulate(scenario).summary
    assert summary["calibration"] == "box"
    assert summary["calibration_sha256"] == load_profile(measured).hash
    assert summary["requests_completed"] == 3


def test_a_fit_worse_than_the_gate_is_refused_and_said() -> None:
    fitted = fit_samples(synthetic(), profile_id="box", forms={"probe": "constant"}, gate=0.10)
    (line,) = fitted.refused
    assert line.startswith("probe: constant misses points left out by") and "10.0%" in line
    assert "probe" not in {term["id"] for term in fitted.profile["terms"]}
    kept = fit_samples(synthetic(), profile_id="box", forms={"probe": "alpha_beta"})
    assert "probe" in {term["id"] for term in kept.profile["terms"]}


def test_nothing_left_to_fit_is_refused() -> None:
    empty = Samples(hardware=Hardware(gpu="NVIDIA H200"), samples=synthetic().samples[-1:])
    with pytest.raises(InputError, match="nothing could be fitted"):
        fit_samples(empty, profile_id="box")
    copies = Samples(hardware=Hardware(gpu="NVIDIA H200"), samples=synthetic().samples[:17])
    with pytest.raises(InputError, match=r"nothing could be fitted: link\.h2d: alpha_beta misses"):
        fit_samples(copies, profile_id="box", gate=0.0)


def test_points_left_out_are_the_same_each_time_and_never_the_ends() -> None:
    out = kept_out(40, 0.25)
    assert out.sum() == 10 and (out == kept_out(40, 0.25)).all() and not out[[0, -1]].any()
    assert not kept_out(7, 0.25).any()


@pytest.mark.parametrize(
    ("forms", "said"),
    [
        ({"prob": "alpha_beta"}, "did you mean 'probe'"),
        ({"probe": "spline"}, "unknown form 'spline'"),
        ({"probe": "inflight_saturation"}, "needs the parameters rows, row_bytes, blocks"),
        ({"gather": "alpha_beta"}, "has one variable, but"),
    ],
)
def test_a_form_that_does_not_go_with_the_points_is_refused(forms: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        list(sample_groups(synthetic(), forms))


def test_text_parameters_split_a_benchmark_into_terms() -> None:
    groups = {g.term: g for g in sample_groups(synthetic(), {"gather": "table"})}
    assert {"gather.sm.random", "gather.bulk.random"} <= set(groups)
    assert set(groups["gather.sm.random"].variables) == {"rows", "row_bytes", "ctas"}
    assert "hisparse.gather" not in groups  # the form given replaces the plan
