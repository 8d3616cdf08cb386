"""The state file of the sandbox, `.orch/sandbox/state.json` beside the inventory: where its hosts listen.

What always holds: the server of a sandbox that is up holds a lock on `server.lock` for as long as it lives
(the kernel frees it at its death), so a state file without that lock is the leftover of a dead one.
The sandbox writes these files; whoever opens a connection only reads them.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import LinkError
from remote_payload.durable import ProtocolError, read_json

__all__ = [
    "SCHEMA",
    "SandboxHost",
    "SandboxState",
    "is_running",
    "read_state",
    "sandbox_folder",
    "sandbox_host",
]

SCHEMA = "orch/sandbox/1"


@dataclass(frozen=True)
class SandboxHost:
    """One host of the sandbox, as long as its server lives."""

    name: str
    port: int
    user: str
    home: Path
    fingerprint: str
    known_hosts: Path
    identity: Path
    python: str


@dataclass(frozen=True)
class SandboxState:
    """The sandbox's server process and its hosts."""

    pid: int
    started: float
    python: str
    hosts: dict[str, SandboxHost]


def sandbox_folder(folder: Path) -> Path:
    """Returns where the sandbox of an inventory's folder keeps its files."""
    return folder / ".orch" / "sandbox"


def is_running(folder: Path) -> bool:
    """Says whether the server of the sandbox in `folder` (a `sandbox_folder`) is alive."""
    try:
        descriptor = os.open(folder / "server.lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def read_state(folder: Path) -> SandboxState | None:
    """Returns the state in `folder` (a `sandbox_folder`); None if there is none or it cannot be one."""
    with suppress(FileNotFoundError, ProtocolError, KeyError, TypeError, ValueError):
        record: Any = read_json(folder / "state.json")
        if record["schema"] != SCHEMA:
            return None
        python = str(record["python"])
        hosts = {
            name: SandboxHost(
                name=name,
                port=int(host["port"]),
                user=str(host["user"]),
                home=Path(host["home"]),
                fingerprint=str(host["fingerprint"]),
                known_hosts=Path(host["known_hosts"]),
                identity=Path(host["identity"]),
                python=python,
            )
            for name, host in record["hosts"].items()
        }
        return SandboxState(int(record["pid"]), float(record["started"]), python, hosts)
    return None


def sandbox_host(folder: Path, name: str, known_as: str) -> SandboxHost:
    """Returns a host of the sandbox that belongs to an inventory's folder; `known_as` is its name there.

    Raises:
        LinkError: the sandbox is down, or was started before this host was in the inventory.
    """
    place = sandbox_folder(folder)
    state = read_state(place) if is_running(place) else None
    if state is None:
        raise LinkError(
            f"{known_as}: the sandbox is down (no server for {place})",
            "run `orch sandbox up`",
            host=known_as,
            stage="sandbox",
        )
    if name not in state.hosts:
        running = ", ".join(sorted(state.hosts)) or "none"
        raise LinkError(
            f"{known_as}: the running sandbox does not have this host (it has: {running})",
            "run `orch sandbox up` again: it starts what the inventory has gained",
            host=known_as,
            stage="sandbox",
        )
    return state.hosts[name]
