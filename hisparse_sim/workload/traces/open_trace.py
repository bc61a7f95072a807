"""From the description of a trace to its workload: which reader a file or folder wants."""

from __future__ import annotations

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.workload import TraceSpec
from hisparse_sim.workload.traces.blocks import check_kind
from hisparse_sim.workload.traces.flat import FlatTrace, is_document, open_bench_result, open_file
from hisparse_sim.workload.traces.kv_cache_tester import load
from hisparse_sim.workload.traces.recorded import RecordedSessions


def open_trace(spec: TraceSpec, seed: int, *, check: bool = True) -> FlatTrace | RecordedSessions:
    """The requests of a file, or of a folder of sessions.

    ``check``: read all of it first, so that errors come before anything else happens; without, they come
    when the place is reached. Raises InputError naming file and line.
    """
    path = spec.path
    check_kind(path)
    if path.is_dir() or spec.format == "kv-cache-tester":
        if spec.format not in (None, "kv-cache-tester"):
            raise InputError(f"is a folder; format {spec.format} is that of a file", where=str(path))
        return RecordedSessions(spec, seed, check=check)
    if spec.format == "vllm-bench":
        return open_bench_result(spec, load(path), check=check)
    if spec.format is None and is_document(path):
        document = load(path)
        if "input_lens" in document:
            return open_bench_result(spec, document, check=check)
        if "requests" not in document:
            raise InputError(
                "is one JSON object without 'requests' (a kv-cache-tester session) or 'input_lens' (a result"
                " of vllm bench serve); of other requests, write one a line",
                where=str(path),
            )
        return RecordedSessions(spec, seed, check=check)
    return open_file(spec, check=check)
