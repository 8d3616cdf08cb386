"""What every command shares: its common options, where results and talk go, errors to exit codes.

Results go to stdout, talk to stderr. With `--json` stdout holds one JSON document, also for an error.
"""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from orchestrator.errors import OrchError
    from orchestrator.inventory import Inventory

__all__ = [
    "InventoryOption",
    "JsonOption",
    "QuietOption",
    "emit_json",
    "fail",
    "open_inventory",
    "stderr_console",
    "stdout_console",
    "talk",
]

InventoryOption = Annotated[
    Path | None,
    typer.Option(
        "--inventory",
        "-i",
        envvar="ORCH_INVENTORY",
        help="The inventory file.",
        show_default=False,
        metavar="FILE",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No talk on stderr but errors.")]


def open_inventory(path: Path | None) -> Inventory:
    """Finds and reads the inventory: the given file, else the usual places."""
    from orchestrator.inventory import load_inventory, users_memory

    return load_inventory(path, users_memory())


def stdout_console() -> Console:
    """The console for results."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def stderr_console() -> Console:
    """The console for talk: progress, warnings, errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def talk(message: str, *, quiet: bool = False) -> None:
    """Says something on stderr, as plain text: no markup is read from it."""
    if not quiet:
        try:
            sys.stdout.flush()  # in one log file results and talk keep their order
            sys.stderr.write(message + "\n")
            sys.stderr.flush()
        except OSError as error:
            if error.errno != errno.EIO:  # a terminal that hung up: nobody is there to be told
                raise


def emit_json(document: Any) -> None:
    """Prints the one JSON document of a command."""
    sys.stdout.write(json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n")


def fail(error: OrchError, *, as_json: bool) -> NoReturn:
    """Renders an error and ends the process with its exit code."""
    from orchestrator.text import printable

    if as_json:
        emit_json(
            {
                "schema": "orch/error/1",
                "error": error.message,
                "hint": error.hint,
                "exit_code": error.exit_code,
                "kind": type(error).__name__.removesuffix("Error"),
                "details": error.details,
            }
        )
        talk(f"error: {printable(error.message.splitlines()[0])}")
        sys.exit(error.exit_code)
    talk(f"error: {printable(error.message, keep_newlines=True)}")
    if error.hint:
        talk(f"  next: {printable(error.hint, keep_newlines=True)}")
    sys.exit(error.exit_code)
