"""Where a ``vllm serve`` command stands: in text, a shell script, a compose file or a Kubernetes manifest."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.yaml_file import read_text
from hisparse_sim.serve.shell import expand, shell_commands

_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main")
_IMAGE = re.compile(r"vllm[\w.-]*(?::v?(?P<version>\d+\.\d+(?:\.\d+)?))?")
_MOST = 5


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """``words`` after ``vllm serve``; ``environment`` that stands beside; ``version`` of the image."""

    words: tuple[str, ...]
    where: str
    environment: Mapping[str, str] = field(default_factory=dict)
    version: str | None = None

    @property
    def text(self) -> str:
        """The command as one would type it."""
        return shlex.join(["vllm", "serve", *self.words])


def find_command(given: str) -> ServeCommand:
    """The command that ``given`` is, or that the file of this name holds (``FILE#NAME``: one of several).

    Raises ``InputError`` when there is none, or more than one.
    """
    if not given.strip():
        raise InputError("is empty; give a vllm serve command, or a file with one", where="--serve")
    path, name = _as_file(given)
    if path is None:
        found = [ServeCommand(*c) for c in _in_text(given, "--serve", {})]
        if not found:
            raise InputError(
                f"{_short(given)!r} is neither a file nor a vllm serve command (vllm serve MODEL --flags)",
                where="--serve",
            )
        where = "--serve"
    else:
        where = str(path)
        text = read_text(path)
        if path.suffix.lower() in (".yaml", ".yml", ".json") or text.lstrip().startswith(("services:", "{")):
            found = list(_in_documents(text, where))
        else:
            found = [ServeCommand(*c) for c in _in_text(text, where, {})]
    if name is not None:
        found = [c for c in found if name in c.where.removeprefix(where).strip(": ").split(".")]
    if not found:
        named = f" named {name!r}" if name else ""
        raise InputError(f"holds no vllm serve command{named}", where=where)
    if len(found) > 1:
        places = [c.where.removeprefix(where).strip(": ") or _short(c.text) for c in found]
        shown = ", ".join(places[:_MOST])
        raise InputError(
            f"holds {len(found)} vllm serve commands ({shown}); name one as FILE#NAME", where=where
        )
    return found[0]


def _as_file(given: str) -> tuple[Path | None, str | None]:
    """The file meant, and the name after ``#``."""
    stem, _, name = given.partition("#")
    for text, inside in ((given, None), (stem, name or None)):
        try:
            if text and Path(text).expanduser().exists():
                return Path(text).expanduser(), inside
        except (OSError, ValueError, RuntimeError):  # too long for a path, so it is a command
            continue
    looks = not re.search(r"\s", stem) and re.search(r"\.(sh|bash|ya?ml|json|txt)$", stem, re.I)
    return (Path(stem), name or None) if looks else (None, None)


def _in_text(
    text: str, where: str, environment: Mapping[str, str]
) -> Iterator[tuple[tuple[str, ...], str, Mapping[str, str], str | None]]:
    """Each command in a script: its words, place, environment and image's version."""
    around = dict(environment)
    for words in shell_commands(text, where=where, environment=environment):
        own = _assignments(words)
        if words[0] == "export":
            around |= _assignments(words[1:])
            continue
        inner = _inside_shell(words)
        if inner is not None:
            yield from _in_text(inner, where, around | own)
            continue
        found = _after_serve(words[len(own) :])
        if found is not None:
            yield found[0], where, around | own, found[1]


def _inside_shell(words: Sequence[str]) -> str | None:
    """The script of ``sh -c "script"``, wherever that stands."""
    for index, word in enumerate(words[1:-1], start=1):
        if re.fullmatch(r"-\w*c", word) and Path(words[index - 1]).name in ("sh", "bash"):
            return words[index + 1]
    return None


def _assignments(words: Sequence[str]) -> dict[str, str]:
    """``NAME=value`` words that lead."""
    found: dict[str, str] = {}
    for word in words:
        match = re.fullmatch(r"([A-Za-z_]\w*)=(.*)", word, re.S)
        if match is None:
            break
        found[match[1]] = match[2]
    return found


def _after_serve(words: Sequence[str]) -> tuple[tuple[str, ...], str | None] | None:
    """What follows ``vllm serve``, the server's module or the official image, and the image's version."""
    version = next((_version(w) for w in words if _is_image(w)), None)
    for index, word in enumerate(words):
        rest = words[index + 1 :]
        if Path(word).name == "vllm" and rest[:1] == ["serve"]:
            return tuple(rest[1:]), version
        if word in _MODULES:
            return tuple(rest[1:] if rest[:1] == ["serve"] else rest), version
    for index, word in enumerate(words):
        if _is_image(word) and index:  # docker run ... image --model ...
            return tuple(words[index + 1 :]), version
    return None


def _is_image(word: str) -> bool:
    return "/vllm-" in f"/{word}" and not word.startswith("-") and "=" not in word


def _version(image: str) -> str | None:
    match = _IMAGE.search(image.rsplit("/", 1)[-1])
    return match["version"] if match else None


def _in_documents(text: str, where: str) -> Iterator[ServeCommand]:
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = f"{where}:{mark.line + 1}" if mark else where
        raise InputError(f"not valid YAML: {error.problem}", where=at) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"not valid YAML: {str(error).splitlines()[0]}", where=where) from None
    for document in documents:
        if isinstance(document, list):
            document = {"args": document}
        yield from _in_mapping(document, where, ())


def _in_mapping(node: Any, where: str, path: tuple[str, ...]) -> Iterator[ServeCommand]:
    """Containers and services anywhere in a document; their names are part of the place."""
    if isinstance(node, list):
        for index, item in enumerate(node):
            name = item.get("name") if isinstance(item, dict) else None
            yield from _in_mapping(item, where, (*path, str(name or index)))
        return
    if not isinstance(node, dict):
        return
    if any(key in node for key in ("command", "args", "entrypoint")):
        found = _of_container(node, f"{where}: {'.'.join(path)}" if path else where)
        if found is not None:
            yield found
            return
    for key, value in node.items():
        yield from _in_mapping(value, where, (*path, str(key)))


def _of_container(node: Mapping[str, Any], where: str) -> ServeCommand | None:
    environment = _environment(node)
    words = [w for key in ("entrypoint", "command", "args") for w in _words(node.get(key), where)]
    words = [out for word in words for out in expand(word.replace("$$", "$"), environment)]
    image = str(node.get("image", ""))
    version = _version(image) if _is_image(image) else None
    script = _inside_shell(words)
    if script is not None:
        inner = [ServeCommand(*c) for c in _in_text(script, where, environment)]
        return replace(inner[0], version=inner[0].version or version) if inner else None
    found = _after_serve(words)
    if found is not None:
        return ServeCommand(found[0], where, environment, version)
    own = any(w.split("=")[0] in ("--model", "--tensor-parallel-size", "-tp") for w in words)
    # The official image's entry point is the server itself.
    return ServeCommand(tuple(words), where, environment, version) if own or _is_image(image) else None


def _words(value: Any, where: str) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError as error:
            raise InputError(f"is no shell command: {str(error).lower()}", where=where) from None
    if isinstance(value, list) and not any(isinstance(v, (dict, list)) for v in value):
        return [str(v).lower() if isinstance(v, bool) else str(v) for v in value]
    raise InputError(f"{_short(str(value))} is no list of words", where=where)


def _environment(node: Mapping[str, Any]) -> dict[str, str]:
    """``environment`` of compose (mapping or NAME=value) and ``env`` of Kubernetes (name and value)."""
    found: dict[str, str] = {}
    given = node.get("environment")
    if isinstance(given, dict):
        found |= {str(k): str(v) for k, v in given.items() if v is not None}
    elif isinstance(given, list):
        found |= _assignments([str(v) for v in given if "=" in str(v)])
    for item in node.get("env") or () if isinstance(node.get("env"), list) else ():
        if isinstance(item, dict) and "value" in item:
            found[str(item.get("name"))] = str(item["value"])
    return found


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 60 else flat[:57] + "..."
