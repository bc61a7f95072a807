"""From the description of a workload to the workload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hisparse_sim.scenario.workload import (
    AgenticCodingSpec,
    ConversationsSpec,
    DocumentsSpec,
    OpenSpec,
    PoissonSpec,
    StreamSpec,
    TraceSpec,
    WorkloadSpec,
)
from hisparse_sim.workload.agentic import AgenticCoding
from hisparse_sim.workload.documents import Documents
from hisparse_sim.workload.request import Workload
from hisparse_sim.workload.sessions import Conversations
from hisparse_sim.workload.singles import SingleRequests

_MAKERS: dict[type, Callable[[Any, int], Workload]] = {
    ConversationsSpec: Conversations,
    PoissonSpec: SingleRequests,
    OpenSpec: SingleRequests,
    StreamSpec: SingleRequests,
    AgenticCodingSpec: AgenticCoding,
    DocumentsSpec: Documents,
}


def make_workload(spec: WorkloadSpec, seed: int, *, check: bool = True) -> Workload:
    """The stream of sessions that ``spec`` describes; the same for the same ``seed``.

    With ``check`` a trace is read through once here, so that whatever is wrong with it is said before
    anything else happens. Raises InputError naming the file and request, or the field.
    """
    if isinstance(spec, TraceSpec):
        from hisparse_sim.workload.traces import open_trace

        return open_trace(spec, seed, check=check)
    return _MAKERS[type(spec)](spec, seed)
