"""What can go wrong, as a person should read it.

The tree::

    HiSparseError            anything this package refuses to do (a ValueError; exit code 2)
    |- InputError            a file, field or flag holds something that cannot be used
    |- UnsupportedModel      a model architecture that this package would size wrongly
    |- Infeasible            the input is well formed but the engine would not start with it
       |- PoolTooSmall       what is left for KV, or the host pool, does not hold one request
"""

from __future__ import annotations

from typing import Self


class HiSparseError(ValueError):
    """Something refused, with the place it is about.

    ``where`` names a file, ``file:line``, a config path (``engine.host_pool_gib``) or a flag
    (``--kv-dtype``); the text of the error starts with it.
    """

    def __init__(self, message: str, *, where: str | None = None) -> None:
        self.message = message
        self.where = where
        super().__init__(f"{where}: {message}" if where else message)

    def within(self, section: str) -> Self:
        """The same of a part of a larger record: ``where`` becomes ``section.where``."""
        return type(self)(self.message, where=f"{section}.{self.where}" if self.where else section)


class InputError(HiSparseError):
    """A file, field or flag holds something that cannot be used."""


class UnsupportedModel(HiSparseError):
    """A model architecture that this package does not size; said by name, never guessed."""


class Infeasible(HiSparseError):
    """Well-formed input that vLLM itself would refuse to start with (or that does not fit)."""


class PoolTooSmall(Infeasible):
    """What is left for KV, or the host pool, does not hold one request; an estimate answers 0."""
