"""Where a host really is: the inventory's entry, the sandbox's state and ssh's own configuration made one.

What always holds: an Endpoint is complete, connecting needs no other configuration. What the inventory says
wins over ~/.ssh/config; every hop on the way is an Endpoint of its own, with its own known_hosts files.
`resolve_alias` is the only place that reads ssh's configuration.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError
from orchestrator.hosts.known_hosts import host_pattern
from orchestrator.hosts.libraries import load_paramiko
from orchestrator.hosts.sandbox_state import sandbox_host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.inventory import HostEntry, Inventory

__all__ = ["Alias", "Endpoint", "resolve_alias", "resolve_endpoint", "resolve_entry"]

_SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
_SYSTEM_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")


@dataclass(frozen=True)
class Endpoint:
    """One hop: address, identity, and whom to believe.

    `name` is the host's name in the inventory (for a ProxyJump hop, its address); `trust_name` is the name
    for `orch hosts trust`. `known_hosts[0]` is the file that new keys are recorded in. With `only_identity`
    neither the agent nor ssh's default keys are tried.
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

    @property
    def where(self) -> str:
        """The address as shown in messages."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"

    def hops(self) -> list[Endpoint]:
        """Returns the way to the host, outermost hop first, the host itself last."""
        return [*(self.gateway.hops() if self.gateway else []), self]


@dataclass(frozen=True)
class Alias:
    """What ssh's configuration says about an address; empty where it says nothing."""

    hostname: str
    port: int | None = None
    user: str | None = None
    identity_files: tuple[str, ...] = ()
    known_hosts: tuple[str, ...] = ()
    host_key_alias: str | None = None
    proxy_jump: tuple[str, ...] = ()
    proxy_command: str | None = None


def resolve_entry(inventory: Inventory, name: str) -> HostEntry:
    """Returns a host's entry; for a sandbox host that names no interpreter, with the one of its sandbox."""
    entry = inventory.host(name)
    if entry.sandbox is None or "python" in entry.model_fields_set:
        return entry
    return entry.model_copy(
        update={"python": sandbox_host(inventory.folder, entry.sandbox, entry.name).python}
    )


def resolve_endpoint(inventory: Inventory, name: str) -> Endpoint:
    """Returns the way to a host.

    Raises:
        ConfigError: no such host, or ssh's configuration cannot be read.
        LinkError: it is a sandbox host and the sandbox is down.
    """
    entry = inventory.host(name)
    gateway = resolve_endpoint(inventory, entry.gateway) if entry.gateway else None
    if entry.sandbox is not None:
        return _sandbox_endpoint(inventory, entry, gateway)
    alias = resolve_alias(entry.address or entry.name)
    if gateway is None and alias.proxy_jump:
        gateway = _jump_hops(alias.proxy_jump, entry)
    port = entry.port or alias.port or 22
    identity = _own_identity(inventory, entry) or _existing(alias.identity_files)
    recorded = (entry.known_hosts,) if entry.known_hosts else alias.known_hosts
    return Endpoint(
        name=entry.name,
        trust_name=entry.name,
        address=alias.hostname,
        port=port,
        user=entry.user or alias.user,
        identity_files=identity,
        known_hosts=tuple(inventory.resolve(path) for path in recorded) or _usual_known_hosts(),
        known_as=alias.host_key_alias or host_pattern(alias.hostname, port),
        gateway=gateway,
        proxy_command=None if gateway else alias.proxy_command,
        connect_timeout=entry.connect_timeout,
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
    )


def _jump_hops(jumps: tuple[str, ...], entry: HostEntry) -> Endpoint:
    """Returns the last hop of a ProxyJump list, each hop reached through the one before it."""
    hop: Endpoint | None = None
    for text in jumps:
        user, _, place = text.removeprefix("ssh://").rpartition("@")
        host, port = _split_port(place)
        alias = resolve_alias(host)
        number = port or alias.port or 22
        hop = Endpoint(
            name=host,
            trust_name=entry.name,
            address=alias.hostname,
            port=number,
            user=user or alias.user,
            identity_files=_existing(alias.identity_files),
            known_hosts=tuple(Path(path).expanduser() for path in alias.known_hosts) or _usual_known_hosts(),
            known_as=alias.host_key_alias or host_pattern(alias.hostname, number),
            gateway=hop,
            proxy_command=alias.proxy_command if hop is None else None,
            connect_timeout=entry.connect_timeout,
        )
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


def _existing(paths: tuple[str, ...]) -> tuple[Path, ...]:
    """Key files that ssh's configuration names and that are there; ssh too passes over the others."""
    return tuple(path for path in (Path(text).expanduser() for text in paths) if path.is_file())


def _usual_known_hosts() -> tuple[Path, ...]:
    return Path("~/.ssh/known_hosts").expanduser(), _SYSTEM_KNOWN_HOSTS


def resolve_alias(address: str, files: tuple[Path, ...] | None = None) -> Alias:
    """Returns what the user's and the system's ssh configuration say about an address.

    Raises:
        ConfigError: a configuration file cannot be read or understood.
    """
    load_paramiko()
    from paramiko.config import SSHConfig

    config = SSHConfig()
    for path in (Path("~/.ssh/config").expanduser(), _SYSTEM_CONFIG) if files is None else files:
        try:
            with path.open(encoding="utf-8") as stream:
                config.parse(stream)
        except FileNotFoundError:
            continue
        except Exception as error:  # the parser raises whatever its expressions meet
            raise _bad_ssh_config(address, path, error) from error
    try:
        return _alias(config.lookup(address))
    except Exception as error:  # as above, for tokens and Match blocks
        raise _bad_ssh_config(address, Path("~/.ssh/config"), error) from error


def _bad_ssh_config(address: str, path: Path, error: Exception) -> ConfigError:
    return ConfigError(
        f"{address}: the ssh configuration {path} cannot be used: {type(error).__name__}: {error}",
        f"correct it (`ssh -G {address}` shows what OpenSSH makes of it)",
    )


def _alias(options: Mapping[str, object]) -> Alias:
    def words(key: str) -> tuple[str, ...]:
        value = options.get(key)
        items = value if isinstance(value, list) else str(value).split() if value else []
        return tuple(str(item) for item in items if str(item).lower() != "none")

    def word(key: str) -> str | None:
        value = options.get(key)
        return str(value) if value and str(value).lower() != "none" else None

    jumps = tuple(jump.strip() for jump in (word("proxyjump") or "").split(",") if jump.strip())
    port = word("port")
    return Alias(
        hostname=str(options["hostname"]),
        port=int(port) if port else None,
        user=word("user"),
        identity_files=words("identityfile"),
        known_hosts=words("userknownhostsfile"),
        host_key_alias=word("hostkeyalias"),
        proxy_jump=jumps,
        proxy_command=word("proxycommand"),
    )
