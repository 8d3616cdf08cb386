"""A link that falls silent or never stands ends in time, by our own clock and with no help of the system's.

The constants are made small here; `test_link_cuts.py` has them as they are, on wires that are really cut.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import LinkError
from orchestrator.hosts import dial, login, session, watched
from orchestrator.hosts.endpoint import Endpoint, resolve_endpoint
from orchestrator.hosts.ssh import SshHost
from orchestrator.inventory import load_inventory
from tests.orchestrator.ssh_servers import Relay, free_port

DEAD_AFTER = 1.5


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "DEAD_AFTER_S", DEAD_AFTER)
    monkeypatch.setattr(watched, "KEEPALIVE_S", 0.5)


@pytest.fixture(scope="module")
def endpoint(sandbox_project: Path) -> Endpoint:
    return resolve_endpoint(load_inventory(sandbox_project / "inventory.yaml"), "ct129")


@pytest.fixture
def relay(endpoint: Endpoint) -> Iterator[Relay]:
    with closing(Relay(endpoint.port)) as between:
        yield between


def broken(action: Callable[[], object], within: float = DEAD_AFTER + 4) -> LinkError:
    """Runs what has to end in a LinkError in time, and returns that."""
    started = time.monotonic()
    with pytest.raises(LinkError) as caught:
        action()
    assert time.monotonic() - started < within
    return caught.value


@pytest.mark.parametrize("stdin", [b"", b"x" * (16 << 20)], ids=["idle", "sending"])
def test_a_silent_link_ends_long_before_the_programs_deadline(
    endpoint: Endpoint, relay: Relay, stdin: bytes
) -> None:
    with closing(SshHost(replace(endpoint, port=relay.port))) as host:
        host.run(["true"])
        relay.silence()
        error = broken(lambda: host.run(["sleep", "50"], stdin=stdin, timeout=60))
    assert f"no byte came for {DEAD_AFTER:.0f} s" in error.message
    assert "`sleep 50`" in error.message
    assert error.message.startswith("ct129 (127.0.0.1:")
    assert error.hint


def test_a_silent_link_ends_a_stream_that_has_begun(endpoint: Endpoint, relay: Relay) -> None:
    with closing(SshHost(replace(endpoint, port=relay.port))) as host:
        pieces = host.stream(["sh", "-c", "echo x; sleep 50"], timeout=60)
        assert next(pieces) == b"x\n"
        relay.silence()
        assert "no byte came" in broken(lambda: next(pieces)).message


def test_a_link_that_fell_silent_while_nobody_used_it_is_opened_anew(
    endpoint: Endpoint, relay: Relay
) -> None:
    with closing(SshHost(replace(endpoint, port=relay.port))) as host:
        host.run(["true"])
        relay.silence()
        time.sleep(DEAD_AFTER + 0.7)
        relay.cut()  # new connections pass again
        assert host.run(["printf", "back"]).stdout == b"back"
        assert host.connections == 2


def test_a_program_that_says_nothing_keeps_a_healthy_link(endpoint: Endpoint) -> None:
    with closing(SshHost(endpoint)) as host:
        assert host.run(["sleep", str(2 * DEAD_AFTER)], timeout=30).exit_code == 0
        assert host.connections == 1


def test_a_program_that_never_reads_keeps_a_healthy_link(endpoint: Endpoint) -> None:
    with closing(SshHost(endpoint)) as host:
        done = host.run(["sh", "-c", f"sleep {2 * DEAD_AFTER}; cat | wc -c"], stdin=b"x" * (8 << 20))
        assert done.stdout.strip() == str(8 << 20).encode()


def test_time_in_which_this_process_stood_still_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "_STOOD_STILL_S", 0.5)
    ours, theirs = socket.socketpair()
    with closing(theirs), closing(watched.WatchedSocket(ours, time.monotonic() + 1)) as sock:
        sock.settled()
        sock.settimeout(0.05)
        time.sleep(0.5 + DEAD_AFTER)  # nobody reads: as after Ctrl-Z, or a laptop asleep
        with pytest.raises(TimeoutError):
            sock.recv(1)
        started = time.monotonic()
        while True:
            try:
                sock.recv(1)
            except TimeoutError:
                continue
            except watched.SilentLinkError:
                break
        assert 0.5 * DEAD_AFTER < time.monotonic() - started < 2 * DEAD_AFTER


def test_the_whole_handshake_has_one_deadline_however_slowly_bytes_drip(endpoint: Endpoint) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            client, _ = server.accept()
            with client, pytest.raises(OSError):  # noqa: PT012 - it goes on until the client has gone
                while True:
                    client.sendall(b"x")
                    time.sleep(0.2)

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        slow = replace(endpoint, port=server.getsockname()[1], connect_timeout=1)
        with closing(SshHost(slow)) as host:
            error = broken(lambda: host.run(["true"]), within=4)
        thread.join(5)
    assert "no answer within 1 s" in error.message
    assert error.details["stage"] in ("banner", "key exchange")


def test_a_login_that_hangs_meets_the_hops_deadline(
    endpoint: Endpoint, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*arguments: Any) -> None:
        relay.silence()
        login.log_in(*arguments)

    monkeypatch.setattr(session, "log_in", silent)
    with closing(SshHost(replace(endpoint, port=relay.port, connect_timeout=2))) as host:
        error = broken(lambda: host.run(["true"]), within=6)
    assert error.details["stage"] == "login"
    assert "no answer within 2 s" in error.message


def test_a_name_that_is_looked_up_for_ever_meets_the_deadline(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: held.wait(20))
    try:
        with closing(SshHost(replace(endpoint, address="gpu7.lab", connect_timeout=1))) as host:
            error = broken(lambda: host.run(["true"]), within=3)
    finally:
        held.set()
    assert (error.details["stage"], error.details["host"]) == ("dns", "ct129")


def test_a_dead_address_of_a_name_leaves_time_for_the_next(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        place = full.getsockname()
        fillers = [socket.socket() for _ in range(4)]  # its queue is full: further connects hang
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(place)

        def two(*args: object, **more: object) -> object:
            (good,) = real("127.0.0.1", endpoint.port, type=socket.SOCK_STREAM)
            return [(*good[:4], place), good]

        monkeypatch.setattr(socket, "getaddrinfo", two)
        with closing(SshHost(replace(endpoint, connect_timeout=6))) as host:
            assert host.run(["printf", "here"]).stdout == b"here"
        for filler in fillers:
            filler.close()


# --------------------------------------------------------------------------- proxy commands


def proxied(endpoint: Endpoint, command: str, seconds: float = 10) -> Endpoint:
    return replace(endpoint, port=free_port(), proxy_command=command, connect_timeout=seconds)


def pipe_to(port: int) -> str:
    program = (
        "import socket, sys, threading, os\n"
        f"s = socket.create_connection(('127.0.0.1', {port}))\n"
        "def up():\n"
        "    while data := os.read(0, 65536): s.sendall(data)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while data := s.recv(65536): os.write(1, data)\n"
    )
    return shlex.join([sys.executable, "-c", program])


def test_a_proxy_command_is_run_by_a_shell_and_carries_the_session(endpoint: Endpoint) -> None:
    with closing(SshHost(proxied(endpoint, f"{pipe_to(endpoint.port)} 2>/dev/null"))) as host:
        data = os.urandom(3 << 20)
        assert host.run(["cat"], stdin=data).stdout == data


def test_a_proxy_command_that_dies_is_quoted(endpoint: Endpoint) -> None:
    with closing(SshHost(proxied(endpoint, "sh -c 'echo no route to there >&2; exit 3'"))) as host:
        error = broken(lambda: host.run(["true"]), within=8)
    assert "no route to there" in error.message


def test_a_proxy_command_that_says_nothing_meets_the_deadline_and_is_ended(endpoint: Endpoint) -> None:
    with closing(SshHost(proxied(endpoint, "sleep 73.25", seconds=1))) as host:
        assert "no answer within 1 s" in broken(lambda: host.run(["true"]), within=4).message
    gone_within(5, "sleep", "73.25")


def test_closing_a_way_through_a_host_that_is_gone_is_no_error() -> None:
    class Channel:
        def close(self) -> None:
            raise EOFError

    watched.WatchedSocket(Channel(), 1.0).close()


def test_a_proxy_commands_socket_ends_with_it() -> None:
    with closing(dial.ProxySocket("printf done")) as way:
        assert way.recv(10) == b"done"
        assert way.recv(10) == b""


# --------------------------------------------------------------------------- deadlines on the other side


def running(*words: str) -> list[int]:
    """Returns the processes whose argument list ends in these words."""
    want = [word.encode() for word in words]
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            argv = (entry / "cmdline").read_bytes().split(b"\0")[:-1]
        except OSError:
            continue
        if argv[-len(want) :] == want:
            found.append(int(entry.name))
    return found


def gone_within(seconds: float, *words: str) -> None:
    deadline = time.monotonic() + seconds
    while running(*words):
        assert time.monotonic() < deadline, f"still running: {words}"
        time.sleep(0.1)


def test_what_outlives_its_deadline_is_ended_on_the_host_too(endpoint: Endpoint) -> None:
    with closing(SshHost(endpoint)) as host:
        broken(lambda: host.run(["sh", "-c", "sleep 71.25 & sleep 72.25; :"], timeout=1))
        assert running("sleep", "71.25")
        gone_within(8, "sleep", "71.25")
        gone_within(1, "sleep", "72.25")


def test_it_is_ended_there_even_if_nobody_here_is_left_to_ask(
    endpoint: Endpoint, sandbox_project: Path
) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from orchestrator.hosts import open_host; from orchestrator.inventory import load_inventory\n"
        f"host = open_host(load_inventory(Path({str(sandbox_project / 'inventory.yaml')!r})), 'ct129')\n"
        "host.run(['sleep', '74.25'], timeout=2)"
    )
    client = subprocess.Popen([sys.executable, "-c", program])
    deadline = time.monotonic() + 30
    while not running("sleep", "74.25"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    client.send_signal(signal.SIGKILL)
    client.wait()
    gone_within(12, "sleep", "74.25")


def test_what_a_program_left_running_on_purpose_stays(endpoint: Endpoint) -> None:
    with closing(SshHost(endpoint)) as host:
        host.run(["sh", "-c", "setsid sleep 6.125 </dev/null >/dev/null 2>&1 &"], timeout=1)
        time.sleep(3)
        assert running("sleep", "6.125")
