"""What was seen lately: memory that forgets instead of growing with the stream."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
T = TypeVar("T")


class Recent(Generic[T]):
    """A dictionary of the last ``size`` to 2 x ``size`` keys that were asked for."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._new: dict[Hashable, T] = {}
        self._old: dict[Hashable, T] = {}

    def get(self, key: Hashable) -> T | None:
        """The value, if it is remembered."""
        value = self._new.get(key)
        if value is None and self._old:
            value = self._old.pop(key, None)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: Hashable, value: T) -> None:
        """Remember a value."""
        if len(self._new) >= self._size:
            self._old, self._new = self._new, {}
        self._new[key] = value


class RecentNames:
    """The last ``size`` to 2 x ``size`` names, asked about many at a time."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._new: set[str | None] = set()
        self._old: set[str | None] = set()

    def repeated(self, names: list[str | None]) -> list[int]:
        """Which of ``names`` came before, here or in an earlier call; remembers all."""
        given = set(names)
        given.discard(None)
        fresh = self._new.isdisjoint(given) and self._old.isdisjoint(given)
        repeated: list[int] = []
        if not fresh or len(given) < len(names) - names.count(None):
            known = self._new | self._old
            repeated = [i for i, name in enumerate(names) if name is not None and _known(known, name)]
        if len(self._new) + len(given) > self._size and self._new:
            self._old, self._new = self._new, set()
        self._new |= given
        return repeated


class RecentNumbers:
    """A whole number for each of the last ``size`` to 2 x ``size`` keys of 64 bits, many at a time.

    Kept as sorted arrays: 24 bytes a key, and found without a step of the interpreter for each.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._now = 0
        self._keys: Ints = np.zeros(0, dtype=np.int64)
        self._values: Ints = np.zeros(0, dtype=np.int64)
        self._asked: Ints = np.zeros(0, dtype=np.int64)

    def get(self, keys: Ints, missing: int) -> Ints:
        """The numbers of ``keys``; ``missing`` where there is none."""
        if not len(self._keys):
            return np.full(len(keys), missing, dtype=np.int64)
        place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        known = self._keys[place] == keys
        self._now += 1
        self._asked[place[known]] = self._now
        return np.where(known, self._values[place], missing)

    def put(self, keys: Ints, values: Ints) -> None:
        """Remember numbers; ``keys`` are in ascending order and differ."""
        place = np.searchsorted(self._keys, keys)
        known = np.zeros(len(keys), dtype=bool)
        inside = place < len(self._keys)
        known[inside] = self._keys[place[inside]] == keys[inside]
        self._values[place[known]] = values[known]
        new = ~known
        self._now += 1
        self._keys = np.insert(self._keys, place[new], keys[new])
        self._values = np.insert(self._values, place[new], values[new])
        self._asked = np.insert(self._asked, place[new], self._now)
        if len(self._keys) > 2 * self._size:
            kept = np.sort(np.argpartition(self._asked, -self._size)[-self._size :])
            self._keys, self._values = self._keys[kept], self._values[kept]
            self._asked = self._asked[kept]


def _known(known: set[str | None], name: str) -> bool:
    """Whether ``name`` is in a set, which it is from now on."""
    before = len(known)
    known.add(name)
    return len(known) == before
