"""The sandbox's server: one process, one SSH listener per host, each with its own key and home folder.

What always holds: it listens on 127.0.0.1 only and takes one user with one key. It holds `server.lock` for as
long as it lives. `state.json` and `known_hosts` are complete before it reports that it is ready, and if
nobody hears the report it ends. Commands get an environment of their own, nothing of the caller's. A client
that goes away leaves its command running, as sshd does without a terminal.
"""

from __future__ import annotations

import asyncio
import fcntl
import getpass
import json
import logging
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncssh

from orchestrator.hosts.known_hosts import host_pattern
from orchestrator.hosts.sandbox_state import SCHEMA
from orchestrator.sandbox.pump import pump
from remote_payload.durable import ProtocolError, read_json, write_atomic, write_json

if TYPE_CHECKING:
    from collections.abc import Sequence

ADDRESS = "127.0.0.1"
_MAX_COMMANDS = 512  # each running command occupies one waiting thread
_BINARIES = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/opt/homebrew/bin",
)


def main(argv: Sequence[str]) -> int:
    """Runs the server: `python -m orchestrator.sandbox.server FOLDER HOST…`; stdout reports, stderr logs."""
    folder, names = Path(argv[0]), list(argv[1:])
    if os.fork() != 0:
        os._exit(0)  # the starter reaps this one; the server belongs to init
    os.setsid()
    os.umask(0o077)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    lock = _take_lock(folder)
    try:
        asyncio.run(_serve(folder, names))
    finally:
        os.close(lock)
    return 0


def _take_lock(folder: Path) -> int:
    descriptor = os.open(folder / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + 5
    while True:  # a reader that looks whether the lock is held has it for a moment
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise SystemExit(f"another server holds {folder / 'server.lock'}") from None
            time.sleep(0.02)
    os.truncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor


async def _serve(folder: Path, names: list[str]) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_MAX_COMMANDS, thread_name_prefix="wait"))
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    user_key = _key(folder / "id_ed25519", "orch sandbox")
    servers = [_Sandbox(folder, name, user_key) for name in names]
    for server in servers:
        await server.listen(_last_ports(folder).get(server.name, 0))
    _write_state(folder, servers)
    _report_ready(folder)
    await stop.wait()
    for server in servers:
        server.close()
    logging.shutdown()
    os._exit(0)  # commands that still run are left as they are, and so are the threads that wait for them


def _key(path: Path, comment: str) -> asyncssh.SSHKey:
    """Returns the key of a file, making it (mode 0600) if it is not there: keys outlive the server."""
    if path.exists():
        return asyncssh.read_private_key(path)
    key = asyncssh.generate_private_key("ssh-ed25519", comment=comment)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, key.export_private_key("openssh"))
    write_atomic(path.with_name(path.name + ".pub"), key.export_public_key("openssh"))
    return key


def _last_ports(folder: Path) -> dict[str, int]:
    """Returns the ports of the last server: a client that waits for its host looks there."""
    try:
        record = read_json(folder / "ports.json")
        return {str(name): int(port) for name, port in record.items()}
    except (FileNotFoundError, ProtocolError, AttributeError, TypeError, ValueError):
        return {}  # the first server here, or a file that is not ours: any port will do


def _write_state(folder: Path, servers: list[_Sandbox]) -> None:
    known = "".join(f"{host_pattern(ADDRESS, s.port)} {s.public_key}\n" for s in servers)
    write_atomic(folder / "known_hosts", known.encode())
    hosts = {
        server.name: {
            "port": server.port,
            "user": getpass.getuser(),
            "home": str(server.home),
            "fingerprint": server.fingerprint,
            "known_hosts": str(folder / "known_hosts"),
            "identity": str(folder / "id_ed25519"),
        }
        for server in servers
    }
    started = {"pid": os.getpid(), "started": time.time(), "python": sys.executable}
    write_json(folder / "ports.json", {server.name: server.port for server in servers})
    write_json(folder / "state.json", {"schema": SCHEMA, **started, "hosts": hosts})


def _report_ready(folder: Path) -> None:
    """Tells the starter, then lets go of its pipe. A starter that is gone means: do not stay."""
    try:
        os.write(1, b"ready\n")
    except BrokenPipeError:
        (folder / "state.json").unlink(missing_ok=True)
        raise SystemExit("the starter is gone; the server ends") from None
    os.dup2(2, 1)


class _Sandbox:
    """One host: its key, its home folder, its listener."""

    def __init__(self, folder: Path, name: str, user_key: asyncssh.SSHKey) -> None:
        self.name = name
        self.home = folder / "hosts" / name
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.user_key = user_key
        self.user = getpass.getuser()
        self.connections = 0
        self._key = _key(folder / "keys" / name, f"orch sandbox host {name}")
        self._log = folder / "exec.log"
        self._acceptor: asyncssh.SSHAcceptor | None = None
        self.port = 0

    @property
    def public_key(self) -> str:
        kind, blob = self._key.export_public_key("openssh").decode().split()[:2]
        return f"{kind} {blob}"

    @property
    def fingerprint(self) -> str:
        return str(self._key.get_fingerprint())

    async def listen(self, port: int) -> None:
        """Starts to listen on a port, or on a free one if that is taken or 0."""
        try:
            self._acceptor = await self._listen(port)
        except OSError:
            self._acceptor = await self._listen(0)
        self.port = self._acceptor.get_port()

    async def _listen(self, port: int) -> asyncssh.SSHAcceptor:
        return await asyncssh.listen(
            ADDRESS,
            port,
            server_factory=lambda: _Login(self),
            server_host_keys=[self._key],
            process_factory=self._run,
            sftp_factory=lambda channel: _HomeSftp(channel, self.home),
            encoding=None,
            agent_forwarding=False,
            x11_forwarding=False,
            config=None,
        )

    def close(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()

    async def _run(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        command = process.command
        self._note(process, command)
        shell = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"
        try:
            child = subprocess.Popen(
                [shell, *(["-c", command] if command is not None else ["-s"])],
                cwd=self.home,
                env=self._environment(shell),
                start_new_session=True,
                umask=0o022,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            process.stderr.write(f"{self.name}: cannot start {shell} in {self.home}: {error}\n".encode())
            process.exit(126)
            return
        code = await pump(process, child)
        if code < 0:
            process.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))
        else:
            process.exit(code)

    def _environment(self, shell: str) -> dict[str, str]:
        return {
            "HOME": str(self.home),
            "LANG": "en_US.UTF-8" if sys.platform == "darwin" else "C.UTF-8",
            "LOGNAME": self.user,
            "PATH": ":".join(path for path in _BINARIES if Path(path).is_dir()),
            "SHELL": shell,
            "USER": self.user,
        }

    def _note(self, process: asyncssh.SSHServerProcess[bytes], command: str | None) -> None:
        """Adds a line to exec.log: one per exec request, so that round trips can be counted."""
        login: Any = process.channel.get_connection().get_owner()
        line = {
            "host": self.name,
            "time": time.time(),
            "connection": login.connection_id,
            "command": (command or "")[:200],
        }
        with self._log.open("ab") as stream:
            stream.write(json.dumps(line).encode() + b"\n")


class _Login(asyncssh.SSHServer):
    """Who may come in (one user, one key) and where they may be forwarded (loopback)."""

    def __init__(self, sandbox: _Sandbox) -> None:
        self._sandbox = sandbox
        sandbox.connections += 1
        self.connection_id = f"{sandbox.name}-{os.getpid()}-{sandbox.connections}"

    def begin_auth(self, username: str) -> bool:  # noqa: ARG002 - asyncssh calls it
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username == self._sandbox.user and key.public_data == self._sandbox.user_key.public_data

    def connection_requested(self, dest_host: str, *_: Any) -> bool:
        return dest_host in (ADDRESS, "localhost", "::1")


class _HomeSftp(asyncssh.SFTPServer):
    """SFTP as sshd offers it: the whole file system, relative paths from the home folder."""

    def __init__(self, channel: asyncssh.SSHServerChannel[bytes], home: Path) -> None:
        super().__init__(channel)
        self._home = os.fsencode(home)

    def map_path(self, path: bytes) -> bytes:
        return os.path.join(self._home, path)  # noqa: PTH118 - bytes in, bytes out


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
