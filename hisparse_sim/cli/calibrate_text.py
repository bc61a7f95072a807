"""Profiles, scores and differences as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from hisparse_sim.calibration.check import MEDIAN, P90, Score
from hisparse_sim.calibration.difference import Difference
from hisparse_sim.cli.catalogue import table
from hisparse_sim.cost.profile import Profile
from hisparse_sim.cost.term import FitError, Term

_MOST_CHANGES = 40


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def scores_text(scores: Sequence[Score]) -> str:
    """A line a stratum; errors beside the noise of the data itself."""
    words = {None: "", True: "met", False: "MISSED"}
    methods = {"leave-one-out": " (each left out)", "fitted": " (as fitted)", "profile": ""}
    rows = [
        {
            "table": s.name,
            "stratum": s.stratum + methods[s.method],
            "rows": f"{s.n:,}",
            "median": _percent(s.median_abs_rel),
            "90 %": _percent(s.p90_abs_rel),
            "largest": _percent(s.max_abs_rel),
            "target": words[s.met],
            "outside": f"{s.out_of_domain:,}" if s.out_of_domain else "",
            "unmodelled": f"{s.unmodelled:,}" if s.unmodelled else "",
            "zero": f"{s.zero_latency:,}" if s.zero_latency else "",
            "neighbours": f"{_percent(s.neighbour_median_abs_rel)}, {_percent(s.neighbour_p90_abs_rel)}"
            if s.neighbour_n
            else "",
        }
        for s in scores
    ]
    notes = (
        f"Errors are |predicted / measured - 1|. Targets: median {MEDIAN:.0%}, 90th percentile {P90:.0%}, of "
        "rows that no fit has seen. Neighbours: median and 90th percentile of predicting a row from those "
        "next to it."
    )
    return f"{table(rows)}\n\n{notes}"


def profile_text(profile: Profile) -> str:
    """What it is, then its terms, then its sources."""
    lines = [f"{profile.id}: {profile.kind}, {profile.hardware.gpu}, SHA-256 {profile.hash[:16]}"]
    if profile.samples:
        lines.append(f"{len(profile.samples):,} samples, {profile.created or 'undated'}")
    lines += ["", terms_text(profile.terms), ""]
    lines += [f"[{name}] {source.text}" for name, source in profile.sources.items()]
    return "\n".join(lines)


def terms_text(terms: Sequence[Term]) -> str:
    """A line a term."""

    def errors(found: FitError | None) -> str:
        return f"{_percent(found.median_abs_rel)}, {_percent(found.p90_abs_rel)}" if found else ""

    rows = [
        {
            "term": t.id,
            "form": t.form,
            "fitted": errors(t.residual),
            "left out": errors(t.holdout),
            "kept out": errors(t.kept_out),
            "grade": t.grade,
            "source": t.source,
        }
        for t in terms
    ]
    return table(rows)


def term_text(term: Term, profile: Profile) -> str:
    """Everything about one term."""
    lines = [f"{term.id}: {term.form}, in {term.unit}, {term.grade}"]
    for name, value in term.params.items():
        shown = ", ".join(f"{v:.5g}" for v in value) if isinstance(value, tuple) else f"{value:.5g}"
        lines.append(f"  {name} = {shown}")
    if term.domain:
        spans = (f"{name} {low:,.6g} to {high:,.6g}" for name, (low, high) in term.domain.items())
        lines.append(f"  domain: {'; '.join(spans)}")
    for name in ("residual", "holdout", "kept_out"):
        error: FitError | None = getattr(term, name)
        if error is not None:
            lines.append(
                f"  {name}: n {error.n:,}, median {_percent(error.median_abs_rel)}, "
                f"90th percentile {_percent(error.p90_abs_rel)}, largest {_percent(error.max_abs_rel)}"
            )
    lines.append(f"  uncertainty: {_percent(term.uncertainty)} (one standard deviation)")
    lines.append(f"  source: {profile.sources[term.source].text}")
    if term.note:
        lines.append(f"  note: {term.note}")
    return "\n".join(lines)


def difference_text(found: Difference) -> str:
    """Changed terms, the most changed first, and the steps of the scenario."""

    def size(ratio: float | None) -> float:
        return max(ratio, 1 / ratio) if ratio else float("inf")

    changes = sorted(found.terms, key=lambda c: -size(c.ratio))
    rows = [
        {
            "term": c.term,
            "what": c.what,
            "most": f"{c.largest} x {c.ratio:.4g}" if c.ratio is not None else c.largest,
        }
        for c in changes[:_MOST_CHANGES]
    ]
    parts = [table(rows) if rows else "no term differs"]
    if len(changes) > _MOST_CHANGES:
        parts.append(f"and {len(changes) - _MOST_CHANGES:,} more")
    if found.tpot:
        steps = [
            {
                "requests": str(c.batch),
                "context": f"{c.context_tokens:,}",
                "before, ms": f"{1e3 * c.before_s:.2f}",
                "after, ms": f"{1e3 * c.after_s:.2f}",
                "change": f"{100 * (c.ratio - 1):+.1f} %",
            }
            for c in found.tpot
        ]
        parts += ["", table(steps)]
    return "\n".join(parts)
