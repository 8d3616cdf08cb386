"""`orch hosts ls|trust|check`: the machines of the inventory, their keys, and whether they answer (`gpus`: see there)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.common import (
    InventoryOption,
    JsonOption,
    emit_json,
    open_inventory,
    talk,
)
from orchestrator.cli.gpus import gpus_command
from orchestrator.cli.many import (
    AtOnce,
    Failed,
    HostsArgument,
    Limit,
    exit_code,
    failed_before,
    limited,
    note_failed,
    say_summary,
)

if TYPE_CHECKING:
    from orchestrator.hosts import Offer
    from orchestrator.hosts.check import Finding
    from orchestrator.inventory import HostEntry

__all__ = ["register"]

_app = typer.Typer(no_args_is_help=True, help="The machines of the inventory.")
_app.command("gpus", short_help="Who has which GPU, and who waits.")(gpus_command)


def register(app: typer.Typer) -> None:
    """Adds the command group to `orch`."""
    app.add_typer(_app, name="hosts")


@_app.command("ls")
def ls_command(inventory: InventoryOption = None, as_json: JsonOption = False) -> None:
    """List the hosts. Opens no connection."""
    hosts = list(open_inventory(inventory).hosts.values())
    if as_json:
        emit_json({"schema": "orch/hosts/1", "hosts": [_host_record(host) for host in hosts]})
        return
    rows = [("HOST", "ROLES", "ADDRESS", "GATEWAY", "WORKDIR", "PYTHON")]
    rows += [
        (h.name, ",".join(h.roles) or "-", _address(h), h.gateway or "-", h.workdir, h.python) for h in hosts
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(map(str.ljust, row, widths)).rstrip())


@_app.command("trust", short_help="Show a host's key and record it.")
def trust_command(
    name: Annotated[str, typer.Argument(metavar="HOST", help="The host whose key to record.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Record without asking.")] = False,
    inventory: InventoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch a host's key (and its gateways'), show the fingerprint, and record it in known_hosts."""
    from orchestrator.errors import UsageError
    from orchestrator.hosts import trust

    def confirm(offer: Offer) -> bool:
        talk(f"{offer.host} ({offer.address}) shows {offer.key}; it would be recorded in {offer.file}")
        if yes:
            return True
        if not sys.stdin.isatty():
            raise UsageError(
                f"{offer.host} ({offer.address}) shows {offer.key}; nobody is here to compare it",
                f"compare the fingerprint with the host's own, then `orch hosts trust {name} --yes`",
            )
        return typer.confirm("Is this the host's fingerprint?", default=False, err=True)

    hops = trust(open_inventory(inventory), name, confirm)
    if as_json:
        emit_json(
            {
                "schema": "orch/hosts-trust/1",
                "host": name,
                "keys": [
                    {
                        "host": hop.host,
                        "address": hop.address,
                        "key_type": hop.key.kind,
                        "fingerprint": hop.key.fingerprint,
                        "file": str(hop.file),
                        "recorded": hop.recorded,
                    }
                    for hop in hops
                ],
            }
        )
        return
    for hop in hops:
        what = "recorded in" if hop.recorded else "already in"
        typer.echo(f"{hop.host} ({hop.address})  {hop.key}  {what} {hop.file}")


@_app.command("check", short_help="Connect, and look at each host.")
def check_command(
    names: HostsArgument = None,
    failed: Failed = False,
    limit: Limit = None,
    at_once: AtOnce = 8,
    inventory: InventoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Connect to hosts (default: all) and look: interpreter and its version, free disk below the work folder."""
    from orchestrator.errors import UsageError
    from orchestrator.hosts.check import check_hosts

    book = open_inventory(inventory)
    if failed and names:
        raise UsageError("--failed and hosts by name do not go together", "give one of the two")
    again = failed_before(book, "hosts check") if failed else names or list(book.hosts)
    for name in again:
        book.host(name)  # a name that is not there is said before anything is opened
    chosen = limited(book, again, limit)
    if not chosen:
        talk("no host failed at the last check")
    found: dict[str, Finding] = {}
    for finding in check_hosts(book, chosen, at_once=at_once):
        found[finding.host] = finding
        if not as_json:
            _print_finding(finding)
    bad = [name for name in chosen if found[name].error]
    note_failed(book, "hosts check", bad, tried=chosen)
    if as_json:
        hosts = [found[name].to_json() for name in chosen]
        emit_json({"schema": "orch/hosts-check/1", "hosts": hosts})
    say_summary("hosts check", bad, len(chosen), quiet=as_json)
    raise typer.Exit(exit_code({name: found[name].exit_code for name in chosen}))


def _print_finding(finding: Finding) -> None:
    from orchestrator.text import human_bytes, printable

    if finding.error:
        typer.echo(f"{finding.host}  FAILED  {printable(finding.error)}")
        talk(f"  next: {printable(finding.hint)}")
        return
    free = human_bytes(finding.free_bytes)
    typer.echo(
        f"{finding.host}  ok  Python {finding.python_version} ({printable(finding.executable)})  "
        f"{free} free at {printable(finding.folder)}  {finding.seconds:.2f} s"
    )


def _host_record(host: HostEntry) -> dict[str, Any]:
    record = host.plain()
    record["env"] = sorted(record["env"])  # names only: a value may be a secret
    return record


def _address(host: HostEntry) -> str:
    if host.sandbox is not None:
        return f"sandbox:{host.sandbox}"
    user = f"{host.user}@" if host.user else ""
    port = f":{host.port}" if host.port else ""
    return f"{user}{host.address}{port}"
