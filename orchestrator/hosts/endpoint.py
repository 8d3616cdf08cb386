"""Where a host really is: the inventory's entry, the sandbox's state and ssh's own configuration made one.

What always holds: an Endpoint is complete, connecting needs no other configuration. What the inventory says
wins over ssh's configuration (`sshconfig`); every hop on the way is an Endpoint of its own, with its own
known_hosts files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError
from orchestrator.hosts.known_hosts import host_pattern
from orchestrator.hosts.sandbox_state import sandbox_host
from orchestrator.hosts.sshconfig import DEFAULT_IDENTITIES, resolve_alias
from orchestrator.inventory.interpreter import Interpreter, environment_folder

if TYPE_CHECKING:
    from orchestrator.hosts.sshconfig import Alias
    from orchestrator.inventory import HostEntry, Inventory

__all__ = ["Endpoint", "resolve_endpoint", "resolve_entry"]

_MOST_HOPS = 8
_SYSTEM_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")


@dataclass(frozen=True)
class Endpoint:
    """One hop: address, identity, and whom to believe.

    `name` is the host's name in the inventory (for a ProxyJump hop, its address); `trust_name` is the name
    for `orch hosts trust`. `known_hosts[0]` is the file that new keys are recorded in (hashed, if so asked for).
    Keys to log in with: the files that were named (`identity_files`), the agent's, and ssh's usual files; with
    `identities_only` of the agent's only those that have such a file, with `only_identity` only those files.
    `forward_agent` says whether the user's agent may be lent to it; `ciphers` are those that may be used, if known. `alias` is what a person types after `ssh`; None if ssh's configuration says nothing about this hop.
    """

    name: str
    trust_name: str
    address: str
    port: int
    user: str | None
    identity_files: tuple[Path, ...]
    known_hosts: tuple[Path, ...]
    known_as: str
    gateway: Endpoint | None
    proxy_command: str | None
    connect_timeout: float
    only_identity: bool = False
    sandbox: bool = False
    usual_identities: tuple[Path, ...] = ()
    certificate_files: tuple[Path, ...] = ()
    identities_only: bool = False
    identity_agent: str | None = None
    hash_known_hosts: bool = False
    alias: str | None = None
    control_path: str | None = None
    forward_agent: bool = False
    ciphers: str | None = None

    @property
    def where(self) -> str:
        """The address as shown in messages."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"

    def hops(self) -> list[Endpoint]:
        """Returns the way to the host, outermost hop first, the host itself last."""
        return [*(self.gateway.hops() if self.gateway else []), self]


def resolve_entry(inventory: Inventory, name: str) -> HostEntry:
    """Returns a host's entry; one that names no interpreter gets that of the environment in its work folder.

    Where there is no environment it is the usual one, or that of the sandbox.
    """
    entry = inventory.host(name)
    if "python" in entry.written:
        return entry
    usual = entry.python
    if entry.sandbox is not None:
        usual = sandbox_host(inventory.folder, entry.sandbox, entry.name).python
    return replace(entry, python=Interpreter(usual, environment_folder(entry.workdir)))


def resolve_endpoint(inventory: Inventory, name: str) -> Endpoint:
    """Returns the way to a host.

    Raises:
        ConfigError: no such host, or ssh's configuration cannot be read.
        LinkError: it is a sandbox host and the sandbox is down.
    """
    entry = inventory.host(name)
    gateway = resolve_endpoint(inventory, entry.gateway) if entry.gateway else None
    if (
        entry.gateway
        and entry.transport != "openssh"
        and inventory.host(entry.gateway).transport == "openssh"
    ):
        raise ConfigError(
            f"{inventory.path}: hosts.{name}: its gateway {entry.gateway} has `transport: openssh`",
            f"give hosts.{name} `transport: openssh` too: only the ssh program can use the session that it shares",
        )
    if entry.sandbox is not None:
        return _sandbox_endpoint(inventory, entry, gateway)
    typed = entry.address or entry.name
    alias = resolve_alias(typed, entry.user, entry.port)
    if gateway is None and alias.proxy_jump:
        gateway = _jump_hops(alias.proxy_jump, entry, (typed,))
    recorded = (inventory.resolve(entry.known_hosts),) if entry.known_hosts else ()
    identity = _own_identity(inventory, entry)
    return _aliased_endpoint(alias, typed, entry, entry.name, gateway, identity, recorded)


def _aliased_endpoint(
    alias: Alias,
    typed: str,
    entry: HostEntry,
    name: str,
    gateway: Endpoint | None,
    identity: tuple[Path, ...] = (),
    recorded: tuple[Path, ...] = (),
) -> Endpoint:
    """Returns the hop that an alias stands for; `identity` and `recorded` are what the inventory says."""
    port = alias.port or 22
    usual = {Path(text).expanduser() for text in DEFAULT_IDENTITIES}
    files = [path for path in alias.identity_files if path.is_file()]  # ssh too passes over the others
    return Endpoint(
        name=name,
        trust_name=entry.name,
        address=alias.hostname,
        port=port,
        user=alias.user,
        identity_files=identity or tuple(path for path in files if path not in usual),
        known_hosts=recorded or _places(alias.known_hosts),
        known_as=alias.host_key_alias or host_pattern(alias.hostname, port),
        gateway=gateway,
        proxy_command=None if gateway else alias.proxy_command,
        connect_timeout=entry.connect_timeout,
        usual_identities=() if identity else tuple(path for path in files if path in usual),
        certificate_files=alias.certificate_files,
        identities_only=alias.identities_only,
        identity_agent=alias.identity_agent,
        hash_known_hosts=alias.hash_known_hosts,
        alias=typed,
        control_path=alias.control_path,
        ciphers=alias.ciphers,
        forward_agent=alias.forward_agent if entry.forward_agent is None else entry.forward_agent,
    )


def _sandbox_endpoint(inventory: Inventory, entry: HostEntry, gateway: Endpoint | None) -> Endpoint:
    state = sandbox_host(inventory.folder, entry.sandbox or entry.name, entry.name)
    return Endpoint(
        name=entry.name,
        trust_name=entry.name,
        address="127.0.0.1",
        port=state.port,
        user=state.user,
        identity_files=(state.identity,),
        known_hosts=(state.known_hosts,),
        known_as=host_pattern("127.0.0.1", state.port),
        gateway=gateway,
        proxy_command=None,
        connect_timeout=entry.connect_timeout,
        only_identity=True,
        sandbox=True,
        forward_agent=bool(entry.forward_agent),
    )


def _jump_hops(jumps: tuple[str, ...], entry: HostEntry, way: tuple[str, ...]) -> Endpoint:
    """Returns the last hop of a ProxyJump list, each hop reached through the one before it.

    The first hop is reached as its own configuration says, so it may have a ProxyJump too. `way` is how we came
    here, to see a circle.
    """
    hop: Endpoint | None = None
    for text in jumps:
        user, _, place = text.removeprefix("ssh://").rpartition("@")
        host, port = _split_port(place)
        alias = resolve_alias(host, user or None, port)
        if hop is None and alias.proxy_jump:
            if host in way or len(way) > _MOST_HOPS:
                raise ConfigError(
                    f"{entry.name}: ProxyJump in the ssh configuration leads in a circle: "
                    f"{' → '.join((*way, host))}",
                    f"exempt the jump host (`Host * !{host}`, or `ProxyJump none` for it) in ~/.ssh/config",
                )
            hop = _jump_hops(alias.proxy_jump, entry, (*way, host))
        hop = _aliased_endpoint(alias, host, entry, host, hop)
    if hop is None:
        raise ConfigError(
            f"{entry.name}: ProxyJump in the ssh configuration names no host", "correct ~/.ssh/config"
        )
    return hop


def _split_port(place: str) -> tuple[str, int | None]:
    host, colon, port = place.rpartition(":")
    if colon and port.isdigit() and (":" not in host or host.startswith("[")):
        return host.strip("[]"), int(port)
    return place.strip("[]"), None


def _own_identity(inventory: Inventory, entry: HostEntry) -> tuple[Path, ...]:
    if entry.identity_file is None:
        return ()
    path = inventory.resolve(entry.identity_file)
    if not path.is_file():
        raise ConfigError(
            f"{inventory.path}: hosts.{entry.name}.identity_file: there is no file {path}",
            "correct the path, or take the line out: ssh's own choice and the agent are used then",
        )
    return (path,)


def _places(known_hosts: tuple[Path, ...]) -> tuple[Path, ...]:
    """Files with keys on record. /dev/null, with which people switch the check off, is none: we never do."""
    usual = (Path("~/.ssh/known_hosts").expanduser(), _SYSTEM_KNOWN_HOSTS)
    return tuple(path for path in known_hosts if str(path) != "/dev/null") or usual
