"""Where the time of one step goes: a decode of so many requests, and a chunk of a prefill.

The parts are those of the cost model, so they add up to the step that ``run`` would simulate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hisparse_sim.cost.sparse_attention import SparseAttention
from hisparse_sim.cost.step import StepCostModel
from hisparse_sim.cost.work import StepWork

WORDS = {
    "attention": "attention: projections and the selected or all rows",
    "indexer": "indexer: scores of all rows, top-k",
    "moe": "experts, routed and shared",
    "dense": "dense MLP layers",
    "allreduce": "exchange between the GPUs",
    "head": "language-model head and sampling",
    "overhead": "launches and host share",
    "resolve": "resolving the selection in the hot buffers",
    "gather": "gathers of missed rows, not hidden",
    "staging": "history read back from host memory",
    "mirror": "mirror's copy to the host, not hidden",
    "draft": "MTP layer, drafting",
}


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a step; ``uncertainty_s`` is a standard deviation."""

    name: str
    seconds: float
    uncertainty_s: float
    source: str
    in_domain: bool
    hidden_s: float = 0.0
    """What other work covers, on top."""


@dataclass(frozen=True, slots=True)
class Anatomy:
    """A step: what it does, its parts in the order of WORDS, and their sum."""

    what: str
    seconds: float
    uncertainty_s: float
    parts: tuple[Part, ...]
    misses_rows: float
    """Rows of a layer that come from the host, of all requests."""
    h2d_bytes: float
    d2h_bytes: float

    def as_json(self) -> dict[str, Any]:
        """Of ``--json``."""
        return {
            "what": self.what,
            "seconds": self.seconds,
            "uncertainty_s": self.uncertainty_s,
            "parts": [
                {
                    "part": part.name,
                    "seconds": part.seconds,
                    "share": part.seconds / self.seconds if self.seconds else 0.0,
                    "hidden_s": part.hidden_s,
                    "uncertainty_s": part.uncertainty_s,
                    "in_domain": part.in_domain,
                    "source": part.source,
                }
                for part in self.parts
            ],
            "missed_rows_a_layer": self.misses_rows,
            "h2d_bytes": self.h2d_bytes,
            "d2h_bytes": self.d2h_bytes,
        }


def decode_anatomy(cost: StepCostModel, requests: int, context_tokens: int, resident_share: float) -> Anatomy:
    """A step in which ``requests`` of ``context_tokens`` each decode."""
    work = cost.decode_work(requests, context_tokens, resident_share)
    drafts = f", {cost.engine.mtp} drafts each" if cost.engine.mtp else ""
    where = f", {resident_share:.0%} of their pages on the GPU" if cost.misses is not None else ""
    what = f"decode: {requests:,} requests of {context_tokens:,} tokens{drafts}{where}"
    return _anatomy(cost, work, what)


def prefill_anatomy(cost: StepCostModel, new_tokens: int, past_tokens: int, resident_share: float) -> Anatomy:
    """A step with one chunk of ``new_tokens`` after ``past_tokens``, and no decode."""
    hisparse = cost.misses is not None
    staged = hisparse and cost.engine.kind == "vllm"
    work = StepWork(
        prefills=((new_tokens, past_tokens),),
        # SGLang prefills a prompt in its device pool.
        staged_tokens=round(past_tokens * (1.0 - resident_share)) if staged else 0,
        mirrored_tokens=new_tokens if hisparse else 0,
    )
    where = f", {resident_share:.0%} of those on the GPU" if staged and past_tokens else ""
    return _anatomy(cost, work, f"prefill: {new_tokens:,} tokens after {past_tokens:,}{where}")


def _anatomy(cost: StepCostModel, work: StepWork, what: str) -> Anatomy:
    answer, step = cost.query(work), cost.step(work)
    gathers_s, mirror_s = cost.hidden_s(work)
    hidden = {"gather": gathers_s, "mirror": mirror_s}
    parts = {
        row.part: Part(
            row.part, row.seconds, row.uncertainty_s, row.source, row.in_domain, hidden.get(row.part, 0.0)
        )
        for row in answer.parts
    }
    if isinstance(cost.attention, SparseAttention) and work.decode_requests and not work.draft_tokens:
        _split(parts, cost.attention.indexer_decode_s(work.decode_requests, work.decode_context_tokens))
    return Anatomy(
        what,
        answer.seconds,
        answer.uncertainty_s,
        tuple(p for name in WORDS if (p := parts.get(name)) and (p.seconds > 0.0 or p.hidden_s > 0.0)),
        work.miss_rows,
        step.h2d_bytes,
        step.d2h_bytes,
    )


def _split(parts: dict[str, Part], indexer_s: float) -> None:
    """Tell the indexer from the rest of the attention modules."""
    whole = parts["attention"]
    if not 0.0 < indexer_s < whole.seconds:
        return
    for name, seconds in (("indexer", indexer_s), ("attention", whole.seconds - indexer_s)):
        share = seconds / whole.seconds
        parts[name] = Part(name, seconds, share * whole.uncertainty_s, whole.source, whole.in_domain)


def table(found: Sequence[Anatomy]) -> str:
    """Each step: its parts with their share, what is hidden behind others, and the sum."""
    blocks = []
    for step in found:
        width = max(len(WORDS[part.name]) for part in step.parts) if step.parts else 0
        lines = [step.what, ""]
        for part in step.parts:
            outside = "" if part.in_domain else "  (outside what was measured)"
            hidden = f"  + {_ms(part.hidden_s)} hidden" if part.hidden_s > 0.0 else ""
            share = f"{part.seconds / step.seconds:6.1%}" if step.seconds else ""
            lines.append(f"  {WORDS[part.name]:<{width}}  {_ms(part.seconds):>10}  {share}{hidden}{outside}")
        lines += [f"  {'step':<{width}}  {_ms(step.seconds):>10}  +- {_ms(step.uncertainty_s)}"]
        if step.h2d_bytes or step.d2h_bytes:
            lines.append(
                f"  one GPU's link: {step.h2d_bytes / 1e6:,.1f} MB in, {step.d2h_bytes / 1e6:,.1f} MB out"
                + (f"; {step.misses_rows:,.0f} rows a layer missed" if step.misses_rows else "")
            )
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.3f} ms"
