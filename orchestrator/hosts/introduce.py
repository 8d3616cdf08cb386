"""What another machine needs to reach a host as we do: where it is, whom to believe there, and a key for once.

What always holds: the host keys are those that are on record here, `@revoked` and `@cert-authority` lines too; a
host without any is not introduced.
"""

from __future__ import annotations

import base64
import getpass
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.hosts.agent import AgentLent
from orchestrator.hosts.known_hosts import KnownHosts
from orchestrator.hosts.openssh import OpensshHost
from orchestrator.hosts.ssh import SshHost

if TYPE_CHECKING:
    from orchestrator.hosts.base import Host

__all__ = ["Introduction", "OneOffKey", "introduce", "lend_agent", "make_key", "may_lend_agent"]


@dataclass(frozen=True)
class Introduction:
    """A host as another machine's ssh program is told of it; `known_hosts` are whole lines for `known_as`."""

    address: str
    port: int
    user: str
    known_as: str
    known_hosts: str


@dataclass(frozen=True)
class OneOffKey:
    """A key pair that was made just now: the private half as OpenSSH's file, the public one as its line."""

    private: str
    public: str


def introduce(host: Host) -> Introduction | None:
    """Returns how to reach a host, or None if it is not behind SSH or no key of it is on record."""
    if not isinstance(host, (SshHost, OpensshHost)):
        return None
    endpoint = host.endpoint
    name = endpoint.known_as
    if name.startswith("["):
        name = name[1:].rpartition("]:")[0]
    book = KnownHosts(endpoint.known_hosts)
    entries = book.entries(endpoint.known_as) or book.entries(name)
    lines = [
        " ".join(
            filter(None, (entry.marker, name, entry.key.kind, base64.b64encode(entry.key.blob).decode()))
        )
        for entry in entries
    ]
    if not any(entry.marker != "@revoked" for entry in entries):
        return None
    return Introduction(
        endpoint.address, endpoint.port, endpoint.user or getpass.getuser(), name, "\n".join(lines) + "\n"
    )


def make_key() -> OneOffKey:
    """Makes an ed25519 key pair, which is stored nowhere."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return OneOffKey(private.decode(), public.decode())


def may_lend_agent(host: Host) -> bool:
    """Says whether the inventory, or else ssh's configuration, lets the user's agent be lent to a host."""
    return isinstance(host, (SshHost, OpensshHost)) and host.endpoint.forward_agent


def lend_agent(host: Host) -> Host | None:
    """Returns the same host, whose streamed programs can use the user's agent; None if it cannot be lent."""
    return AgentLent(host) if isinstance(host, SshHost) else None
