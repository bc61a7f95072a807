"""Pages of the site that are made of the code when it is built, and README as its first page.

A hook of mkdocs (mkdocs.yml): the command line from its own help, a scenario's fields from the records that
check them. Python names are mkdocstrings' work.
"""

from __future__ import annotations

import json
import re
from inspect import getdoc
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import griffe
from pydantic import BaseModel
from pydantic.fields import FieldInfo

ROOT = Path(__file__).resolve().parents[1]
SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def on_files(files: Any, config: Any) -> Any:
    """What mkdocs calls: the files of the site, with these beside them."""
    from mkdocs.structure.files import File

    made = {"index.md": front_page(), "reference/cli.md": commands(), "reference/scenario.md": fields()}
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def front_page() -> str:
    """README, with links as seen from docs/."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    return re.sub(r"\[notebooks/\]\(notebooks/\)", "[five notebooks](tutorial/notebooks.md)", text)


def commands() -> str:
    """Every command with its arguments and options."""
    from typer.cli import get_docs_for_click
    from typer.main import get_command

    from hisparse_sim.cli.main import command_line

    group = get_command(command_line())
    context = group.make_context("hisparse-sim", [], resilient_parsing=True)
    text = get_docs_for_click(obj=group, ctx=context, name="hisparse-sim", title="Commands")
    text = re.sub(r"\*\*Commands\*\*:\n\n(\* .*\n)+\n", "", text)  # cut short there; headings have them all
    return text.replace("```console\n$ ", "```text\n")


def fields() -> str:
    """Every record that a scenario is made of, with its fields."""
    from hisparse_sim.scenario.scenario import Scenario

    parts = [
        "# Fields of a scenario\n\n"
        "A scenario is a YAML file of these records; `hisparse-sim scenarios show NAME` prints one to start "
        "from. `model` and `node` are a name of the catalogue, a file, or the record itself. Unknown fields "
        "are refused. `--set engine.mtp=3` changes one field by its path. `Count` and `Seconds` are a "
        "number or a distribution (FixedSpec to MixtureSpec), `Positive` is a whole number above 0.\n"
    ]
    package = griffe.load("hisparse_sim.scenario", search_paths=[ROOT])
    for record in records(Scenario):
        module = record.__module__.removeprefix("hisparse_sim.scenario.")
        parts.append(_section(record, package[module][record.__name__]))
    return "\n".join(parts)


def records(root: type[BaseModel]) -> list[type[BaseModel]]:
    """``root`` and all records that its fields may hold, each once, in order of appearance."""
    found: dict[type[BaseModel], None] = {}
    queue: list[Any] = [root]
    while queue:
        one = queue.pop(0)
        if isinstance(one, type) and issubclass(one, BaseModel) and get_origin(one) is None:
            if one not in found:
                found[one] = None
                queue += [field.annotation for field in one.model_fields.values()]
        elif get_origin(one) in (Union, UnionType, Annotated, tuple, list, dict):
            queue += get_args(one)
    return list(found)


def _section(record: type[BaseModel], shown: Any) -> str:
    lines = [
        f"## {record.__name__}\n\n{_plain(getdoc(record) or '')}\n",
        "| field | type | default | |",
        "|---|---|---|---|",
    ]
    for name, field in record.model_fields.items():
        member = shown.all_members[name]
        words = _plain(member.docstring.value) if member.docstring else ""
        cells = (f"`{name}`", f"`{_type(member, field)}`", _default(field), " ".join(words.split()))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _type(member: Any, field: FieldInfo) -> str:
    """The annotation as written, with bounds: ``PositiveInt | None`` is ``int > 0 or none``."""
    if get_origin(field.annotation) is Literal:
        return " or ".join(str(value) for value in get_args(field.annotation))
    text = field.annotation.__name__ if field.annotation in (int, float) else str(member.annotation)
    for name, bound in (("Positive", "> 0"), ("NonNegative", ">= 0")):
        text = re.sub(rf"\b{name}(Int|Float)", lambda found, b=bound: f"{found[1].lower()} {b}", text)
    if field.annotation in (int, float):
        bounds = [(sign, getattr(meta, key, None)) for meta in field.metadata for key, sign in SIGNS.items()]
        text = " ".join([text, *(f"{sign} {value:g}" for sign, value in bounds if value is not None)])
    text = re.sub(r"Literal\['(\w+)'\]", r"\1", text)
    return text.replace("None", "none").replace(" | ", " or ")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return ""
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return f"as of {type(value).__name__}"
    return f"`{json.dumps(value) if value is not None else 'none'}`"


def _plain(docstring: str) -> str:
    return re.sub(r"(?::\w+:)?(`+)(.+?)\1", r"`\2`", docstring, flags=re.S)
