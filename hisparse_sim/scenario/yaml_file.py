"""Text and YAML files read whole, with one clear message for whatever is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from hisparse_sim.errors import InputError

_SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def as_yaml(data: Any) -> str:
    """Plain data in YAML, in its own order."""
    return str(yaml.dump(data, Dumper=_DUMPER, sort_keys=False, allow_unicode=True))


class _Loader(_SAFE):  # type: ignore[misc]
    """Safe, and refuses a key given twice, of which YAML's own loader keeps the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        lines: dict[str, int] = {}
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode):
                continue
            line = key.start_mark.line + 1
            if key.value in lines:
                raise yaml.constructor.ConstructorError(
                    problem=f"{key.value} is given twice, first in line {lines[key.value]}",
                    problem_mark=key.start_mark,
                )
            lines[key.value] = line
        return super().construct_mapping(node, deep=deep)


_MAX_BYTES = 16 * 2**20
"""No scenario is larger; a trace named by mistake should not be read whole."""


def check_regular(path: Path) -> None:
    """Raises InputError for a folder, a pipe or a device: reading them fails late or never ends."""
    if path.is_dir():
        raise InputError("is a folder; name a file", where=str(path))
    if path.exists() and not path.is_file():
        raise InputError("is a pipe or device; save what it gives in a file", where=str(path))


def read_text(path: Path) -> str:
    """The UTF-8 text of ``path``. Raises InputError naming the file."""
    where = str(path)
    try:
        check_regular(path)
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise InputError(f"is {size / 2**20:.0f} MiB, too large for a configuration", where=where)
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        what = "is a link to a file that is not there" if path.is_symlink() else "no such file"
        raise InputError(what, where=where) from None
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8 text (byte {error.start})", where=where) from None
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"cannot be read: {getattr(error, 'strerror', None) or error}", where=where
        ) from None


def parse_yaml(text: str, *, where: str) -> Any:
    """A YAML document as plain Python values. Raises InputError with the line."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = f"{where}:{mark.line + 1}" if mark else where
        raise InputError(f"not valid YAML: {error.problem}", where=at) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"not valid YAML: {str(error).splitlines()[0]}", where=where) from None


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds."""
    data = parse_yaml(read_text(path), where=str(path))
    if not isinstance(data, dict):
        kind = "nothing" if data is None else f"a {type(data).__name__}"
        raise InputError(f"holds {kind}, not a mapping of fields", where=str(path))
    bad = next((k for k in data if not isinstance(k, str)), None)
    if bad is not None:
        raise InputError(f"field name {bad!r} is not text", where=str(path))
    return data


def line_of(path: Path, keys: Sequence[str | int]) -> int | None:
    """Line (from 1) where the value at ``keys`` stands, or of the deepest parent that is there."""
    try:
        node = yaml.compose(path.read_text(encoding="utf-8-sig"), Loader=_Loader)
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return None
    line: int | None = None
    for key in keys:
        if isinstance(node, yaml.MappingNode):
            found = [(k, v) for k, v in node.value if k.value == key]
            if not found:
                break
            line, node = found[-1][0].start_mark.line + 1, found[-1][1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
            node = node.value[key]
            line = node.start_mark.line + 1
        else:
            break
    return line
