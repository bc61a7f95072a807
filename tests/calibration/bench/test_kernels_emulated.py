"""The kernels compute what they must: device code run on the host, against the oracles, bit by bit."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from emulated import emulate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hisparse_sim.calibration.bench import checks
from hisparse_sim.calibration.bench.build import SOURCES
from hisparse_sim.calibration.bench.checks.resolver import check_resolver_case
from hisparse_sim.calibration.bench.checks.sparse import scores_of
from hisparse_sim.calibration.bench.gpu import GpuError, Library
from hisparse_sim.calibration.bench.kernels import Topk
from hisparse_sim.calibration.bench.operations import GatherLists, GatherShape

few = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("name", checks.CHECKS)
def test_each_kernel_passes_its_check(emulation: Library, name: str) -> None:
    check = checks.run_check(emulation, name, full=False)
    assert check.passed, check.detail
    assert check.mismatches == 0


@few
@given(
    requests=st.integers(1, 3),
    k=st.sampled_from([1, 17, 96, 256]),
    slots=st.sampled_from([1, 2, 4]),
    resident=st.sampled_from([0.0, 0.4, 1.0]),
    row_bytes=st.sampled_from([0, 656]),
    seed=st.integers(0, 2**16),
)
def test_the_resolver_is_an_exact_lru(
    emulation: Library, requests: int, k: int, slots: int, resident: float, row_bytes: int, seed: int
) -> None:
    bench = checks.Bench(emulation, 0xA5, full=False, random=np.random.default_rng(seed))
    hot_rows = -(-k // 64) * 64 * slots
    check_resolver_case(bench, requests, k, hot_rows, resident, 3, row_bytes)
    emulation.release()
    assert bench.mismatches == 0, bench.worst


@few
@given(
    length=st.integers(1, 9000),
    k=st.sampled_from([1, 31, 256]),
    ctas=st.sampled_from([1, 2, 7]),
    kind=st.sampled_from(["normal", "top_last", "equal", "ties", "groups"]),
    seed=st.integers(0, 2**16),
)
def test_the_selection_is_the_k_largest(
    emulation: Library, length: int, k: int, ctas: int, kind: str, seed: int
) -> None:
    scores = scores_of(np.random.default_rng(seed), kind, length)
    stride = -(-length // 4) * 4
    memory = emulation.put(np.concatenate([scores, np.full(stride - length, np.inf, np.float32)]))
    topk = Topk(emulation, np.array([length]), stride=stride, k=k)
    emulation.run([topk.op(memory.address, ctas=ctas)])
    chosen = emulation.read(topk.selected, np.int32, k)
    emulation.release()
    chosen = chosen[chosen >= 0]
    assert len(set(chosen.tolist())) == min(k, length)
    assert sorted(scores[chosen]) == sorted(scores)[length - min(k, length) :]


def test_a_selection_out_of_a_million(emulation: Library) -> None:
    length, k = 1 << 20, 2048
    scores = scores_of(np.random.default_rng(1), "normal", length)
    topk = Topk(emulation, np.array([length]), stride=length, k=k)
    emulation.run([topk.op(emulation.put(scores).address, ctas=16)])
    chosen = emulation.read(topk.selected, np.int32, k)
    emulation.release()
    assert np.array_equal(np.sort(scores[chosen]), np.sort(scores)[-k:])


def test_arguments_that_no_kernel_takes_are_refused(emulation: Library) -> None:
    rows = np.zeros((1, 4), dtype=int)
    lists, pool = GatherLists.put(emulation, rows, rows), emulation.empty(4096)
    with pytest.raises(GpuError, match="576, 656 or 1152"):
        emulation.run([lists.op(GatherShape(), pool, pool, 512)])
    with pytest.raises(GpuError, match="512 with 4 rows"):
        emulation.run([lists.op(GatherShape(threads=1024, rows_per_warp=4), pool, pool, 656)])
    emulation.release()


def test_each_kernel_passes_in_a_process_of_its_own(emulation: Library) -> None:
    assert passes(emulation.path, "gather")


MISTAKES = {
    "resolver.cuh": ("lru[stale + i - rank] = slot;", "lru[stale + i - rank] = slot ^ 1;"),
    "topk.cuh": ("prefix |= uint32_t(found.bin) << shift;", "prefix = uint32_t(found.bin) << shift;"),
    "gather.cuh": ("ptx::bulk_wait_read<0>();", "ptx::bulk_wait_read<3>();"),
    "indexer.cuh": ("__syncthreads();  // this page", "// this page"),
    "attention.cuh": ("        __syncthreads();\n\n        // Output of", "\n        // Output of"),
}
"""Planted mistakes: wrong order, wrong bits, two missing barriers, a slot used before it was free."""


def test_planted_mistakes_are_found(tmp_path: Path) -> None:
    sources = tmp_path / "csrc"
    shutil.copytree(SOURCES, sources)
    for name, (right, wrong) in MISTAKES.items():
        text = (sources / name).read_text(encoding="utf-8")
        assert text.count(right) == 1, name
        (sources / name).write_text(text.replace(right, wrong), encoding="utf-8")
    broken = emulate(sources, tmp_path, optimise="-O1")
    for name in ("resolver", "topk", "gather", "indexer", "attention"):
        assert not passes(broken.path, name), name


def passes(library: Path, name: str) -> bool:
    """Whether a check passes, in a process of its own: a broken kernel may bring it down."""
    program = (
        "import sys; from pathlib import Path; from hisparse_sim.calibration.bench import checks, gpu\n"
        "made = gpu.Library(Path(sys.argv[1])); made.open()\n"
        "bench = checks.Bench(made, 0xFF, full=False); checks.CHECKS[sys.argv[2]][0](bench)\n"
        "print('mismatches', bench.mismatches)"
    )
    command = [sys.executable, "-c", program, str(library), name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode < 0 or done.stdout.startswith("mismatches"), done.stderr
    return done.stdout == "mismatches 0\n"
