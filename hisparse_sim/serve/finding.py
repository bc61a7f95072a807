"""What is wrong or worth knowing about a command: a stable name, the reason and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hisparse_sim.errors import Infeasible

Kind = Literal["refusal", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """``flag``: the one it is about, as written; ``source``: where the rule or the case is public."""

    name: str
    kind: Kind
    flag: str
    reason: str
    remedy: str
    source: str

    def as_json(self) -> dict[str, Any]:
        """Of ``estimate --json`` and ``summary.json``."""
        return asdict(self)

    def __str__(self) -> str:
        about = f" ({self.flag})" if self.flag else ""
        return f"{self.name}{about}: {self.reason}; {self.remedy}"


class Refused(Infeasible):
    """vLLM would not start with this command. ``findings`` are all that were found, warnings too."""

    def __init__(self, message: str, *, where: str, findings: Sequence[Finding] = ()) -> None:
        super().__init__(message, where=where)
        self.findings = tuple(findings)


def refuse(findings: Sequence[Finding]) -> None:
    """Raise ``Refused`` if one of ``findings`` is a refusal: the first in full, the others by name."""
    refusals = [f for f in findings if f.kind == "refusal"]
    if not refusals:
        return
    first, *others = refusals
    more = f"; and {', '.join(f.name for f in others)}" if others else ""
    raise Refused(f"vLLM would not start: {first}{more}", where="--serve", findings=findings)
