"""Questions about a scenario that take more, or less, than one run: the rest of the package in Python.

    found = hs.plan("documents-1m-8xh200", slo=["tpot_p95<=60ms"], nodes="1..4")
    found.command                         # what to start
    hs.simulate(found.scenario)           # what it would do
    hs.expected("documents-1m-8xh200")    # the same in closed form, in milliseconds
    hs.explain("documents-1m-8xh200").plot()
    hs.sensitivity("documents-1m-8xh200").plot()

``hisparse_sim`` offers these beside what ``api.py`` has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisparse_sim.api import scenario, show_itself
from hisparse_sim.errors import Infeasible, InputError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from hisparse_sim.estimate.operating_point import Explained
    from hisparse_sim.planning import search
    from hisparse_sim.planning.question import Question
    from hisparse_sim.planning.screen import Screened
    from hisparse_sim.planning.sensitivity import Sensitivity as Swings
    from hisparse_sim.scenario.scenario import Scenario

__all__ = [
    "Anatomy",
    "Expected",
    "Plan",
    "Sensitivity",
    "expected",
    "explain",
    "plan",
    "sensitivity",
]


class Plan:
    """A plan: ``table`` (a row a judged choice, the recommended first), ``data`` (as ``plan --json``)."""

    def __init__(self, asked: Question, found: search.Answer) -> None:
        self.question, self.answer = asked, found

    @cached_property
    def data(self) -> dict[str, Any]:
        """Plain data."""
        from hisparse_sim.report.plan_text import as_json

        return as_json(self.answer, self.question.asked, self.question.prices)

    @property
    def best(self) -> search.Plan:
        """The recommended choice. Raises ``Infeasible`` where none holds."""
        if self.answer.best is None:
            raise Infeasible("no combination that was simulated holds", where="plan")
        return self.answer.best

    @property
    def command(self) -> str:
        """The ``vllm serve`` command of the recommended choice, or SGLang's. Raises ``Infeasible``."""
        from hisparse_sim.serve.start import start_command

        one = self.best.found.scenario
        return start_command(one.model, one.node, one.engine)

    @property
    def scenario(self) -> Scenario:
        """The recommended choice with one machine's share of the workload. Raises ``Infeasible``."""
        from hisparse_sim.planning.load import loaded

        one, asked = self.best.found, self.question.asked
        share = asked.amount * one.sized.span / one.nodes
        return one.scenario.model_copy(
            update={"workload": loaded(one.scenario.workload, asked, share), "plan": None}
        )

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row a choice: its values, machines, price, metrics by goal, and the load that still holds."""
        import pandas as pd

        titles = {"recommended": "recommended", "runners_up": "runner-up", "failed": "does not hold"}
        rows = []
        for key, title in titles.items():
            found = self.data[key] or []
            for one in [found] if isinstance(found, dict) else found:
                goals = {goal.metric: one["metrics"].get(goal.metric) for goal in self.question.goals}
                plain = ("nodes", "node", "judged_by", "hourly", "cost_per_million_output_tokens")
                load = one["largest_load_simulated"] or [None, None]
                rows.append(
                    {
                        "verdict": title,
                        **one["choice"],
                        **{name: one[name] for name in plain},
                        **goals,
                        "holds_to": load[0],
                        "breaks_at": load[1],
                        "binds": one["binds"] or ", ".join(one["broken"]) or one["limit"],
                    }
                )
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        from hisparse_sim.report.plan_text import plan_text

        asked = self.question
        return plan_text(self.answer, asked.goals, asked.asked, asked.prices)

    def _repr_html_(self) -> str:
        return f"<pre style='white-space: pre-wrap'>{escape(repr(self))}</pre>"


def plan(
    what: Scenario | str | Path,
    *,
    slo: Sequence[str] = (),
    vary: Mapping[str, Sequence[Any] | str] | None = None,
    nodes: int | str | Sequence[int] | None = None,
    prices: Mapping[str, float] | None = None,
    objective: str | None = None,
    runs: int = 12,
    bisect: int = 4,
) -> Plan:
    """The cheapest deployment of a workload that holds ``slo`` (``["ttft_p95<=30s"]``), as the command.

    ``vary``: values of each field that is chosen, beside the scenario's own ``plan.vary``; ``nodes``:
    counts of machines that may be had; ``prices``: of an hour, by the node's name. ``runs`` and ``bisect``
    bound the simulations, 0 to 10,000.

    Raises ``InputError`` naming the field, ``Infeasible`` saying what empties the choice.
    """
    from hisparse_sim.cli.plan import progress_of_plan
    from hisparse_sim.planning.question import MOST_RUNS, question
    from hisparse_sim.scenario.plan import PlanSpec
    from hisparse_sim.scenario.validate import build

    for name, value in (("runs", runs), ("bisect", bisect)):
        if not 0 <= value <= MOST_RUNS:
            raise InputError(f"{value} is no number of simulations; 0 to {MOST_RUNS:,}", where=name)
    base = _asked(what)
    own = base.plan.model_dump() if base.plan else {}
    if not slo and not own.get("slo"):
        raise InputError("missing; give slo=['ttft_p95<=30s'], or plan.slo in the scenario", where="slo")
    given: dict[str, Any] = {"nodes": nodes, "prices": prices and dict(prices)}
    own |= {name: value for name, value in given.items() if value is not None}
    own["vary"] = {**own.get("vary", {}), **{k: _listed(v) for k, v in (vary or {}).items()}}
    spec = build(PlanSpec, own, file="plan")
    asked = question(base.model_copy(update={"plan": spec}), slo=list(slo), objective=objective)
    with progress_of_plan() as progress:
        return Plan(asked, asked.answer(runs, bisect, progress))


def _listed(values: Sequence[Any] | str) -> Any:
    return values if isinstance(values, str) else list(values)


class Expected:
    """What a scenario's run would show, in closed form. ``data``: plain; times in seconds."""

    def __init__(self, found: Screened) -> None:
        self.found = found

    @cached_property
    def data(self) -> dict[str, Any]:
        """Over all replicas; ``ttft_p95`` and the like; ``most_at_once``: requests that fit; ``limit``: what
        ends growth."""
        served = self.found.served
        return {
            "requests_per_s": served.requests_per_s * self.found.sized.replicas,
            "output_tokens_per_s": self.found.output_tokens_per_s,
            "decoding": served.decoding * self.found.sized.replicas,
            "most_at_once": self.found.sized.steady.most * self.found.sized.replicas,
            "prefix_hit_share": served.hit_share,
            **served.figures,
            "limit": served.limit,
            "overloaded": served.overloaded,
        }

    def __getitem__(self, name: str) -> Any:
        if name not in self.data:
            raise InputError(f"{name!r} is not known; one of {', '.join(self.data)}", where="expected")
        return self.data[name]

    def __repr__(self) -> str:
        width = max(map(len, self.data))
        return "\n".join(f"{name:<{width}}  {_shown(value)}" for name, value in self.data.items())

    def _repr_html_(self) -> str:
        cells = (f"<tr><th>{escape(k)}</th><td>{escape(_shown(v))}</td></tr>" for k, v in self.data.items())
        return f"<table><tbody>{''.join(cells)}</tbody></table>"


def expected(what: Scenario | str | Path) -> Expected:
    """Means and percentiles of a workload served for long, by ``estimate/steady.py``: milliseconds of work.

    It leaves out what only a run has: bursts, preemption, order. Raises ``Infeasible`` for what would not
    start, ``InputError`` for a trace without a cap on live sessions.
    """
    from hisparse_sim.planning.point import Point
    from hisparse_sim.planning.screen import Screen

    asked = _asked(what)
    screen = Screen(())
    sized = screen.size(Point(asked, {}, ""))
    if sized is None:
        raise Infeasible(next(iter(screen.refused)), where=asked.name)
    found = screen.at(sized, sized.span)
    assert found is not None
    return Expected(found)


class Anatomy:
    """A decode step and a prefill chunk, part by part: ``table``, ``data`` (as ``explain --json``)."""

    def __init__(self, found: Explained) -> None:
        self.steps, self.notes, self.warnings = found.steps, found.notes, found.warnings

    @property
    def data(self) -> list[dict[str, Any]]:
        """A mapping a step: the decode, the prefill."""
        return [step.as_json() for step in self.steps]

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row a part of a step: its seconds, its share, and what other work hides, on top."""
        import pandas as pd

        rows = [
            {"step": step["what"].partition(":")[0], **part} for step in self.data for part in step["parts"]
        ]
        return pd.DataFrame(rows)

    def plot(self) -> Figure:
        """Both steps as bars of their parts."""
        from hisparse_sim.report.anatomy_plot import anatomy

        return show_itself(anatomy(self.data))

    def __repr__(self) -> str:
        from hisparse_sim.estimate.anatomy import table

        return table(self.steps)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


def explain(
    what: Scenario | str | Path,
    *,
    batch: int | None = None,
    context: int | str | None = None,
    chunk: int | str | None = None,
    past: int | str | None = None,
    resident_share: float | None = None,
) -> Anatomy:
    """Where a step's time goes, as ``hisparse-sim explain``; tokens as numbers or ``"128k"``.

    What is left out is the workload's own. Raises ``InputError``, or ``Infeasible`` for what would not start.
    """
    from hisparse_sim.estimate.operating_point import explained
    from hisparse_sim.scenario.units import parse_tokens

    def tokens(name: str, given: int | str | None) -> int | None:
        return None if given is None else parse_tokens(given, where=name)

    found = explained(
        _asked(what),
        batch=batch,
        context_tokens=tokens("context", context),
        chunk_tokens=tokens("chunk", chunk),
        past_tokens=0 if past in (0, "0") else tokens("past", past),
        resident_share=resident_share,
    )
    return Anatomy(found)


class Sensitivity:
    """Which inputs an estimate hangs on: ``table``, the widest swing first."""

    def __init__(self, found: Swings) -> None:
        self.found = found

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row an input: the answer with it at its low and at its high end."""
        import pandas as pd

        rows = [(s.what, s.spread, s.low, s.high, s.width) for s in self.found.swings]
        return pd.DataFrame(rows, columns=["input", "moved_by", "low", "high", "swing"])

    def plot(self) -> Figure:
        """The tornado."""
        from hisparse_sim.report.tornado import tornado

        return show_itself(tornado(self.found))

    def __repr__(self) -> str:
        from hisparse_sim.report.tornado import tornado_table

        return tornado_table(self.found)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


def sensitivity(
    what: Scenario | str | Path, of: str | None = None, *, slo: Sequence[str] = ()
) -> Sensitivity:
    """Each input moved alone within what is known of it, as ``hisparse-sim sensitivity``.

    ``of``: ``output_tokens_per_s``, a latency (``tpot_mean``), or ``largest_load``, which needs ``slo``.
    """
    from hisparse_sim.planning.sensitivity import LARGEST, TOKENS
    from hisparse_sim.planning.sensitivity import sensitivity as moved
    from hisparse_sim.planning.slo import parse_goals

    base = _asked(what)
    given = list(slo) or (base.plan.slo if base.plan else ())
    goals = parse_goals(given, where="slo")
    return Sensitivity(moved(base, of or (LARGEST if goals else TOKENS), goals))


def _asked(what: Scenario | str | Path) -> Scenario:
    return scenario(what) if isinstance(what, str | Path) else what


def _shown(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
