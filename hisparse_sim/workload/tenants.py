"""Who asks: groups of users with a share of the sessions, a priority and a prefix."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hisparse_sim.scenario.workload import TenantSpec
from hisparse_sim.workload.content import SHARED_STREAM, Prefix
from hisparse_sim.workload.draws import Draws


class Tenant(NamedTuple):
    """What a session has from its tenant. ``tags`` go with the session."""

    prefix: Prefix
    priority: int = 0
    name: str = ""

    @property
    def tags(self) -> dict[str, str]:
        """Of the session."""
        return {"tenant": self.name} if self.name else {}


class Tenants:
    """Draws the tenant of each session, by share."""

    def __init__(self, tenants: tuple[TenantSpec, ...], shared_prefix_tokens: int) -> None:
        common = Prefix(shared_prefix_tokens)
        self._tenants = [
            Tenant(
                common
                if tenant.shared_prefix_tokens is None
                else Prefix(tenant.shared_prefix_tokens, f"{SHARED_STREAM}/{tenant.name}"),
                tenant.priority,
                tenant.name,
            )
            for tenant in tenants
        ] or [Tenant(common)]
        shares = np.array([tenant.share for tenant in tenants] or [1.0])
        self._ends = np.cumsum(shares) / shares.sum()

    def of(self, draws: Draws) -> Tenant:
        """The tenant of the session that ``draws`` belong to."""
        if len(self._tenants) == 1:
            return self._tenants[0]
        level = draws.generator("tenant").random()
        index = int(np.searchsorted(self._ends, level, side="right"))
        return self._tenants[min(index, len(self._tenants) - 1)]
