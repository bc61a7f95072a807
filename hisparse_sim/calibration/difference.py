"""What changed between two profiles, and what that does to the time per token of a scenario."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log
from typing import Any

from hisparse_sim.cost.profile import Profile
from hisparse_sim.cost.step import StepCostModel
from hisparse_sim.cost.term import Term
from hisparse_sim.scenario.scenario import Scenario

BATCHES = (1, 8, 32)
CONTEXTS = (8_192, 131_072, 1_048_576)


_STATED = ("unit", "domain", "residual", "holdout", "kept_out", "plausible", "source", "grade", "note")
"""What a term states beside its form and parameters."""


@dataclass(frozen=True, slots=True)
class TermChange:
    """A term that one profile lacks or that differs. ``largest``: most changed parameter, as a ratio."""

    term: str
    what: str
    largest: str = ""
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class TpotChange:
    """Seconds a token of ``batch`` requests of ``context_tokens`` each; HiSparse holds none on the GPU."""

    batch: int
    context_tokens: int
    before_s: float
    after_s: float

    @property
    def ratio(self) -> float:
        """After over before."""
        return self.after_s / self.before_s


@dataclass(frozen=True, slots=True)
class Difference:
    """Between two profiles, for one scenario's engine."""

    terms: tuple[TermChange, ...]
    tpot: tuple[TpotChange, ...]
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "terms": [
                {"term": c.term, "what": c.what, "parameter": c.largest or None, "ratio": c.ratio}
                for c in self.terms
            ],
            "tpot": [
                {
                    "batch": c.batch,
                    "context_tokens": c.context_tokens,
                    "before_s": c.before_s,
                    "after_s": c.after_s,
                    "ratio": c.ratio,
                }
                for c in self.tpot
            ],
        }


def difference(before: Profile, after: Profile, scenario: Scenario | None = None) -> Difference:
    """Terms that changed, and the decode steps of ``scenario``'s model, node and engine in both."""
    terms = tuple(_terms(before, after))
    if scenario is None:
        return Difference(terms, ())
    model, node, engine = scenario.model, scenario.node, scenario.engine
    old, new = (StepCostModel(model, node, engine, p) for p in (before, after))
    longest = model.max_context_tokens if engine.max_model_len == "auto" else engine.max_model_len
    contexts = [c for c in CONTEXTS if c <= longest] or [longest]
    tpot = tuple(
        TpotChange(b, c, old.decode_tpot_s(b, c, 0.0), new.decode_tpot_s(b, c, 0.0))
        for c in contexts
        for b in BATCHES
    )
    return Difference(terms, tpot, tuple(dict.fromkeys((*old.warnings, *new.warnings))))


def _terms(before: Profile, after: Profile) -> list[TermChange]:
    old, new = ({t.id: t for t in p.terms} for p in (before, after))
    found = [TermChange(name, "only in the first") for name in old if name not in new]
    found += [TermChange(name, "only in the second") for name in new if name not in old]
    for name, term in old.items():
        other = new.get(name)
        if other is None or other == term:
            continue
        if other.form != term.form:
            found.append(TermChange(name, f"form {term.form} became {other.form}"))
        elif other.params != term.params:
            found.append(_params(term, other))
        else:
            stated = [field for field in _STATED if getattr(term, field) != getattr(other, field)]
            found.append(TermChange(name, f"same times, other {', '.join(stated)}"))
    return found


def _params(old: Term, new: Term) -> TermChange:
    worst, largest, most = "", 1.0, 0.0
    for name in old.params:
        a, b = old.series(name), new.series(name) if name in new.params else ()
        if len(a) != len(b):
            return TermChange(old.id, f"{name}: {len(a)} numbers became {len(b)}")
        for x, y in zip(a, b, strict=True):
            if x != y and (size := abs(log(y / x)) if x and y else inf) > most:
                worst, largest, most = name, y / x if x else inf, size
    return TermChange(old.id, "changed", worst, largest if 0 < largest < inf else None)
