"""The words of a ``vllm serve`` command as flags and values, the way vLLM's own parser takes them.

Underscores and dashes are the same, ``--flag=value`` and ``--no-flag`` are known, the last of a
repeated flag wins, and ``--kv-transfer-config.kv_connector X`` fills a JSON mapping key by key. Such
keys replace a mapping that is given whole beside them, as in vLLM, which appends them as JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.validate import nearest
from hisparse_sim.scenario.yaml_file import read_mapping
from hisparse_sim.serve import flags

_DOTTED = re.compile(r"(--[A-Za-z][\w-]*|-(?:cc|ac|sc))\.([^=]+)(?:=(.*))?", re.S)
_SIZE = re.compile(r"(-?\d+(?:\.\d+)?)([kKmMgGtT]?)")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12} | {
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
}


_DRAFTS = {"spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens"}


@dataclass(frozen=True, slots=True)
class ServeFlags:
    """What was given, by flag name with dashes (``max-model-len``); ``where`` names the command in errors.

    ``replaced``: JSON flags of which the whole mapping was lost to dotted keys.
    """

    model: str
    given: Mapping[str, Any]
    where: str
    replaced: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def written(self, name: str) -> str:
        """The flag as one would write it, with its value."""
        value = self.given.get(name)
        if value is True:
            return f"--{name}"
        if value is False:
            return f"--no-{name}"
        shown = json.dumps(value) if isinstance(value, (dict, list)) else str(value)
        return f"--{name} {shown if len(shown) <= 60 else shown[:57] + '...'}"

    def place(self, name: str) -> str:
        """How an error names it."""
        return f"{self.where}: {self.written(name)}"

    def whole(self, name: str, default: int) -> int:
        """A whole number, ``1k`` = 1,000 and ``1K`` = 1,024 as in vLLM."""
        text = self.given.get(name)
        if text is None:
            return default
        match = _SIZE.fullmatch(str(text).strip().replace(",", ""))
        if match:
            number = float(match[1]) * _UNITS[match[2]]
            if number.is_integer():
                return int(number)
        raise self._wrong(name, "a whole number (1k is 1,000 and 1K is 1,024, as in vLLM)")

    def number(self, name: str, default: float) -> float:
        """Any number."""
        text = self.given.get(name)
        try:
            return default if text is None else float(text)
        except ValueError:
            raise self._wrong(name, "a number") from None

    def switch(self, name: str, default: bool) -> bool:
        """Whether it is on."""
        value = self.given.get(name)
        return default if value is None else bool(value)

    def text(self, name: str, default: str) -> str:
        """As given."""
        return str(self.given.get(name, default))

    def mapping(self, name: str) -> dict[str, Any]:
        """A JSON mapping; empty when the flag was not given."""
        value = self.given.get(name)
        return dict(value) if isinstance(value, dict) else {}

    def _wrong(self, name: str, right: str) -> InputError:
        text = str(self.given[name])
        if "$" in text:
            return InputError(f"{text!r} is a variable that is not set there", where=self.place(name))
        return InputError(f"{text!r} is not {right}", where=self.place(name))


def parse_flags(
    words: Sequence[str], *, where: str, environment: Mapping[str, str] | None = None
) -> ServeFlags:
    """Read the words after ``vllm serve``. Raises ``InputError`` naming flag and place."""
    plain, dotted = _dotted(_canonical(_with_config(words, where)), where)
    parser = _parser()
    try:
        known, extra = parser.parse_known_args(plain)
    except _Refused as error:
        raise InputError(_humane(str(error), plain), where=where) from None
    for word in extra:
        if word.startswith("-") and not re.fullmatch(r"-\d.*", word):
            raise _unknown(word, where)
    if extra:
        raise InputError(
            f"{extra[0]!r} belongs to no flag; a model is named once, and a value with blanks needs quotes",
            where=where,
        )
    given = {k.replace("_", "-"): v for k, v in vars(known).items() if v is not None}
    positional = given.pop("model-positional", None)
    model = positional or given.get("model")
    if not model:
        raise InputError("names no model; write vllm serve MODEL", where=where)
    given.pop("model", None)
    whole = {name: _json(name, given[name], words, where) for name in flags.JSON if name in given}
    replaced = tuple(sorted(name for name in whole if name in dotted))
    found = given | whole | dotted
    if drafts := _drafts(found):
        found["speculative-config"] = drafts
    return ServeFlags(str(model), found, where, replaced, dict(environment or {}))


def _drafts(given: Mapping[str, Any]) -> dict[str, Any]:
    """``--speculative-config`` with what ``--spec-method``, ``--spec-model`` and ``--spec-tokens`` say."""
    config = dict(given.get("speculative-config", {}))
    for flag, key in _DRAFTS.items():
        if flag in given:
            config[key] = _loose(str(given[flag]))
    return config


def _with_config(words: Sequence[str], where: str) -> list[str]:
    """``--config FILE``: its keys as flags before those of the command line, which win."""
    out: list[str] = []
    held: list[str] = []
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name != "--config":
            out.append(word)
            continue
        path = value if equals else next(rest, "")
        if not path:
            raise InputError("needs the name of a YAML file", where=f"{where}: --config")
        for key, given in read_mapping(Path(path)).items():
            flag = f"--{key.replace('_', '-')}"
            if isinstance(given, bool):
                held.append(flag if given else f"--no-{flag[2:]}")
            elif isinstance(given, list) and not any(isinstance(v, (dict, list)) for v in given):
                held += [flag, *map(str, given)]
            else:
                held += [flag, json.dumps(given) if isinstance(given, (dict, list)) else str(given)]
    if not held:
        return out
    # A model named by position stays in front: a flag of several values would take it.
    first = 1 if out and not out[0].startswith("-") else 0
    return [*out[:first], *held, *out[first:]]


def _canonical(words: Sequence[str]) -> list[str]:
    """Dashes for underscores in names of flags, long names for short ones."""
    out: list[str] = []
    for word in words:
        if word.startswith("--") and len(word) > 2:
            end = min((word.find(c) for c in ".=" if c in word), default=len(word))
            word = word[:end].replace("_", "-") + word[end:]
            name, equals, value = word.partition("=")
            word = flags.OTHER_NAMES.get(name, name) + equals + value
        elif match := re.fullmatch(r"-O\.?(\d.*|=.*)", word):
            out += ["--optimization-level", match[1].lstrip("=")]
            continue
        elif match := re.fullmatch(r"(-[A-Za-z]+)([.=].*)?", word, re.S):
            word = flags.SHORT.get(match[1], match[1]) + (match[2] or "")
        out.append(word)
    return out


def _dotted(words: Sequence[str], where: str) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """The other words, and the mappings that ``--json-flag.key[.key] value`` fill."""
    out: list[str] = []
    found: dict[str, dict[str, Any]] = {}
    rest = iter(words)
    for word in rest:
        match = _DOTTED.fullmatch(word)
        if match is None:
            out.append(word)
            continue
        name, keys = match[1].removeprefix("--"), match[2].split(".")
        if name not in flags.JSON:
            if name in flags.values() | flags.switches():
                # A mapping that this package does not read: its keys go with it.
                out += [f"--{name}", match[3] if match[3] is not None else next(rest, "")]
                continue
            raise _unknown(f"--{name}", where)
        text = match[3] if match[3] is not None else next(rest, None)
        if text is None:
            raise InputError("needs a value", where=f"{where}: {word}")
        _put(found.setdefault(name, {}), keys, _loose(text), f"{where}: {word}")
    return out, found


def _put(mapping: dict[str, Any], keys: Sequence[str], value: Any, where: str) -> None:
    for key in keys[:-1]:
        mapping = mapping.setdefault(key, {})
        if not isinstance(mapping, dict):
            raise InputError(f"{key} holds a value already, which has no keys", where=where)
    last = keys[-1]
    if last.endswith("+"):  # one more of a list
        mapping.setdefault(last[:-1], []).append(value)
    else:
        mapping[last] = value


def _loose(text: str) -> Any:
    """A dotted value: JSON where it is JSON, else text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _json(name: str, text: str, words: Sequence[str], where: str) -> dict[str, Any]:
    place = f"{where}: --{name}"
    for index, word in enumerate(words):
        if text in (word, word.partition("=")[2]):
            place += f", word {index + 1}"
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        near = text[max(0, error.pos - 10) : error.pos + 10]
        hint = ""
        if re.match(r"\s*\{\s*\w", text):
            hint = "; the shell took the quotes away: put the JSON between single quotes"
        elif "'" in text and '"' not in text:
            hint = "; JSON has double quotes"
        raise InputError(
            f"not valid JSON at character {error.pos + 1} (near {near!r}): {error.msg}{hint}; the value is "
            f"{text!r}",
            where=place,
        ) from None
    except RecursionError:
        raise InputError("is nested too deeply", where=place) from None
    if not isinstance(value, dict):
        raise InputError(f"{text!r} is no JSON mapping, as in '{{\"key\": value}}'", where=place)
    return value


class _Refused(Exception):
    pass


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Refused(message)


@lru_cache(maxsize=1)
def _parser() -> _Parser:
    parser = _Parser(prog="vllm serve", add_help=False, allow_abbrev=False)
    parser.add_argument("model_positional", nargs="?")
    for name in sorted(flags.values() | flags.JSON):
        # A bare --hf-token means the one that is stored.
        nargs = "+" if name in flags.MANY else "?" if name == "hf-token" else None
        parser.add_argument(f"--{name}", nargs=nargs, const="" if nargs == "?" else None)
    for name in sorted(flags.switches()):
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction)
    return parser


def _humane(message: str, words: Sequence[str]) -> str:
    match = re.match(r"argument (--[\w-]+)(?:/\S+)?: expected (?:one|at least one) argument", message)
    if match:
        return f"{match[1]} needs a value"
    match = re.match(r"argument (--[\w-]+)[^:]*: ignored explicit argument (.*)", message)
    if match:
        return f"{match[1]} takes no value ({match[2]}); write it alone, or --no-{match[1][2:]}"
    return f"{message} in {shlex.join(words)[:80]}"


def _unknown(word: str, where: str) -> InputError:
    name = word.split("=")[0]
    known = [f"--{n}" for n in flags.values() | flags.JSON | flags.switches()]
    known += [f"--no-{n}" for n in flags.switches()] + list(flags.SHORT)
    near = nearest(name, known)
    return InputError(f"{name} is no flag of vllm serve that is known here{near}", where=where)
