"""Words of a shell script: comments, continued lines, quotes and variables, as far as they decide flags."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from hisparse_sim.errors import InputError

_ENDS = "();<>|&\n"
_ASSIGNMENT = re.compile(r"(?s)([A-Za-z_]\w*)=(.*)")
_VARIABLE = re.compile(
    r"\$\{(?P<braced>\w+)(?:\[@\])?(?::?[-=](?P<default>[^}]*))?\}|\$\((?P<kubernetes>\w+)\)|\$(?P<plain>\w+)"
)

Variables = dict[str, str | list[str]]


class _Text(io.StringIO):
    """Leaves the line's end in place when a comment is skipped: it ends the command, too."""

    def readline(self, size: int | None = -1) -> str:  # type: ignore[override]
        line = super().readline()
        if line.endswith("\n"):
            self.seek(self.tell() - 1)
        return line


class _Lexer(shlex.shlex):
    """A POSIX lexer to which ``#`` begins a comment only where a word would begin."""

    def __init__(self, text: str) -> None:
        super().__init__(_Text(text), posix=True, punctuation_chars=_ENDS)
        self.whitespace = " \t\r"
        self.whitespace_split = True

    @property
    def commenters(self) -> str:
        """Of the state that the lexer is in."""
        return "#" if getattr(self, "state", " ") == " " else ""

    @commenters.setter
    def commenters(self, value: str) -> None:
        pass


def shell_commands(text: str, *, where: str, environment: Mapping[str, str] | None = None) -> list[list[str]]:
    """Simple commands of a script as lists of words, variables put in; assignments lead their command.

    Raises ``InputError`` for quotes that do not close and lines that only seem to go on.
    """
    cut = re.search(r"\\[ \t]+\r?\n", text)
    if cut:
        line = text.count("\n", 0, cut.start()) + 1
        raise InputError(
            "ends in a backslash and blanks, which does not continue the line: a shell drops the flags after "
            "it; take the blanks away",
            where=f"{where}:{line}",
        )
    lexer = _Lexer(re.sub(r"\\\r?\n", "", text))
    try:
        tokens = list(lexer)
    except ValueError as error:
        raise InputError(f"is no shell command: {str(error).lower()}", where=where) from None
    known: Variables = dict(environment or {})
    commands: list[list[str]] = []
    words: list[str] = []
    array: str | None = None
    for token in [*tokens, "\n"]:
        ends = bool(token) and set(token) <= set(_ENDS)
        if array is not None:  # NAME=( words )
            if ")" in token and ends:
                known[array] = [w for word in words for w in expand(word, known)]
                array, words = None, []
            elif not ends:
                words.append(token)
        elif not ends:
            words.append(token)
        elif token.startswith("(") and words and _ASSIGNMENT.fullmatch(words[-1]):
            array, words = words[-1].rstrip("=+"), []
        elif words:
            if token[0] in "<>" and words[-1].isdigit():  # 2>&1
                words.pop()
            commands.append(_complete(words, known))
            words = []
    return [c for c in commands if c]


def _complete(words: Sequence[str], known: Variables) -> list[str]:
    """Variables put in; what a line of nothing but assignments says is remembered."""
    assigned = [_ASSIGNMENT.fullmatch(w) for w in words if w != "export"]
    if all(assigned):
        for match in assigned:
            if match:
                known[match[1]] = " ".join(expand(match[2], known))
        return []
    return [out for word in words for out in expand(word, known)]


def expand(word: str, known: Mapping[str, Any]) -> list[str]:
    """``word`` with known variables put in; one that is nothing but a variable may become several words."""
    alone = _VARIABLE.fullmatch(word)
    if alone:
        value = known.get(alone["braced"] or alone["plain"] or alone["kubernetes"], alone["default"])
        if isinstance(value, list):
            return list(value)
        if value is not None and value.lstrip().startswith("-"):
            try:
                return shlex.split(value)
            except ValueError:
                return [value]

    def put(match: re.Match[str]) -> str:
        value = known.get(match["braced"] or match["plain"] or match["kubernetes"], match["default"])
        if value is None:
            return match[0]
        return " ".join(value) if isinstance(value, list) else str(value)

    return [_VARIABLE.sub(put, word)]
