"""The folder of a sweep: a Parquet dataset that grows file by file, and a lock that dies with its owner.

``pandas.read_parquet(folder)`` reads it. Each file is whole or not there: it is written beside its
place, synced and moved. Files that are no rows begin with ``_`` or ``.``, which readers skip.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hisparse_sim import __version__
from hisparse_sim.errors import InputError
from hisparse_sim.planning.point import Kind, Point
from hisparse_sim.planning.row import TEXTS, Row, numbers
from hisparse_sim.scenario.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

SCHEMA = "hisparse-sim/sweep/1"
ABOUT = "_sweep.json"
INTERVALS = "_intervals.csv"
_LOCK = ".lock"
_MADE = ".part-"


class SweepFolder:
    """A folder that one sweep at a time writes to. ``open`` it, then ``add`` rows."""

    def __init__(self, path: Path, base: Scenario, points: Sequence[Point], kind: Kind) -> None:
        self.path = path
        self.kind = kind
        self.varied = list(points[0].choice) if points else []
        self._base = base
        self._types = {name: _type_of([p.choice[name] for p in points]) for name in self.varied}
        self._lock: IO[str] | None = None
        self._made: list[Path] = []
        self.broken: list[str] = []
        """Files that were not whole and were put aside; their points are computed again."""

    def open(self) -> set[str]:
        """Take the folder and return the keys of the points that it holds.

        Raises ``InputError`` when another sweep writes there, or what is there is of another sweep.
        """
        try:
            self._made = [self.path] if not self.path.exists() else []
            self.path.mkdir(parents=True, exist_ok=True)
            self._take()
            for made in self.path.glob(f"{_MADE}*"):
                made.unlink()
            self._check_about()
            return self._done()
        except OSError as error:
            self.close()
            raise InputError(
                f"results cannot be written here ({error.strerror or error})", where=f"--out {self.path}"
            ) from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let others write here; a folder that was made and got no rows goes again."""
        if self._lock is None:
            return
        if not any(self._files()):
            for made in reversed(self._made):
                if made.is_dir():
                    (made / _LOCK).unlink(missing_ok=True)
                with suppress(OSError):
                    made.rmdir() if made.is_dir() else made.unlink()
        self._lock.close()
        self._lock = None

    def _take(self) -> None:
        import fcntl

        lock = (self.path / _LOCK).open("a+")
        try:
            # Of the open file: the kernel frees it when this process is gone, however that happens.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            owner = lock.read().strip()
            lock.close()
            raise InputError(
                f"another sweep writes here ({owner or 'its process is not known'}); wait for it, or name "
                "another folder",
                where=f"--out {self.path}",
            ) from None
        lock.truncate(0)
        lock.write(f"process {os.getpid()}")
        lock.flush()
        self._lock = lock

    def _check_about(self) -> None:
        """What is there is of this version, kind, scenario and these fields; else say what is not."""
        about = {
            "schema": SCHEMA,
            "version": __version__,
            "kind": self.kind,
            "varied": {name: str(kind) for name, kind in self._types.items()},
            "scenario": _without(self._base, self.varied),
        }
        file = self.path / ABOUT
        where = str(file)
        if not file.exists():
            if any(self._files()):
                raise InputError("holds Parquet files that are of no sweep", where=f"--out {self.path}")
            _write_whole(file, (json.dumps(about, indent=2) + "\n").encode())
            self._made.append(file)
            return
        try:
            there = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            raise InputError("is not whole JSON; name another folder", where=where) from None
        if not isinstance(there, dict):
            raise InputError("is not of a sweep; name another folder", where=where)
        for name in ("schema", "version", "kind", "varied", "scenario"):
            if there.get(name) != about[name]:
                what = _difference(there.get(name), about[name], name)
                raise InputError(f"is of another sweep: {what}; name another folder", where=where)

    def _files(self) -> list[Path]:
        return sorted(f for f in self.path.glob("*.parquet") if not f.name.startswith(("_", ".")))

    def _done(self) -> set[str]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        keys: set[str] = set()
        for file in self._files():
            try:
                keys.update(pq.read_table(file, columns=["key"])["key"].to_pylist())
            except (pa.ArrowInvalid, KeyError, OSError, ValueError):
                # Of a power failure, or not ours: nothing reads it, and nothing of it is lost.
                file.replace(self.path / f"_broken-{file.name}")
                self.broken.append(file.name)
        return keys

    def schema(self) -> pa.Schema:
        """The columns of every file: key, seed, the varied fields, then what was computed."""
        import pyarrow as pa

        fields = [("key", pa.string()), ("seed", pa.int64())]
        fields += [(name, getattr(pa, kind)()) for name, kind in self._types.items() if name != "seed"]
        named = {name for name, _ in fields}
        fields += [(name, pa.string()) for name in TEXTS[self.kind] if name not in named]
        fields += [(name, pa.float64()) for name in numbers(self.kind) if name not in named]
        return pa.schema(fields)

    def add(self, rows: Sequence[tuple[Point, Row]]) -> None:
        """Write the rows of finished points as one file, whole or not at all."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = self.schema()
        data = [
            {**row, "key": point.key, "seed": point.scenario.seed, **self._choice(point)}
            for point, row in rows
        ]
        table = pa.Table.from_pylist([{n: r.get(n) for n in schema.names} for r in data], schema=schema)
        buffer = pa.BufferOutputStream()
        pq.write_table(table, buffer)
        _write_whole(self.path / f"{rows[0][0].key}.parquet", buffer.getvalue().to_pybytes())

    def _choice(self, point: Point) -> dict[str, Any]:
        return {n: _text(v) if self._types[n] == "string" else v for n, v in point.choice.items()}

    def read(self) -> pd.DataFrame:
        """All rows."""
        import pandas as pd

        return pd.read_parquet(self.path)


def _text(value: Any) -> str:
    """As it would be written in YAML: true, auto, {"kind": "uniform"}."""
    return value if isinstance(value, str) else json.dumps(value)


def _type_of(values: Sequence[Any]) -> str:
    """The Arrow type that holds all values of a field."""
    if all(isinstance(v, bool) for v in values):
        return "bool_"
    if any(isinstance(v, bool) or not isinstance(v, (int, float)) for v in values):
        return "string"
    return "int64" if all(isinstance(v, int) for v in values) else "float64"


def _without(base: Scenario, varied: Sequence[str]) -> dict[str, Any]:
    """The scenario without what is varied, and what it is called."""
    data: dict[str, Any] = json.loads(base.model_dump_json(exclude={"name", "description", "plan"}))
    for path in varied:
        inner: Any = data
        *outer, last = path.split(".")
        for key in outer:
            inner = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            inner.pop(last, None)
    return data


def _difference(there: Any, here: Any, path: str) -> str:
    """The first place at which two values differ."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for key in {**there, **here}:
            if there.get(key) != here.get(key):
                return _difference(there.get(key), here.get(key), f"{path}.{key}")
    return f"{path.removeprefix('scenario.')} is {_short(there)} there and {_short(here)} here"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _write_whole(file: Path, data: bytes) -> None:
    """Beside its place, synced, then moved there; the folder is synced, too."""
    handle, name = tempfile.mkstemp(prefix=_MADE, dir=file.parent)
    try:
        with os.fdopen(handle, "wb") as raw:
            raw.write(data)
            raw.flush()
            os.fsync(raw.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_text(file: Path, text: str) -> None:
    """A text file, whole or not at all."""
    _write_whole(file, text.encode())
