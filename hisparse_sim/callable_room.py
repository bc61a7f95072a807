"""Rooms that are functions of the Python API as well: ``hisparse_sim.scenario`` and ``.estimate``.

A sub-package hides a function of its own name as soon as it is imported, so it is made to be called as well.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Not a plain import: the API lies above all rooms.
        function = getattr(import_module("hisparse_sim.api"), self.__name__.rpartition(".")[2])
        return function(*args, **kwargs)


def make_callable(name: str) -> None:
    """Let the module ``name`` be called as the function of the API that has its name."""
    sys.modules[name].__class__ = _Room
