"""From a name in the inventory to a host that runs programs, and to a host key on record.

What always holds: `open_host` opens no connection and does not import fabric; the first program run does.
`trust` records a key only after `confirm` said yes, and never one that contradicts the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.errors import LinkError
from orchestrator.hosts.endpoint import resolve_endpoint, resolve_entry
from orchestrator.hosts.gateways import SharedGateways
from orchestrator.hosts.openssh import OpensshHost
from orchestrator.hosts.quick import QuickHost, can_be_quick

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from orchestrator.hosts.endpoint import Endpoint
    from orchestrator.hosts.known_hosts import HostKey
    from orchestrator.hosts.ssh import SshHost
    from orchestrator.inventory import Inventory

__all__ = ["Offer", "SharedGateways", "Trusted", "is_quick", "open_host", "resolve_entry", "trust"]


@dataclass(frozen=True)
class Offer:
    """A key that a host shows and that is not on record: what a person is asked about."""

    host: str
    address: str
    key: HostKey
    file: Path


@dataclass(frozen=True)
class Trusted:
    """A hop's key that is on record: `recorded` says whether it was put there just now."""

    host: str
    address: str
    key: HostKey
    file: Path
    recorded: bool


def open_host(
    inventory: Inventory, name: str, gateways: SharedGateways | None = None, *, quick: bool = False
) -> SshHost | OpensshHost | QuickHost:
    """Returns a host of the inventory, not yet connected, over the transport that its entry names.

    With `gateways` it shares its gateways' sessions with other hosts, and does not close them. `quick` is for a
    command that has little to say to the host: where the entry leaves the transport open, the ssh program may carry it.

    Raises:
        ConfigError: there is no such host.
        LinkError: it is a sandbox host and the sandbox is down.
    """
    endpoint = resolve_endpoint(inventory, name)
    if inventory.host(name).transport == "openssh":
        return OpensshHost(endpoint)
    if quick and is_quick(inventory, endpoint):
        return QuickHost(endpoint)
    from orchestrator.hosts.ssh import SshHost

    return SshHost(endpoint, gateways)


def is_quick(inventory: Inventory, endpoint: Endpoint) -> bool:
    """Says whether a host may be reached by the ssh program although its entry does not ask for it."""
    return inventory.host(endpoint.name).transport == "auto" and can_be_quick(endpoint)


def trust(inventory: Inventory, name: str, confirm: Callable[[Offer], bool]) -> list[Trusted]:
    """Puts on record the keys of a host and of every hop before it, outermost first.

    Args:
        inventory: where the host is named.
        name: the host.
        confirm: asked once for each key that is not on record.

    Raises:
        LinkError: a hop cannot be reached, its key contradicts the record, or `confirm` said no.
    """
    return [_trust_hop(hop, confirm) for hop in resolve_endpoint(inventory, name).hops()]


def _trust_hop(hop: Endpoint, confirm: Callable[[Offer], bool]) -> Trusted:
    from orchestrator.hosts.known_hosts import record_key
    from orchestrator.hosts.ssh import SshHost
    from orchestrator.hosts.verify import judge, refuse_changed_key, trust_command

    host = SshHost(hop)
    try:
        key = host.fetch_host_key()
    finally:
        host.close()
    verdict = judge(hop, key)
    file = hop.known_hosts[0]
    if verdict.state == "known":
        return Trusted(hop.name, hop.where, key, verdict.entries[0].file, recorded=False)
    if verdict.state != "unknown":
        refuse_changed_key(hop, key, verdict.state, verdict.entries)
    if not confirm(Offer(hop.name, hop.where, key, file)):
        raise LinkError(
            f"{hop.name} ({hop.where}): its host key {key} was not accepted",
            f"compare the fingerprint with the host's own, then `{trust_command(hop)}` again",
            host=hop.name,
            stage="host key",
        )
    return Trusted(
        hop.name,
        hop.where,
        key,
        file,
        recorded=record_key(file, hop.known_as, key, hashed=hop.hash_known_hosts),
    )
