"""Your own measurements beside the simulation, in Python.

found = hs.measured("mine.yaml", bench="result.json", log="vllm.log", corrected="right.yaml")
found                                 # the comparison as text; in Jupyter, too
found.table                           # a row a figure: measured, simulated, error
found.contradictions                  # what of the scenario the inputs contradict
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisparse_sim.api import scenario

if TYPE_CHECKING:
    import pandas as pd

    from hisparse_sim.scenario.scenario import Scenario
    from hisparse_sim.validation.measured.compare import Measured

__all__ = ["Measurement", "measured"]


class Measurement:
    """What was compared: ``data`` as ``validate measured --json``, ``problems`` of the inputs."""

    def __init__(self, found: Measured) -> None:
        self.found = found

    @cached_property
    def data(self) -> dict[str, Any]:
        """Plain data."""
        return self.found.as_json()

    @property
    def problems(self) -> list[str]:
        """What of the inputs could not be used, and why; the rest was."""
        return self.found.problems

    @property
    def cause(self) -> str:
        """The likely cause of the largest error; empty if all agrees."""
        return "\n".join(self.found.cause)

    @property
    def contradictions(self) -> list[str]:
        """A sentence each."""
        return [one.sentence for one in self.found.contradictions]

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row a measured figure; ``corrected``: simulated with all that is contradicted set right."""
        import pandas as pd

        from hisparse_sim.validation.measured.rows import Row

        empty = Row("", "", 0.0, None).as_json()
        return pd.DataFrame(self.data["rows"], columns=list(empty))

    def __repr__(self) -> str:
        from hisparse_sim.validation.measured.text import table

        return "\n\n".join([table(self.found), *(f"problem: {problem}" for problem in self.problems)])

    def _repr_html_(self) -> str:
        return f"<pre style='white-space: pre-wrap'>{escape(repr(self))}</pre>"


def measured(
    what: Scenario | str | Path,
    *,
    bench: str | Path | None = None,
    metrics: str | Path | Sequence[str | Path] = (),
    log: str | Path | None = None,
    result: int | None = None,
    corrected: str | Path | None = None,
) -> Measurement:
    """A benchmark, metrics and a log beside the simulation of ``what``: ``hisparse-sim validate measured``.

    A bad input loses itself alone and is in ``problems``. ``result``: which of several in ``bench``;
    ``corrected``: write the scenario set right here. Raises ``InputError`` if no input is given.
    """
    from hisparse_sim.validation.measured.compare import Inputs, check_inputs, measure

    def path(given: str | Path | None) -> Path | None:
        return None if given is None else Path(given)

    scrapes = [metrics] if isinstance(metrics, str | Path) else metrics
    inputs = Inputs(path(bench), [Path(one) for one in scrapes], path(log), result)
    check_inputs(inputs, path(corrected))
    asked = scenario(what) if isinstance(what, str | Path) else what
    return Measurement(measure(asked, inputs, corrected=path(corrected)))
