"""The base of every validated record: frozen, strict about unknown keys."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A frozen pydantic model which refuses unknown fields, NaN and infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Sourced(Record):
    """Where a group of fields comes from.

    ``grade``: ``measured``, ``driver`` (reported by the vendor's driver), ``config`` (a model's
    config.json), ``datasheet``, ``published`` (third-party text), ``derived`` (arithmetic).
    """

    fields: tuple[str, ...]
    source: str
    grade: str
