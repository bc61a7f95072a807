"""Whether there is a GPU, asked of the driver itself: no compiler and no library of ours is needed."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from hisparse_sim.calibration.bench.gpu import NoGpu

_MAJOR, _MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR (cuda.h)."""


@dataclass(frozen=True, slots=True)
class Found:
    """The first GPU's ``architecture`` as nvcc names it, and the newest CUDA that the driver knows."""

    architecture: str
    cuda: tuple[int, int]


def find_gpu() -> Found:
    """The first GPU of this machine. Raises ``NoGpu``, in one line."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise NoGpu(
            "no NVIDIA driver on this machine (libcuda.so.1 is missing), so nothing is measured"
        ) from None
    version, count, device, major, minor = (ctypes.c_int() for _ in range(5))
    cuda.cuDriverGetVersion(ctypes.byref(version))
    code = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    if code or count.value < 1:
        raise NoGpu(f"no NVIDIA GPU can be used (the driver says {code}), so nothing is measured")
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    # 9.0's own instructions (wgmma) are only in the architecture with an "a".
    suffix = "a" if (major.value, minor.value) == (9, 0) else ""
    return Found(f"{major.value}{minor.value}{suffix}", (version.value // 1000, version.value % 1000 // 10))
