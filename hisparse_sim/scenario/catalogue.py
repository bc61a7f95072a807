"""The shipped models, nodes and scenarios, and how a name or a path becomes one of them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TypeVar, cast

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.base import Record
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec
from hisparse_sim.scenario.validate import build, nearest
from hisparse_sim.scenario.yaml_file import read_mapping

R = TypeVar("R", bound=Record)


@lru_cache(maxsize=1)
def configs_dir() -> Path:
    """Folder of the shipped configs: inside the package when installed, of the repository in place."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def list_models() -> list[str]:
    """Names of the shipped models."""
    return _names("models")


def list_nodes() -> list[str]:
    """Names of the shipped nodes."""
    return _names("nodes")


def list_scenarios() -> list[str]:
    """Names of the shipped scenarios."""
    return _names("scenarios")


def load_model(name_or_path: str | Path) -> ModelSpec:
    """A model by catalogue name, by YAML file, or by Hugging Face config.json (or its folder).

    Raises InputError (unknown name, unreadable file) or UnsupportedModel (an architecture not sized).
    """
    path = find("model", name_or_path)
    if path.is_dir() or path.suffix.lower() == ".json":
        from hisparse_sim.scenario.hf_config import model_from_config

        return model_from_config(path)
    return _read(ModelSpec, path)


def load_node(name_or_path: str | Path) -> NodeSpec:
    """A node by catalogue name or by YAML file. Raises InputError."""
    return _read(NodeSpec, find("node", name_or_path))


def find(kind: str, name_or_path: str | Path) -> Path:
    """The file that ``name_or_path`` means: a shipped ``kind`` ("model", "node", "scenario"), or itself.

    Names are case-insensitive. Raises InputError for a name that is neither.
    """
    given = str(name_or_path)
    if not given or "\0" in given:
        raise InputError(f"{given!r} is no name", where=kind)
    folder = f"{kind}s"
    names = _names(folder)
    shipped = next((n for n in names if n == given.strip().lower()), None)
    if shipped is not None:
        return configs_dir() / folder / f"{shipped}.yaml"
    path = Path(given)
    try:
        path = path.expanduser()
        # A link to nothing, or to itself, is a file that cannot be read rather than a name.
        if path.suffix.lower() in (".json", ".yaml", ".yml") or path.exists() or path.is_symlink():
            return path
    except (OSError, RuntimeError) as error:  # no such home folder, too long, not permitted
        raise InputError(
            f"{given[:60]!r} cannot be read: {getattr(error, 'strerror', None) or error}", where=kind
        ) from None
    near = nearest(path.name.lower(), names)
    raise InputError(
        f"unknown {kind} {given!r}{near or '; known are ' + ', '.join(names)}; or give the path of a file",
        where=kind,
    )


def _names(folder: str) -> list[str]:
    return sorted(p.stem for p in (configs_dir() / folder).glob("*.yaml"))


def _read(record: type[R], path: Path) -> R:
    try:
        stamp = path.stat().st_mtime_ns
    except OSError:
        stamp = 0
    return cast(R, _read_cached(record, path, stamp))


@lru_cache(maxsize=64)
def _read_cached(record: type[Record], path: Path, _stamp: int) -> Record:
    return build(record, read_mapping(path), file=str(path))
