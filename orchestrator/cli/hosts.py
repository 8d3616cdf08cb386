"""`orch hosts ls|trust`: the machines of the inventory and their keys (`check`, `setup`, `gpus`: see there)."""

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
from orchestrator.cli.preflight import check_command
from orchestrator.cli.setup import setup_command

if TYPE_CHECKING:
    from orchestrator.hosts import Offer
    from orchestrator.inventory import HostEntry

__all__ = ["register"]

_app = typer.Typer(no_args_is_help=True, help="The machines of the inventory.")
_app.command("check", short_help="Look at each host before it is relied on.")(check_command)
_app.command("setup", short_help="Make the environment that the payload needs on hosts.")(setup_command)
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
