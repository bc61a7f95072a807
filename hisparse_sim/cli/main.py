"""The ``hisparse-sim`` command: parses, calls, prints; one module a sub-command."""

from __future__ import annotations

import sys

try:
    import atexit
    import gc
    import importlib
    import os
    from typing import Annotated

    import typer

    from hisparse_sim.errors import HiSparseError
except KeyboardInterrupt:  # Ctrl-C as soon as it starts
    sys.exit(130)

_INTERRUPTED = 130

_COMMANDS = (
    "estimate",
    "run",
    "explain",
    "sweep",
    "plan",
    "sensitivity",
    "compare",
    "plot",
    "report",
    "doctor",
    "workload",
    "scenarios",
    "models",
    "nodes",
)
"""Each is the function ``command`` of its module, which imports what is heavy inside."""
_GROUPS = ("calibrate", "locality", "validate")
"""Each is the ``app`` of its module."""

_LIVE_OBJECTS = 200_000
"""New objects between two looks for garbage. Nearly all that a start makes stays: at Python's 700 the
collector walks it over and over, 0.08 s."""


def _version(asked: bool) -> None:
    if asked:
        from hisparse_sim import __version__

        typer.echo(f"hisparse-sim {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def command_line(asked: str | None = None) -> typer.Typer:
    """The command with its sub-commands, or with only the one ``asked`` for, if there is such a one.

    typer makes the options of all that it is given, used or not, which takes 0.06 s.
    """
    app = typer.Typer(
        name="hisparse-sim",
        help="Simulate and size long-context LLM serving with tiered KV memory.",
        add_completion=False,
        pretty_exceptions_enable=False,
        # Plain help: rich would add 0.15 s to every call.
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    known = _COMMANDS + _GROUPS
    for name in (asked,) if asked in known else known:
        module = importlib.import_module(f"hisparse_sim.cli.{name}")
        if name in _GROUPS:
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(module.command)
    return app


def main(argv: list[str] | None = None) -> None:
    """Run the command line and leave with its exit code: 0, 2 for anything refused, 130 for Ctrl-C."""
    gc.set_threshold(_LIVE_OBJECTS)
    # numpy's matrix library starts a thread a core, which spin: 0.1 s of CPU on two cores. No command has
    # matrices that would be worth it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Every installed package would be asked whether it has a plugin for pydantic: 0.01 s.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # Python looks for garbage as it ends, though the memory goes with the process anyway: 0.1 s.
    atexit.register(gc.freeze)
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def run(argv: list[str]) -> int:
    """The exit code of ``hisparse-sim`` with these arguments."""
    try:
        app = command_line(argv[0] if argv else None)
        code = app(args=argv or ["--help"], prog_name="hisparse-sim", standalone_mode=False)
        if code == _INTERRUPTED:  # typer turns Ctrl-C into this code
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except HiSparseError as error:
        return _fail(str(error))
    except typer.Exit as left:
        return left.exit_code
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    except Exception as error:
        # A mistake in the command line. Its class is click's, which newer typer carries inside itself.
        if not callable(message := getattr(error, "format_message", None)):
            raise
        context = getattr(error, "ctx", None)
        command = getattr(context, "command_path", "hisparse-sim")
        return _fail(f"{message().rstrip('.')} (see {command} --help)")


def _fail(message: str) -> int:
    print("error: " + " ".join(message.split()), file=sys.stderr)
    return 2
