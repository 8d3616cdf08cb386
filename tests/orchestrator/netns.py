"""Hosts with network namespaces of their own, joined by wires that can be slow and can be cut.

Needs root on Linux. A lab's namespaces have names of their own and nothing of the default one is touched.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.hosts.endpoint import Endpoint
from tests.orchestrator.ssh_servers import openssh_server
from tests.orchestrator.wire import enter

__all__ = ["Lab", "Wire", "lab"]


class Wire:
    """A wire that is up. `interface` is what both of its ends are called, `pid` the process that carries it."""

    def __init__(self, process: subprocess.Popen[bytes], interface: str) -> None:
        self._process, self.interface, self.pid = process, interface, process.pid

    def cut(self) -> None:
        """From now on nothing passes, and nobody is told."""
        self._process.send_signal(signal.SIGUSR1)

    def heal(self) -> None:
        """What is sent from now on passes again."""
        self._process.send_signal(signal.SIGUSR2)


class Lab:
    """Namespaces, the first of which (`desk`) is where the client sits."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._tag = f"orch-{uuid.uuid4().hex[:6]}"
        self._nets = itertools.count(1)
        self._addresses: dict[tuple[str, str], str] = {}
        self._known: set[str] = set()
        self.add("desk")

    def namespace(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def add(self, name: str) -> None:
        """Makes a namespace."""
        space = self.namespace(name)
        subprocess.run(["ip", "netns", "add", space], check=True)
        self._stack.callback(subprocess.run, ["ip", "netns", "del", space], check=False)
        subprocess.run(["ip", "-n", space, "link", "set", "lo", "up"], check=True)
        self._known.add(name)

    def address(self, seen_from: str, name: str) -> str:
        """The address of a namespace at the end of the wire from another one."""
        return self._addresses[seen_from, name]

    def pair(self, a: str, b: str) -> None:
        """Joins two namespaces by the kernel's own pair of interfaces: no delay, no cut, nothing of ours between."""
        number, ends = self._join(a, b)
        first, second = f"pair{number}a", f"pair{number}b"
        ip = ["ip", "link", "add", first, "netns", self.namespace(a), "type", "veth"]
        subprocess.run([*ip, "peer", "name", second, "netns", self.namespace(b)], check=True)
        for name, interface, end in ((a, first, ends[0]), (b, second, ends[1])):
            for words in (["addr", "add", f"{end}/24", "dev", interface], ["link", "set", interface, "up"]):
                subprocess.run(["ip", "-n", self.namespace(name), *words], check=True)

    def _join(self, a: str, b: str) -> tuple[int, list[str]]:
        for name in (a, b):
            if name not in self._known:
                self.add(name)
        number = next(self._nets)
        ends = [f"10.99.{number}.1", f"10.99.{number}.2"]
        self._addresses[a, b], self._addresses[b, a] = ends[1], ends[0]
        return number, ends

    def wire(self, a: str, b: str, delay_ms: float = 0, mbit: float = 0) -> Wire:
        """Joins two namespaces; `mbit` (0: no limit) is how much passes in a second, each way."""
        number, ends = self._join(a, b)
        process = subprocess.Popen(
            [
                sys.executable,
                Path(__file__).with_name("wire.py"),
                f"wire{number}",
                self.namespace(a),
                f"{ends[0]}/24",
                self.namespace(b),
                f"{ends[1]}/24",
                str(delay_ms),
                str(mbit),
            ],
            stdout=subprocess.PIPE,
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        assert process.stdout is not None
        self._stack.callback(process.stdout.close)
        assert process.stdout.readline() == b"up\n"
        return Wire(process, f"wire{number}")

    def serve(self, name: str, seen_from: str = "desk", settings: str = "") -> Endpoint:
        """Starts sshd in a namespace and returns the way to it from another one that a wire leads to."""
        folder = self._folder / name
        folder.mkdir()
        address = self._addresses[seen_from, name]
        return self._stack.enter_context(
            openssh_server(folder, name=name, address=address, settings=settings, netns=self.namespace(name))
        )

    @contextlib.contextmanager
    def at(self, name: str = "desk") -> Iterator[None]:
        """Puts the current thread, and what it starts, into a namespace."""
        home = f"/proc/self/task/{threading.get_native_id()}/ns/net"
        back = os.open(home, os.O_RDONLY)
        try:
            enter(f"/run/netns/{self.namespace(name)}")
            yield
        finally:
            enter(f"/proc/self/fd/{back}")
            os.close(back)


@contextlib.contextmanager
def lab(folder: Path) -> Iterator[Lab]:
    """Makes a lab and takes it down again."""
    if os.geteuid() != 0 or not Path("/dev/net/tun").exists() or not shutil.which("ip"):
        pytest.skip("network namespaces need root, iproute2 and /dev/net/tun")
    with contextlib.ExitStack() as stack:
        yield Lab(folder, stack)
