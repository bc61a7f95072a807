"""From the description of a workload to the workload."""

from __future__ import annotations

from hisparse_sim.scenario.workload import ConversationsSpec, TraceSpec, WorkloadSpec
from hisparse_sim.workload.arrivals import SingleRequests
from hisparse_sim.workload.content import check_shared_prefix
from hisparse_sim.workload.request import Workload
from hisparse_sim.workload.sessions import Conversations
from hisparse_sim.workload.traces import TraceSessions


def make_workload(spec: WorkloadSpec, seed: int) -> Workload:
    """The stream of sessions that ``spec`` describes; the same for the same ``seed``.

    A trace is read through once here, so that whatever is wrong with it is said before anything
    else happens. Raises InputError naming the file and request, or the field.
    """
    if isinstance(spec, TraceSpec):
        return TraceSessions(spec, seed)
    if isinstance(spec, ConversationsSpec):
        check_shared_prefix(spec.shared_prefix_tokens, spec.first_prompt_tokens)
        return Conversations(spec)
    check_shared_prefix(spec.shared_prefix_tokens, spec.prompt_tokens)
    return SingleRequests(spec, seed)
