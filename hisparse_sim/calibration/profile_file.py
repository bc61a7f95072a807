"""A fitted profile as a file: valid before it is written, and written whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisparse_sim.errors import InputError

if TYPE_CHECKING:
    from hisparse_sim.cost.profile import Profile


def validated(profile: dict[str, Any], path: Path) -> Profile:
    """What was fitted as a ``Profile``. Raises ``InputError`` for a term that no profile may have."""
    from pydantic import ValidationError

    from hisparse_sim.cost.profile import Profile
    from hisparse_sim.scenario.validate import explain

    try:
        return Profile.model_validate(profile)
    except ValidationError as error:
        # The file is not written yet: no line of it could be named.
        wrong = explain(error, Profile, file="")
        raise InputError(f"what was fitted is no profile: {wrong}", where=str(path)) from None


def write_text(path: Path, text: str) -> None:
    """Raises ``InputError`` naming the file."""
    beside = path.with_name(path.name + ".part")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", where=str(path)) from None
