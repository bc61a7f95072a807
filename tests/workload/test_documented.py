"""docs/reference/workloads.md says what is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
import yaml

from hisparse_sim.scenario import distributions
from hisparse_sim.scenario.arrivals import ArrivalsSpec
from hisparse_sim.scenario.base import Record
from hisparse_sim.scenario.validate import build
from hisparse_sim.scenario.workload import SeededWorkload, TraceFormat, TraceSpec, WorkloadSpec
from hisparse_sim.workload import make_workload
from hisparse_sim.workload.traces.rows import KINDS

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "workloads.md").read_text(
    encoding="utf-8"
)


def test_the_example_is_a_workload() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    asked = build(SeededWorkload, yaml.safe_load(example), file="docs")
    first = next(iter(make_workload(asked.workload, 0).sessions()))
    assert first.start_s is not None and first.requests


def test_the_table_is_a_trace(tmp_path: Path) -> None:
    (example,) = re.findall(r"```text\n(arrival_s,.*?)```", TEXT, re.DOTALL)
    (tmp_path / "t.csv").write_text(example)
    found = list(make_workload(TraceSpec(path=tmp_path / "t.csv"), 0).sessions())
    assert [s.start_s for s in found] == [0.0, 2.35, 9.8]


@pytest.mark.parametrize("union", [distributions.Distribution, ArrivalsSpec, WorkloadSpec])
def test_every_kind_and_field_is_documented(union: object) -> None:
    records: tuple[type[Record], ...] = get_args(get_args(union)[0])
    for record in records:
        for name, field in record.model_fields.items():
            word = field.default if name == "kind" else name
            assert f"`{word}" in TEXT or f" {word}:" in TEXT or f" {word}," in TEXT, (record.__name__, word)


def test_every_format_and_column_is_documented() -> None:
    for word in (*get_args(TraceFormat), *KINDS):
        assert f"`{word}`" in TEXT, word
