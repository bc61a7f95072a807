"""Recorded requests: files of several formats, checked, cut, stretched and repeated.

In: a ``TraceSpec``. Out: a ``Workload``. One module a container (lines, Parquet, a JSON document) and a table
of formats in ``formats``; ``recorded`` plays sessions, ``flat`` everything with a row a request.
"""

from hisparse_sim.workload.traces.open_trace import open_trace

__all__ = ["open_trace"]
