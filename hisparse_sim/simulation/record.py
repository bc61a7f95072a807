"""What is known of a request's life."""

from __future__ import annotations

from msgspec import Struct

from hisparse_sim.workload.request import RequestSpec, Session


class RequestRecord(Struct):
    """One request's life. Times are seconds of simulated time, None if it did not come so far."""

    id: str
    session: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    """Asked for; ``sampled`` is what came."""
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    finish_s: float | None = None
    sampled: int = 0
    hit_tokens: int | None = None
    """Of the first admission."""
    preemptions: int = 0
    preempted_s: tuple[float, ...] = ()
    """When it was taken out and when it ran again, in turn."""
    load_start_s: float | None = None
    """Of a load from the offload tier before it first ran."""
    load_end_s: float | None = None
    itl_max_s: float = 0.0
    status: str = "incomplete"
    reason: str = ""
    tenant: str = ""
    """Empty: of none."""
    priority: int = 0
    """Lower goes first, under the priority policy."""
    replica: int = 0
    """Which engine of the run it was sent to."""
    rides_from: int = -1
    """First batch, counted as they come back, whose token is not in here yet because the request rides
    in the scheduler's cohort; -1: it does not."""


def record_of(session: Session, spec: RequestSpec, arrival_s: float, replica: int = 0) -> RequestRecord:
    """Of a request that has just arrived."""
    tags = session.tags
    return RequestRecord(
        spec.id,
        tags.get("session", session.id),
        arrival_s,
        spec.prompt_tokens,
        spec.output_tokens,
        tenant=tags.get("tenant", ""),
        priority=spec.priority,
        replica=replica,
    )
