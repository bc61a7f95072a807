"""The GPU's own memory."""

from __future__ import annotations

from collections.abc import Iterator

from hisparse_sim.calibration.bench.operations import copy, fill, stream
from hisparse_sim.calibration.bench.points import Ground, Point, calls_for

DIRECTIONS = {"read": 0, "write": 1, "copy": 2}


def passes(ground: Ground) -> Iterator[Point]:
    """One pass over so many bytes; a copy reads them and writes as many. ``engine``: cudaMemcpyAsync."""
    library = ground.gpu
    most = min(4 << 30, int(ground.device.memory_bytes) // 8)
    source, target = library.empty(most), library.empty(most)
    library.run([fill(source)])
    for nbytes in (n for n in (1 << 30, 4 << 30, 256 << 20, 64 << 20) if n <= most):
        calls = calls_for(nbytes / 3e12)
        # Passes follow one another over the same memory: a small one would find it in the L2.
        cold = nbytes >= 4 * ground.device.l2_bytes
        for kernel, direction in DIRECTIONS.items():
            once = stream(direction, target, source, ctas=8 * ground.device.sms, nbytes=nbytes)
            moved = nbytes * (2 if kernel == "copy" else 1)
            yield Point(
                {"kernel": kernel, "bytes": nbytes},
                [once] * calls,
                calls,
                floor=ground.floor(hbm_bytes=moved),
                cold=cold,
            )
        yield Point(
            {"kernel": "engine", "bytes": nbytes},
            [copy(target.address, source.address, nbytes)] * calls,
            calls,
            floor=ground.floor(hbm_bytes=2 * nbytes),
            cold=cold,
        )
