"""The base of every validated record: frozen, strict about unknown keys."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Record(BaseModel):
    """A frozen pydantic model which refuses unknown fields, NaN, infinity and yes/no for a number."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, data: Any) -> Any:
        # YAML reads a bare `on` or `yes` as true, which pydantic would take for 1.
        for name, value in data.items() if isinstance(data, dict) else ():
            field = cls.model_fields.get(name)
            if isinstance(value, bool) and field is not None and field.annotation is not bool:
                raise ValueError(f"{name}: {str(value).lower()} is a yes or no, which this field is not")
        return data


class Sourced(Record):
    """Where a group of fields comes from.

    ``grade``: ``measured``, ``driver`` (reported by the vendor's driver), ``config`` (a model's
    config.json), ``datasheet``, ``published`` (third-party text), ``derived`` (arithmetic).
    """

    fields: tuple[str, ...]
    source: str
    grade: str
