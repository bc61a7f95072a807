"""The built library as Python calls it: memory as numpy arrays, operations run or timed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.calibration.bench.abi import STREAMS, Device, Op, Timing
from hisparse_sim.errors import HiSparseError

GPU, HOST = 0, 1
"""Where memory is: on the GPU, or pinned on the host."""

NO_GPU = {35, 100, 999}
"""CUDA's codes for: driver absent or older than the runtime, no device, unknown (a broken driver)."""

UNSUPPORTED = -2


class NoGpu(HiSparseError):
    """There is no GPU that could be measured, or its driver is too old."""


class GpuError(HiSparseError):
    """A call of the library failed; ``code`` is CUDA's, or negative when the library refused."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code

    @property
    def fatal(self) -> bool:
        """Whether the GPU is lost to this process: illegal accesses, faults, hangs, memory errors."""
        return 700 <= self.code <= 722 or self.code in (214, 999)


@dataclass(frozen=True, slots=True)
class Timed:
    """``seconds[stream, launch]`` of a timing; ``late``: launches that may hold gaps."""

    seconds: NDArray[np.float64]
    late: int


class Memory:
    """A piece of GPU or pinned host memory; freed with :meth:`Library.release`."""

    def __init__(self, address: int, nbytes: int, space: int) -> None:
        self.address = address
        self.nbytes = nbytes
        self.space = space

    def __index__(self) -> int:
        return self.address


class Library:
    """One loaded library, one GPU. ``open`` before anything else."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise HiSparseError(f"the library cannot be loaded: {error}", where=str(path)) from None
        self._library.hisparse_error.restype = ctypes.c_char_p
        self._library.hisparse_op_bytes.restype = ctypes.c_longlong
        if self._library.hisparse_op_bytes() != ctypes.sizeof(Op):
            raise HiSparseError("was built from other sources than this version's", where=str(path))
        self._owned: list[Memory] = []

    def open(self, index: int = 0) -> Device:
        """Make GPU ``index`` the one to work on. Raises ``NoGpu`` in one line when there is none."""
        device = Device()
        code = self._library.hisparse_open(index, ctypes.byref(device))
        if code == 0:
            return device
        if code not in NO_GPU:
            raise GpuError(self._error(), code)
        if device.driver == 0:
            raise NoGpu("no NVIDIA driver on this machine (libcuda.so.1 is missing)")
        if code == 35:
            raise NoGpu(
                f"the NVIDIA driver is too old: it knows CUDA {_version(device.driver)}, the library was "
                f"built with {_version(device.runtime)}; update the driver, or build with an older nvcc"
            )
        raise NoGpu(f"no NVIDIA GPU can be used: {self._error()}")

    def empty(self, nbytes: int, space: int = GPU) -> Memory:
        """Memory that holds anything."""
        address = ctypes.c_void_p()
        self._try(self._library.hisparse_allocate(space, ctypes.c_longlong(nbytes), ctypes.byref(address)))
        made = Memory(address.value or 0, nbytes, space)
        self._owned.append(made)
        return made

    def put(self, array: NDArray[Any], space: int = GPU) -> Memory:
        """Memory that holds a copy of ``array``."""
        array = np.ascontiguousarray(array)
        made = self.empty(array.nbytes, space)
        self.write(made, array)
        return made

    def write(self, target: Memory, array: NDArray[Any], offset: int = 0) -> None:
        """Copy ``array`` into ``target`` from byte ``offset`` on."""
        array = np.ascontiguousarray(array)
        if offset + array.nbytes > target.nbytes:
            raise ValueError(f"{array.nbytes} bytes at {offset} are more than {target.nbytes}")
        self._copy(target.address + offset, array.ctypes.data, array.nbytes)

    def read(self, source: Memory, dtype: Any, shape: Sequence[int] | int, offset: int = 0) -> NDArray[Any]:
        """An array of ``shape`` from byte ``offset`` of ``source`` on."""
        array = np.empty(shape, dtype=dtype)
        if offset + array.nbytes > source.nbytes:
            raise ValueError(f"{array.nbytes} bytes at {offset} are more than {source.nbytes}")
        self._copy(array.ctypes.data, source.address + offset, array.nbytes)
        return array

    def set(self, target: Memory, byte: int) -> None:
        """Every byte of ``target`` is ``byte`` afterwards."""
        if target.space == HOST:
            ctypes.memset(target.address, byte, target.nbytes)
        else:
            self._try(self._library.hisparse_set(_pointer(target), byte, ctypes.c_longlong(target.nbytes)))

    def release(self, keep: int = 0) -> None:
        """Free all that this library gave out, but for the first ``keep`` pieces."""
        while len(self._owned) > keep:
            memory = self._owned.pop()
            self._try(self._library.hisparse_release(memory.space, _pointer(memory)))

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is allocated inside is freed at the end."""
        before = len(self._owned)
        try:
            yield
        finally:
            self.release(before)

    def repeat(self, pattern: NDArray[Any], times: int) -> Memory:
        """GPU memory that holds ``pattern`` so many times; written once, doubled on the GPU."""
        made = self.empty(pattern.nbytes * times)
        self.write(made, pattern)
        done = pattern.nbytes
        while done < made.nbytes:
            step = min(done, made.nbytes - done)
            self._copy(made.address + done, made.address, step)
            done += step
        return made

    def run(self, ops: Sequence[Op]) -> None:
        """Launch one after the other; each is waited for and checked."""
        self._try(self._library.hisparse_run(_array(ops), ctypes.c_longlong(len(ops))))

    def time(
        self,
        ops: Sequence[Op],
        *,
        slices: int = 1,
        launches: int,
        warmup: int = 3,
        graphs: bool = True,
        most_s: float = 5.0,
        before: Op | None = None,
    ) -> Timed:
        """Seconds of each launch of a slice; a slice is a CUDA graph unless ``graphs`` is false.

        ``before`` is launched ahead of each slice, and not timed.
        """
        ahead = ctypes.addressof(before) if before is not None else 0
        how = Timing(slices, launches, warmup, int(graphs), most_s, ahead)
        seconds = np.zeros((STREAMS, launches))
        recorded, late = ctypes.c_longlong(), ctypes.c_longlong()
        self._try(
            self._library.hisparse_time(
                _array(ops),
                ctypes.c_longlong(len(ops)),
                ctypes.byref(how),
                seconds.ctypes.data_as(ctypes.POINTER(ctypes.c_double)),
                ctypes.byref(recorded),
                ctypes.byref(late),
            )
        )
        return Timed(seconds[:, : recorded.value], late.value)

    def issue(self, ops: Sequence[Op], *, repeats: int) -> NDArray[np.float64]:
        """Seconds of host time to issue all of ``ops``, for each repeat."""
        seconds = np.zeros(repeats)
        self._try(
            self._library.hisparse_issue(
                _array(ops),
                ctypes.c_longlong(len(ops)),
                ctypes.c_longlong(repeats),
                seconds.ctypes.data_as(ctypes.POINTER(ctypes.c_double)),
            )
        )
        return seconds

    def _copy(self, target: int, source: int, nbytes: int) -> None:
        self._try(
            self._library.hisparse_copy(
                ctypes.c_void_p(target), ctypes.c_void_p(source), ctypes.c_longlong(nbytes)
            )
        )

    def _try(self, code: int) -> None:
        if code != 0:
            raise GpuError(self._error(), code)

    def _error(self) -> str:
        return str(self._library.hisparse_error().decode(errors="replace"))


def _array(ops: Sequence[Op]) -> ctypes.Array[Op]:
    return (Op * len(ops))(*ops)


def _pointer(memory: Memory) -> ctypes.c_void_p:
    return ctypes.c_void_p(memory.address)


def _version(number: int) -> str:
    """``13000`` as ``13.0``."""
    return f"{number // 1000}.{number % 1000 // 10}"
