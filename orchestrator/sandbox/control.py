"""Starts, finds and ends the sandbox's server.

What always holds: `up` returns only when every sandbox host of the inventory listens and its seeds are in
place, and may be repeated; if it fails, no server of its own is left. A server is known by the lock that it
holds, never by a process id alone. `down` ends the server and leaves all files (host keys and homes, so that
the next `up` finds them); only a purge removes them. One `up` or `down` works at a time in a folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError, HostFailedError
from orchestrator.hosts.known_hosts import KnownHosts, host_pattern
from orchestrator.hosts.sandbox_state import SandboxState, is_running, read_state, sandbox_folder
from orchestrator.sandbox.seeds import SeedResult, plant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from orchestrator.hosts.sandbox_state import SandboxHost
    from orchestrator.inventory import Inventory

__all__ = ["DownReport", "StatusReport", "UpReport", "down", "status", "up"]

_START_S = 30.0
_STOP_S = 10.0
_TURN_S = 120.0


@dataclass(frozen=True)
class UpReport:
    """What `up` found or did: `started` is False if the server was up and sound already."""

    folder: Path
    state: SandboxState
    started: bool
    seeds: list[SeedResult]


@dataclass(frozen=True)
class DownReport:
    """What `down` did: `was_running` tells whether there was a server to end."""

    folder: Path
    was_running: bool
    purged: bool


@dataclass(frozen=True)
class StatusReport:
    """The sandbox as it is: `state` is None when it is down; `problems` lists what is wrong when it is up."""

    folder: Path
    state: SandboxState | None
    problems: list[str]


def up(inventory: Inventory) -> UpReport:
    """Starts the sandbox's server if need be, and puts the seeds in place.

    Raises:
        ConfigError: the inventory has no sandbox host, a seed's source is not there, asyncssh is missing.
        HostFailedError: the server did not start.
    """
    names = _names(inventory)
    if importlib.util.find_spec("asyncssh") is None:
        raise ConfigError(
            "the sandbox's SSH server needs the package asyncssh, which is not installed",
            "run `pip install 'orch[sandbox]'`",
        )
    folder = sandbox_folder(inventory.folder)
    with _turn(folder):
        state = read_state(folder) if is_running(folder) else None
        started = state is None or bool(_problems(state, names))
        if started:
            _stop(folder)
            state = _start(folder, names)
        assert state is not None  # noqa: S101 - _start returns a state or raises
        seeds = [
            plant(name, state.hosts[name].home, there, inventory.resolve(here))
            for name in names
            for there, here in inventory.seeds.get(name, {}).items()
        ]
    return UpReport(folder, state, started, seeds)


def down(inventory: Inventory, *, purge: bool = False) -> DownReport:
    """Ends the sandbox's server; with `purge` also removes its keys, logs and the hosts' home folders."""
    folder = sandbox_folder(inventory.folder)
    if not folder.exists():
        return DownReport(folder, was_running=False, purged=False)
    with _turn(folder):
        was_running = _stop(folder)
        if purge:
            shutil.rmtree(folder)
    return DownReport(folder, was_running, purge)


def status(inventory: Inventory) -> StatusReport:
    """Looks at the sandbox without changing anything."""
    folder = sandbox_folder(inventory.folder)
    if not is_running(folder):
        return StatusReport(folder, None, [])
    state = read_state(folder)
    if state is None:
        return StatusReport(folder, None, ["a server runs but its state.json cannot be read"])
    return StatusReport(folder, state, _problems(state, _names(inventory)))


def _names(inventory: Inventory) -> list[str]:
    names = sorted({host.sandbox for host in inventory.hosts.values() if host.sandbox})
    if not names:
        raise ConfigError(
            f"{inventory.path}: no host of this inventory is a sandbox host",
            "add one under `hosts:`, as in `ct129: {sandbox: ct129, roles: [inference]}`",
        )
    return names


def _problems(state: SandboxState, names: list[str]) -> list[str]:
    """Returns what keeps a running server from serving these hosts."""
    problems = [f"{name}: not among the running hosts" for name in names if name not in state.hosts]
    if state.python != sys.executable:
        problems.append(f"it was started with another interpreter ({state.python})")
    for name in names:
        if name in state.hosts:
            problems.extend(f"{name}: {text}" for text in _host_problems(state.hosts[name]))
    return problems


def _host_problems(host: SandboxHost) -> Iterator[str]:
    if not host.identity.is_file():
        yield f"the key {host.identity} is gone"
    entries = KnownHosts([host.known_hosts]).entries(host_pattern("127.0.0.1", host.port))
    if [entry.key.fingerprint for entry in entries] != [host.fingerprint]:
        yield f"{host.known_hosts} does not hold its key"
    if not host.home.is_dir():
        yield f"the home folder {host.home} is gone"
    try:
        socket.create_connection(("127.0.0.1", host.port), timeout=2).close()
    except OSError as error:
        yield f"port {host.port} does not answer ({error.strerror or error})"


@contextlib.contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Waits until no other `up` or `down` works in this folder."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    ignore = folder.parent / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")  # private keys live below
    descriptor = os.open(folder.parent / "sandbox.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not _wait_for(lambda: _try_lock(descriptor), _TURN_S):
            raise HostFailedError(
                f"another `orch sandbox` command works in {folder} since more than {_TURN_S:g} s",
                "wait for it or end it, then try again",
            )
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _start(folder: Path, names: list[str]) -> SandboxState:
    root = str(Path(__file__).resolve().parents[2])
    inherited = os.environ.get("PYTHONPATH")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, inherited] if inherited else [root])}
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.sandbox.server", str(folder), *names],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    ready = _read_report(process)
    state = read_state(folder) if ready else None
    if state is None:
        _stop(folder)
        log_end = (folder / "server.log").read_bytes()[-1500:].decode("utf-8", "replace").strip()
        raise HostFailedError(
            f"the sandbox's server did not start within {_START_S:g} s; its log ends with:\n{log_end}",
            f"see {folder / 'server.log'}",
        )
    return state


def _read_report(process: subprocess.Popen[bytes]) -> bool:
    """Waits for the server's one line; end-of-file without it means that the server is dead."""
    import selectors

    assert process.stdout is not None  # noqa: S101 - it was opened as a pipe
    with process.stdout as pipe, selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        answered = bool(selector.select(_START_S))
        line = os.read(pipe.fileno(), 64) if answered else b""
    process.wait(timeout=_START_S)  # it forked the server and ended at once
    return line == b"ready\n"


def _stop(folder: Path) -> bool:
    """Ends the server that holds the lock, if there is one. Returns whether there was."""
    was_running = is_running(folder)
    for number in (signal.SIGTERM, signal.SIGKILL):
        pid = _holder(folder) if is_running(folder) else None
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            _wait_for(lambda: not is_running(folder), _STOP_S)
    if is_running(folder):
        raise HostFailedError(
            f"the sandbox's server in {folder} did not end",
            f"end the process named in {folder / 'server.lock'}, then try again",
        )
    (folder / "state.json").unlink(missing_ok=True)
    return was_running


def _holder(folder: Path) -> int | None:
    """Returns the process that holds the lock: it writes its id right after taking it."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int((folder / "server.lock").read_text())
    return None


def _wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
