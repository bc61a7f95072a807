"""What the tests of the benchmarks share: the emulated library, and the one that nvcc builds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from emulated import emulate

from hisparse_sim.calibration.bench.build import SOURCES, Built, build
from hisparse_sim.calibration.bench.gpu import Library
from hisparse_sim.calibration.bench.toolchain import ToolMissing, find_toolchain


@pytest.fixture(scope="session")
def emulation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    """All kernels, emulated on the host."""
    library = emulate(SOURCES, tmp_path_factory.mktemp("emulation"))
    yield library
    library.release()


@pytest.fixture
def emulated_path(emulation: Library) -> str:
    """Where the emulated library is."""
    return str(emulation.path)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    """The library for Hopper, compiled by the nvcc of this machine."""
    try:
        find_toolchain()
    except ToolMissing as missing:
        pytest.skip(str(missing))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield build()
