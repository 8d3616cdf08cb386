"""Servers for the SSH tests: OpenSSH's sshd on loopback, a relay that can be cut, ports that misbehave."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from orchestrator.hosts.endpoint import Endpoint
from orchestrator.hosts.known_hosts import host_pattern

NEEDS_SSH = [
    pytest.mark.sshd,
    pytest.mark.skipif(
        shutil.which("ssh") is None,
        reason="OpenSSH's client is not installed (apt-get install openssh-client)",
    ),
]
"""Marks of a module that is about the ssh program."""

SSHD = shutil.which("sshd", path=f"/usr/sbin:/usr/local/sbin:{os.environ.get('PATH', '')}")


def make_key(path: Path, kind: str = "ed25519") -> str:
    """Makes a key pair and returns its public line."""
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", path], check=True)
    return path.with_name(path.name + ".pub").read_text()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextlib.contextmanager
def openssh_server(
    folder: Path,
    host_key_kinds: tuple[str, ...] = ("ed25519",),
    *,
    name: str = "real",
    address: str = "127.0.0.1",
    settings: str = "",
    netns: str = "",
    within: Sequence[str] = (),
    prepare: Callable[[Path], str] | None = None,
) -> Iterator[Endpoint]:
    """Runs OpenSSH's sshd as whoever runs the tests, with its own home folder, and yields the way to it.

    `settings` are further lines of its configuration; with `netns` it listens in that network namespace; `within` are words
    of a program that runs it.
    `prepare` gets the folder once its keys are there and returns further lines too.
    """
    if SSHD is None:
        pytest.skip("OpenSSH's sshd is not installed (apt-get install openssh-server)")
    home, port = folder / "home", 22 if netns else free_port()
    home.mkdir()
    known_as = host_pattern(address, port)
    public = [make_key(folder / f"host_{kind}", kind) for kind in host_key_kinds]
    (folder / "authorized_keys").write_text(make_key(folder / "user"))
    (folder / "known_hosts").write_text("".join(f"{known_as} {line}" for line in public))
    if prepare is not None:
        settings += "\n" + prepare(folder)
    (folder / "sshd_config").write_text(
        f"{settings}\nPort {port}\nListenAddress {address}\nPidFile none\nAuthorizedKeysFile {folder}/authorized_keys\n"
        "UsePAM no\nStrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nUseDNS no\n"
        f"Subsystem sftp internal-sftp\nSetEnv HOME={home}\n"
        + "".join(f"HostKey {folder}/host_{kind}\n" for kind in host_key_kinds)
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with (folder / "sshd.log").open("wb") as log:
        inside = [*within, *(["ip", "netns", "exec", netns] if netns else [])]
        server = subprocess.Popen([*inside, SSHD, "-D", "-e", "-f", folder / "sshd_config"], stderr=log)
    try:
        if netns:
            wait_for_word(folder / "sshd.log", "Server listening")
        else:
            wait_for_port(port)
        yield Endpoint(
            name=name,
            trust_name=name,
            address=address,
            port=port,
            user=getpass.getuser(),
            identity_files=(folder / "user",),
            known_hosts=(folder / "known_hosts",),
            known_as=known_as,
            gateway=None,
            proxy_command=None,
            connect_timeout=10,
            only_identity=True,
        )
    finally:
        server.terminate()
        server.wait(timeout=10)


@contextlib.contextmanager
def sshd_chain(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Runs the hosts outer, middle and inner, to be reached through one another.

    Yields:
        ssh's configuration for them, which allows what it can, and their lines for known_hosts.
    """
    with contextlib.ExitStack() as stack:
        blocks, lines = [], []
        for number, name in enumerate(("outer", "middle", "inner")):
            (folder / name).mkdir()
            found = stack.enter_context(openssh_server(folder / name, name=name))
            jump = f"  ProxyJump {('outer', 'middle')[number - 1]}\n" if number else ""
            blocks.append(
                f"Host {name}\n  HostName 127.0.0.1\n  Port {found.port}\n  User {found.user}\n{jump}"
                f"  IdentityFile {found.identity_files[0]}\n  StrictHostKeyChecking no\n"
            )
            lines.append(found.known_hosts[0].read_text())
        yield "".join(blocks), lines


def wait_for_port(port: int, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline, f"nothing listens on port {port}"
            time.sleep(0.02)
        else:
            return


def wait_for_word(file: Path, word: str, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while word not in file.read_text():
        assert time.monotonic() < deadline, f"{file} does not say {word!r}: {file.read_text()}"
        time.sleep(0.02)


class Relay:
    """Passes bytes between a port of its own and another one; it can fall silent, and it can be cut."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._open = threading.Event()
        self._open.set()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                other = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [client, other]
                for source, sink in ((client, other), (other, client)):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._open.wait()
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def silence(self) -> None:
        """From now on bytes are taken and not passed on: the black hole of a dead link."""
        self._open.clear()

    def cut(self) -> None:
        """Ends every connection that is open now."""
        self._open.set()
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()
        time.sleep(0.05)
        for end in self._sockets:
            end.close()
