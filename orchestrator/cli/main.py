"""`orch`: the table of commands and the one place where errors become exit codes.

Importing this module imports typer and the standard library only; every command imports what it needs when
it runs, so that help and completion stay as quick as an empty program.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from orchestrator.cli import compare, demo, evaluate, hosts, push, runs, sandbox

__all__ = ["app", "run"]

app = typer.Typer(
    name="orch",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode=None,
    help="Ship, run and compare evaluations of speculative-decoding drafters on remote GPUs over SSH.",
)


def _version(value: bool) -> None:
    if value:
        from orchestrator import __version__

        typer.echo(f"orch {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    pass


push.register(app)
evaluate.register(app)
compare.register(app)
runs.register(app)
hosts.register(app)
sandbox.register(app)
demo.register(app)


def run() -> None:
    """The console script: runs a command, maps what it raises to an exit code (README: exit codes)."""
    from orchestrator.errors import OrchError

    try:
        app()
    except OrchError as error:
        from orchestrator.cli.common import fail

        fail(error, as_json="--json" in sys.argv)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)


if __name__ == "__main__":
    run()
