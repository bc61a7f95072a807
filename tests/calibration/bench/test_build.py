"""The build: what is compiled, what is refused, and what the machine code holds."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from pathlib import Path

import pytest

from hisparse_sim.calibration.bench import toolchain
from hisparse_sim.calibration.bench.build import Built, build, read_kernels, readable
from hisparse_sim.calibration.bench.gpu import Library, NoGpu
from hisparse_sim.cli.main import run
from hisparse_sim.errors import HiSparseError, InputError


@pytest.fixture
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_no_kernel_spills(built: Built) -> None:
    assert {k.name for k in built.kernels if k.spilled_bytes} == set()
    assert len(built.kernels) >= 20


@pytest.mark.usefixtures("_own_cache")
def test_plain_hopper_compiles_without_spills_too(built: Built) -> None:
    plain = build(architecture="90")
    assert {k.name for k in plain.kernels} == {k.name for k in built.kernels}
    assert not any(k.spilled_bytes for k in plain.kernels)


def test_two_resolvers_fit_on_one_processor(built: Built) -> None:
    registers = {k.name: k.registers for k in built.kernels}
    assert registers["resolve<0>"] <= 65_536 // (2 * 1024)


def test_the_record_names_what_was_built_with_what(built: Built) -> None:
    record = built.build
    assert (
        re.fullmatch(r"\d+\.\d+\.\d+", record.nvcc) and record.architecture == "90a" and record.host_compiler
    )
    stated = record.model_dump()
    assert {len(stated[f"{name}_sha256"]) for name in ("source", "library")} == {64}
    assert "sm_90a" in record.flags


def test_a_second_build_is_the_first(built: Built) -> None:
    again = build()
    assert built.fresh and not again.fresh and again.path == built.path and again.build == built.build


def test_the_library_loads_and_says_that_there_is_no_gpu(built: Built) -> None:
    library = Library(built.path)
    try:
        library.open()
    except NoGpu as none:
        assert re.fullmatch(r"(no NVIDIA driver|the NVIDIA driver is too old|no NVIDIA GPU) .+", str(none))
    else:
        pytest.skip("this machine has a GPU")


@pytest.fixture(scope="module")
def sass(built: Built) -> dict[str, str]:
    """The machine code of each kernel."""
    cuobjdump = toolchain.pip_tool("cuobjdump")
    if cuobjdump is None:
        pytest.skip("cuobjdump is not installed (pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm)")
    path = f"{cuobjdump.parent}{os.pathsep}{os.environ['PATH']}"  # it calls nvdisasm
    done = subprocess.run(
        [cuobjdump, "-sass", built.path],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    parts = done.stdout.split("Function : ")[1:]
    return {readable(part.split()[0]): part for part in parts}


def test_the_indexer_uses_fp8_tensor_cores(sass: dict[str, str]) -> None:
    for heads in (32, 64):
        code = sass[f"indexer_scores<{heads}>"]
        products = re.findall(r"QGMMA\.(\d+x\d+x\d+)\.F32\.E4M3\.E4M3", code)
        assert products == [f"64x{heads}x32"] * 4
        # One after the other, with one wait behind the last: the compiler did not serialise them.
        assert len(re.findall(r"WARPGROUP\.DEPBAR", code)) == 1


def test_attention_uses_tensor_cores(sass: dict[str, str]) -> None:
    assert re.search(r"HMMA\.16816\.F32\.BF16", sass["attend"])
    assert re.search(r"F2FP\.F16\.E4M3\.UNPACK_B", sass["attend"])


def test_rows_move_in_whole_vectors_and_all_loads_come_first(sass: dict[str, str]) -> None:
    for row_bytes in (576, 656, 1152):
        for rows in (1, 4):
            accesses = re.findall(r"(LDG|STG)\.E\.128\.", sass[f"gather_rows<{row_bytes},{rows}>"])
            loads = -(-row_bytes * rows // 512)
            assert accesses[: 2 * loads] == ["LDG"] * loads + ["STG"] * loads


def test_the_bulk_gather_uses_bulk_copies(sass: dict[str, str]) -> None:
    code = sass["gather_rows_bulk"]
    assert "UBLKCP.S.G" in code and "UBLKCP.G.S" in code


def test_nothing_lives_in_local_memory(sass: dict[str, str]) -> None:
    assert [name for name, code in sass.items() if re.search(r"\b(LDL|STL)\b", code)] == []


def test_ptxas_reports_are_read() -> None:
    report = """ptxas info    : Function properties for _ZN8hisparse11gather_rowsILi656ELi4EEEvNS_6GatherE
    8 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 9216 bytes smem, 448 bytes cmem[0]
"""
    (kernel,) = read_kernels(report)
    assert (kernel.name, kernel.registers, kernel.spilled_bytes, kernel.shared_bytes) == (
        "gather_rows<656,4>",
        64,
        20,
        9216,
    )
    assert readable("_ZN8hisparse11topk_selectILb0EEEvNS_4TopkE") == "topk_select<0>"
    assert readable("other") == "other"


def fake_nvcc(folder: Path, *, version: str = "13.0.88", spills: int = 0, fails: bool = False) -> Path:
    """A program that behaves like nvcc, without compiling anything."""
    nvcc = folder / "nvcc"
    report = f"ptxas info : Function properties for x\\n {spills} bytes spill stores, 0 bytes spill loads\\n"
    nvcc.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = --version ]; then echo "release 13.0, V{version}"; exit; fi\n'
        + ('echo "a.cu(1): error: no good" >&2; exit 1\n' if fails else "")
        + f"printf '{report}ptxas info : Used 8 registers\\n'\n"
        'for last; do :; done; echo > "$last"\n'
    )
    nvcc.chmod(nvcc.stat().st_mode | stat.S_IXUSR)
    return nvcc


@pytest.mark.usefixtures("_own_cache")
def test_kernels_that_spill_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HiSparseError, match="spill"):
        build(nvcc=str(fake_nvcc(tmp_path, spills=4)))
    elsewhere = build(nvcc=str(fake_nvcc(tmp_path, spills=4)), architecture="100")
    assert elsewhere.kernels[0].spilled_bytes == 4


@pytest.mark.usefixtures("_own_cache")
def test_what_nvcc_says_of_an_error_is_passed_on_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["calibrate", "build", "--nvcc", str(fake_nvcc(tmp_path, fails=True))]) == 2
    said = capsys.readouterr().err
    assert "no good" in said and said.count("\n") == 1
    assert list((tmp_path / "cache/hisparse-sim").iterdir()) == []


@pytest.mark.usefixtures("_own_cache")
def test_an_old_nvcc_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HiSparseError, match=r"nvcc 11\.8\.89 is too old: CUDA 12\.3 or newer"):
        build(nvcc=str(fake_nvcc(tmp_path, version="11.8.89")))


def test_a_missing_nvcc_is_one_line_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(toolchain, "_usual_places", lambda: iter([tmp_path / "nvcc"]))
    for variable in ("HISPARSE_NVCC", "CUDACXX"):
        monkeypatch.delenv(variable, raising=False)
    assert run(["calibrate", "build"]) == 2
    said = capsys.readouterr().err
    assert "nvcc is not on this machine" in said and "hisparse-sim[nvcc]" in said and said.count("\n") == 1


def test_a_missing_host_compiler_is_one_line_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nvcc = fake_nvcc(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("NVCC_CCBIN", raising=False)
    assert run(["calibrate", "build", "--nvcc", str(nvcc)]) == 2
    said = capsys.readouterr().err
    assert "g++ is not on this machine" in said and "apt install g++" in said and said.count("\n") == 1


@pytest.mark.parametrize("variable", ["HISPARSE_NVCC", "CUDACXX", "NVCC_CCBIN"])
def test_a_variable_that_names_no_program_is_named(
    variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(variable, "/nowhere/at-all")
    nvcc = None if variable != "NVCC_CCBIN" else str(fake_nvcc(tmp_path))
    with pytest.raises(InputError, match=rf"\${variable}: /nowhere/at-all"):
        build(nvcc=nvcc)


def test_an_architecture_is_checked_before_anything_runs() -> None:
    with pytest.raises(InputError, match="--arch"):
        build(architecture="hopper")
