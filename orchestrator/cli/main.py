"""`orch`: the table of commands and the one place where errors become exit codes.

What always holds: importing this module imports typer and the standard library only; a command's module is
imported when the command is typed (or completed), so that help stays as quick as an empty program. The
table's help is each command's own first line; a test keeps them equal.
"""

from __future__ import annotations

import gc
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from orchestrator.cli.ending import PassedError, catch_signals, end

__all__ = ["COMMANDS", "build_app", "run"]


class Entry(NamedTuple):
    """A command (or a group of them): its name, the module whose `register` adds it, its line of help."""

    name: str
    module: str
    help: str


COMMANDS = (
    Entry("push", "push", "Check the payload and make it current on hosts. Unchanged: one round trip."),
    Entry("rollback", "push", "Make an earlier release current again on a host."),
    Entry("eval", "evaluate", "Evaluate checkpoints on a host and bring their figures back."),
    Entry(
        "diagnose",
        "diagnose",
        "Tell a bad model from a bad harness, and say how to mend it.",
    ),
    Entry("compare", "compare", "Compares drafters: τ with intervals, differences with p."),
    Entry("demo", "demo", "The main job, end to end, on two sandbox hosts."),
    Entry("runs", "runs", "The record of runs: list, show, follow, end, bring home."),
    Entry("ckpt", "ckpt", "Checkpoints: send them ahead to a host, copy them to this machine."),
    Entry("hosts", "hosts", "The machines of the inventory."),
    Entry("sandbox", "sandbox", "SSH hosts on this machine, without root."),
)


class _Program(TyperGroup):
    """The program's group of commands: what typer would end by its own rules comes through to `run`."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except typer.Abort as error:  # Ctrl-C or the end of input at a question
            raise PassedError(KeyboardInterrupt()) from error
        except (KeyboardInterrupt, BrokenPipeError) as error:
            raise PassedError(error) from error


def build_app(words: Sequence[str] | None = None) -> typer.Typer:
    """Makes the program.

    Args:
        words: the command line after the program's name: only the command that it names is made in full, the
            others are lines of help. None makes every command in full.
    """
    app = typer.Typer(
        name="orch",
        cls=_Program,
        no_args_is_help=True,
        pretty_exceptions_show_locals=False,
        rich_markup_mode=None,
        help="Ship, run and compare evaluations of speculative-decoding drafters on remote GPUs over SSH.",
    )
    app.callback()(_program)
    named = next((word for word in words or () if not word.startswith("-")), None)
    registered: set[str] = set()
    for entry in COMMANDS:
        if words is None or entry.module == _module_of(named):
            if entry.module not in registered:
                registered.add(entry.module)
                importlib.import_module(f"orchestrator.cli.{entry.module}").register(app)
        else:
            app.command(entry.name, help=entry.help)(_line_of_help)
    return app


def _module_of(command: str | None) -> str | None:
    return next((entry.module for entry in COMMANDS if entry.name == command), None)


def _line_of_help() -> None:
    """Stands in the list of commands; it cannot be run, since a command that is typed is made in full."""
    raise RuntimeError("this command was not made in full")


def _version(value: bool) -> None:
    if value:
        from orchestrator import __version__

        typer.echo(f"orch {__version__}")
        raise typer.Exit


def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    pass


def run() -> None:
    """The console script: runs a command, maps what it raises to an exit code (README: exit codes)."""
    catch_signals()
    if isinstance(sys.stdout, io.TextIOWrapper):  # an encoding that lacks a sign shows its code, as on stderr
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        completing = any(name.endswith("_COMPLETE") for name in os.environ)
        build_app(None if completing else sys.argv[1:])()
    except PassedError as passed:
        end(passed.error)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - this is where every error gets its exit code
        end(error)
    finally:
        gc.freeze()  # what is left goes with the process; collecting it first would take as long as a few imports


if __name__ == "__main__":
    run()
