"""A run as a whole, with processes that only pretend: what is written, and when things go wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hisparse_sim.calibration.bench import suite
from hisparse_sim.calibration.bench.benchmarks import GROUPS
from hisparse_sim.calibration.bench.checks import CHECKS
from hisparse_sim.calibration.bench.driver import Found
from hisparse_sim.calibration.bench.gpu import NoGpu
from hisparse_sim.calibration.bench.machine import throttle_reasons
from hisparse_sim.calibration.bench.table import table
from hisparse_sim.calibration.bench.toolchain import ToolMissing
from hisparse_sim.calibration.samples import Samples, read_samples
from hisparse_sim.cli.main import run
from hisparse_sim.cost.hardware import Build

WORKER = """
import json, os, sys, time
library, what, *rest = sys.argv[1:]
def say(**said): print(json.dumps(said), flush=True)
def sample(name, **more):
    say(sample={"name": name, "parameters": {"rows": 4}, "unit": "s", "median_s": 2e-6, "p10_s": 1e-6,
                "p90_s": 3e-6, "n": 5, "status": "ok", "floor_s": 1e-6, "floor": "arithmetic", **more})
GROUPS = %(groups)r
if what == "machine":
    say(hardware={"gpu": "NVIDIA H200", "driver": "580.1"})
elif what == "check":
    for name in rest:
        %(check)s
        say(check={"name": name, "reference": "exact", "cases": 3, "passed": True})
else:
    %(group)s
    for name in GROUPS[what]: sample(name)
"""


@pytest.fixture
def pretend(tmp_path: Path) -> Any:
    """A run whose processes do what the given lines say."""

    def make(*, check: str = "pass", group: str = "pass", budget_s: float = 60.0) -> Samples:
        script = tmp_path / "worker.py"
        names = {g.name: list(g.benchmarks) for g in GROUPS}
        script.write_text(WORKER % {"groups": names, "check": check, "group": group})
        command = lambda arguments: [sys.executable, "-I", str(script), *arguments]  # noqa: E731
        out = tmp_path / "samples.json"
        made = suite.Run(out, budget_s=budget_s, command=command).measure(tmp_path, Build(nvcc="13.0.88"))
        assert read_samples(out) == made
        return made

    return make


def by_name(samples: Samples) -> dict[str, str]:
    return {s.name: s.status for s in samples.samples}


def test_every_benchmark_is_in_the_file(pretend: Any) -> None:
    samples = pretend()
    assert [c.name for c in samples.checks] == list(CHECKS)
    assert by_name(samples) == {name: "ok" for group in GROUPS for name in group.benchmarks}
    assert samples.hardware.driver == "580.1" and samples.build.nvcc == "13.0.88" and samples.created


def test_what_did_not_pass_its_check_is_not_timed(pretend: Any) -> None:
    samples = pretend(
        check="if name == 'resolver': say(check={'name': name, 'reference': 'exact', 'cases': 1, "
        "'passed': False, 'detail': 'wrong rows'}); continue"
    )
    assert by_name(samples)["resolve"] == "failed" and by_name(samples)["gather"] == "ok"
    (told,) = [s for s in samples.samples if s.name == "resolve"]
    assert "resolver did not pass" in told.reason and told.median_s is None
    assert "check resolver: FAILED, 1 comparisons (exact): wrong rows" in list(table(samples))


def test_a_check_that_kills_its_process_fails_alone(pretend: Any) -> None:
    samples = pretend(check="if name == 'topk': os.abort()")
    failed = [c.name for c in samples.checks if not c.passed]
    assert failed == ["topk"] and len(samples.checks) == len(CHECKS)
    assert by_name(samples)["topk"] == "failed"


def test_a_process_that_fails_behind_its_last_check_changes_no_verdict(pretend: Any) -> None:
    samples = pretend(check="if name == rest[-1]: import atexit; atexit.register(os._exit, 7)")
    assert [c.name for c in samples.checks] == list(CHECKS) and all(c.passed for c in samples.checks)


def test_a_line_that_was_cut_off_is_left_out(pretend: Any) -> None:
    cut = "if what == 'memory': sys.stdout.write('{\"sample\": '); sys.stdout.flush(); os._exit(9)"
    samples = pretend(group=cut)
    (told,) = [s for s in samples.samples if s.name == "hbm"]
    assert told.status == "failed" and "exit code 9" in told.reason


def test_a_fault_in_one_group_costs_the_others_nothing(pretend: Any) -> None:
    samples = pretend(group="if what == 'spill': sample('spill'); sys.exit('GpuError: an illegal access')")
    spill = [s for s in samples.samples if s.name == "spill"]
    assert [s.status for s in spill] == ["ok", "failed"] and "an illegal access" in spill[1].reason
    assert by_name(samples)["mirror"] == "truncated" and by_name(samples)["attention"] == "ok"


def test_a_kernel_that_hangs_is_ended(pretend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "SILENT_S", 2.0)
    samples = pretend(group="if what == 'indexer': time.sleep(60)")
    (told,) = [s for s in samples.samples if s.name == "indexer"]
    assert told.status == "failed" and "hung" in told.reason
    assert by_name(samples)["topk"] == "ok"


def test_a_group_is_ended_when_its_time_is_up(pretend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "GRACE_S", 0.3)
    monkeypatch.setattr(suite, "LEAST_S", 0.0)
    monkeypatch.setattr(suite, "END_S", 0.0)
    endless = "while what == 'link': sample('launch'); time.sleep(0.05)"
    samples = pretend(group=endless, budget_s=8.0)
    told = [s for s in samples.samples if s.name == "launch"]
    assert told[0].status == "ok" and told[-1].status == "failed" and "over its time" in told[-1].reason


def test_a_budget_that_is_used_up_says_so(pretend: Any) -> None:
    samples = pretend(budget_s=0.1)
    assert set(by_name(samples).values()) == {"truncated"} and not samples.measured


def test_a_gpu_that_fails_at_once_is_no_gpu(pretend: Any, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text("import sys; sys.exit('hisparse_sim.some.NoGpu: the driver is too old')")
    with pytest.raises(NoGpu, match="cannot be used: the driver is too old"):
        suite.Run(
            tmp_path / "out.json", budget_s=9, command=lambda a: [sys.executable, str(script), *a]
        ).measure(tmp_path, Build())
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize(("passed", "code"), [("True", 0), ("False", 1)])
def test_a_failed_check_is_in_the_exit_code(
    passed: str, code: int, pretend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = f"say(check={{'name': name, 'reference': 'exact', 'cases': 1, 'passed': {passed}}}); continue"
    samples = pretend(check=verdict)
    monkeypatch.setattr(suite, "run", lambda *_, **__: samples)
    assert run(["calibrate", "run", "--out", str(tmp_path / "x.json")]) == code


def test_the_table_shows_each_figure_beside_its_floor(pretend: Any) -> None:
    lines = list(table(pretend()))
    assert lines[0] == "NVIDIA H200, driver 580.1, nvcc 13.0.88"
    at = lines.index("gather (floor: arithmetic)")
    assert lines[at + 1].split() == ["rows", "median", "µs", "p10", "p90", "n", "floor", "µs", "of", "floor"]
    assert lines[at + 2].split() == ["4", "2.00", "1.00", "3.00", "5", "1.00", "2.00"]


def test_a_machine_without_a_gpu_is_one_line_and_exit_code_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none() -> Found:
        raise NoGpu("no NVIDIA driver on this machine")

    monkeypatch.setattr(suite, "find_gpu", none)
    assert run(["calibrate", "run", "--out", str(tmp_path / "samples.json")]) == 3
    said = capsys.readouterr()
    assert said.err == "error: no NVIDIA driver on this machine\n" and said.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_driver_older_than_nvcc_names_both(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(suite, "find_gpu", lambda: Found("90a", (12, 4)))
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho release 13.0, V13.0.88\n")
    nvcc.chmod(0o755)
    with pytest.raises(ToolMissing, match=r"knows CUDA 12\.4, and nvcc is 13\.0\.88; update the driver"):
        suite.run(tmp_path / "out.json", budget_s=9, nvcc=str(nvcc), say=print)


@pytest.mark.parametrize(
    ("out", "says"), [("", "is empty"), ("{}", "is a folder"), ("{}/none/x.json", "there is no folder")]
)
def test_a_file_that_cannot_be_written_is_refused_first(
    out: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["calibrate", "run", "--out", out.format(tmp_path)]) == 2
    assert says in capsys.readouterr().err


def test_throttling_is_told_in_words() -> None:
    assert throttle_reasons("0x0000000000000024") == ("power cap", "software thermal")
    assert throttle_reasons("0x1") == () and throttle_reasons("Active") == ()


def test_a_killed_run_leaves_what_it_had(
    pretend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    give_up = suite.Run._measure

    def second(self: suite.Run, library: Path, group: Any, until_s: float) -> None:
        if group.name == "resolver":
            stop()
        give_up(self, library, group, until_s)

    monkeypatch.setattr(suite.Run, "_measure", second)
    with pytest.raises(KeyboardInterrupt):
        pretend()
    left = json.loads((tmp_path / "samples.json").read_text())
    assert [s["name"] for s in left["samples"]][-1] == "gather" and read_samples(tmp_path / "samples.json")
