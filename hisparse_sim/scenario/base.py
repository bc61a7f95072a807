"""The base of every validated record: frozen, strict about unknown keys."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator, model_validator

MOST_BY_NAME: tuple[tuple[str, float], ...] = (
    ("layers", 10_000),
    ("_gib", 1e6),
    ("gpus", 1e5),
    ("tp", 1e5),
    ("dp", 1e5),
    ("mtp", 1e5),
    ("heads", 1e6),
    ("_rank", 1e6),
    ("_dim", 1e6),
    ("_size", 1e9),
    ("experts", 1e6),
    ("_bytes", 1e18),
    ("seed", float("inf")),
)
"""Largest value of a field by how its name ends: far beyond any machine, and small enough that sums
over layers stay exact and loops over them end."""

MOST_COUNT, MOST_NUMBER = 1e12, 1e18
"""The same for other whole numbers (tokens, blocks, requests) and for other numbers."""


class Record(BaseModel):
    """A frozen pydantic model which refuses unknown fields, NaN, infinity and yes/no for a number."""

    # Built when first used: most records are parts of others, and no run uses all.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, data: Any) -> Any:
        # YAML reads a bare `on` or `yes` as true, which pydantic would take for 1.
        for name, value in data.items() if isinstance(data, dict) else ():
            field = cls.model_fields.get(name)
            if isinstance(value, bool) and field is not None and field.annotation is not bool:
                raise ValueError(f"{name}: {str(value).lower()} is a yes or no, which this field is not")
        return data

    @field_validator("*")
    @classmethod
    def _no_absurd_size(cls, value: Any, info: ValidationInfo) -> Any:
        name = info.field_name or ""
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, (int, float)) and number > (most := most_of(name, number)):
                shown = f"{number:,}" if number < 1e18 else f"{number!s:.40}"
                raise ValueError(f"{shown} is not allowed, must be at most {most:,.0f}")
            if name.endswith(("_bytes_per_s", "_flops")) and 0 < number < 1:
                raise ValueError(f"{number:g} is not allowed, must be at least 1")
        return value


def most_of(name: str, value: float) -> float:
    """The largest value that a field of this ``name`` may hold (``num_layers``: 10,000)."""
    ends = (most for end, most in MOST_BY_NAME if name.endswith(end))
    return next(ends, MOST_COUNT if isinstance(value, int) else MOST_NUMBER)


class Sourced(Record):
    """Where a group of fields comes from.

    ``grade``: ``measured``, ``driver`` (reported by the vendor's driver), ``config`` (a model's
    config.json), ``datasheet``, ``published`` (third-party text), ``derived`` (arithmetic).
    """

    fields: tuple[str, ...]
    source: str
    grade: str
