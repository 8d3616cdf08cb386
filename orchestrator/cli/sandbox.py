"""`orch sandbox up|down|status`: SSH hosts on this machine, for trying things out and for the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.common import InventoryOption, JsonOption, QuietOption, emit_json, open_inventory, talk

if TYPE_CHECKING:
    from orchestrator.hosts.sandbox_state import SandboxState
    from orchestrator.sandbox import SeedResult

__all__ = ["register"]

_app = typer.Typer(no_args_is_help=True, help="SSH hosts on this machine, without root.")


def register(app: typer.Typer) -> None:
    """Adds the command group to `orch`."""
    app.add_typer(_app, name="sandbox")


@_app.command("up")
def up_command(
    inventory: InventoryOption = None, as_json: JsonOption = False, quiet: QuietOption = False
) -> None:
    """Start the inventory's sandbox hosts; repeat it at will."""
    from orchestrator.sandbox import up

    report = up(open_inventory(inventory))
    if as_json:
        seeds = [vars(seed) for seed in report.seeds]
        emit_json(
            _document("up", report.state, started=report.started, seeds=seeds, folder=str(report.folder))
        )
        return
    _print_hosts(report.state, report.seeds)
    what = "is up" if report.started else "was up already"
    talk(f"the sandbox {what} (pid {report.state.pid}); `orch sandbox down` ends it", quiet=quiet)


@_app.command("down")
def down_command(
    purge: Annotated[
        bool, typer.Option("--purge", help="Also remove the hosts' home folders, keys and logs.")
    ] = False,
    inventory: InventoryOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """End the sandbox's server. Files stay (keys, homes, logs) unless --purge; detached jobs run on."""
    from orchestrator.sandbox import down

    report = down(open_inventory(inventory), purge=purge)
    if as_json:
        emit_json(
            {
                "schema": "orch/sandbox-down/1",
                "folder": str(report.folder),
                "was_running": report.was_running,
                "purged": report.purged,
            }
        )
        return
    what = "is down" if report.was_running else "was not running"
    files = f"; {report.folder} is removed" if report.purged else f"; its files stay in {report.folder}"
    talk(f"the sandbox {what}{files}", quiet=quiet)


@_app.command("status")
def status_command(
    inventory: InventoryOption = None, as_json: JsonOption = False, quiet: QuietOption = False
) -> None:
    """Show the sandbox hosts. Exit code 1 if the sandbox is down or not sound."""
    from orchestrator.errors import NegativeAnswerError
    from orchestrator.sandbox import status

    report = status(open_inventory(inventory))
    sound = report.state is not None and not report.problems
    if as_json:
        emit_json(_document("status", report.state, problems=report.problems, folder=str(report.folder)))
        if not sound:
            raise typer.Exit(NegativeAnswerError.exit_code)
        return
    if report.state is not None:
        _print_hosts(report.state, [])
    if not sound:
        what = "is down" if report.state is None else "is not sound"
        problems = "".join(f"\n  {problem}" for problem in report.problems)
        raise NegativeAnswerError(f"the sandbox {what}{problems}", "run `orch sandbox up`")
    talk("the sandbox is up", quiet=quiet)


def _document(what: str, state: SandboxState | None, **more: Any) -> dict[str, Any]:
    hosts = {} if state is None else state.hosts
    return {
        "schema": f"orch/sandbox-{what}/1",
        "running": state is not None,
        "pid": state.pid if state else None,
        "hosts": {
            name: {
                "address": "127.0.0.1",
                "port": host.port,
                "user": host.user,
                "home": str(host.home),
                "fingerprint": host.fingerprint,
                "known_hosts": str(host.known_hosts),
                "identity_file": str(host.identity),
                "python": host.python,
            }
            for name, host in hosts.items()
        },
        **more,
    }


def _print_hosts(state: SandboxState, seeds: list[SeedResult]) -> None:
    from orchestrator.text import human_bytes

    for name, host in state.hosts.items():
        typer.echo(f"{name}  127.0.0.1:{host.port}  {host.fingerprint}  {host.home}")
        for seed in seeds:
            if seed.host == name:
                typer.echo(f"  {seed.path}  {seed.action} ({seed.files} files, {human_bytes(seed.bytes)})")
