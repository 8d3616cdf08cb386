"""The ssh program as a transport: whose session it uses, what it checks, how it ends. The contract is test_ssh's."""

from __future__ import annotations

import os
import pickle
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError, LinkError
from orchestrator.hosts import control, open_host
from orchestrator.hosts.endpoint import Endpoint
from orchestrator.hosts.openssh import OpensshHost
from orchestrator.hosts.ssh import SshHost
from orchestrator.inventory import HostEntry, Inventory
from tests.conftest import REPO
from tests.orchestrator.ssh_servers import NEEDS_SSH, Relay, free_port, make_key, openssh_server, sshd_chain

pytestmark = NEEDS_SSH


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Endpoint]:
    (tmp_path / "sshd").mkdir()
    with openssh_server(tmp_path / "sshd", settings="MaxSessions 2") as found:
        yield found


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder))
    return folder


def book(home: Path, address: str, **more: object) -> Inventory:
    entry = HostEntry(name="x", address=address, transport="openssh", **more)
    return Inventory(home / "inventory.yaml", home, hosts={"x": entry})


def ssh_programs(mark: str) -> list[int]:
    """Returns the processes that have a word in their arguments."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if mark.encode() in words and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def gone(mark: str, seconds: float = 5) -> None:
    deadline = time.monotonic() + seconds
    while ssh_programs(mark):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def refusal(host: OpensshHost, within: float = 20) -> LinkError:
    started = time.monotonic()
    with closing(host), pytest.raises(LinkError) as caught:
        host.run(["true"], timeout=60)
    assert time.monotonic() - started < within
    return caught.value


# --------------------------------------------------------------------------- whose session


@pytest.fixture
def users_master(server: Endpoint, home: Path) -> Iterator[Path]:
    """A session that the user has opened by hand, to a host that lets nobody else in any more."""
    path = home / ".ssh" / "cm"
    (home / ".ssh" / "config").write_text(
        f"Host cluster\n  HostName 127.0.0.1\n  Port {server.port}\n  User {server.user}\n"
        f"  UserKnownHostsFile {server.known_hosts[0]}\n  ControlPath {path}\n"
    )
    config = ["-F", home / ".ssh" / "config"]
    process = subprocess.Popen(
        ["ssh", *config, "-i", server.identity_files[0], "-M", "-N", "cluster"], stdin=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 10
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (server.known_hosts[0].parent / "authorized_keys").write_text("")
    yield path
    process.terminate()
    process.wait()


def test_the_session_that_the_user_opened_is_used_and_left_open(users_master: Path, home: Path) -> None:
    inventory = book(home, "cluster")
    for _ in range(2):
        with closing(open_host(inventory, "x")) as host:
            assert host.run(["sh", "-c", "cat; exit 3"], stdin=b"in").exit_code == 3
            assert b"".join(host.stream(["printf", "out"])) == b"out"
            assert (host.connections, host.requests) == (1, 2)
    assert users_master.exists()


def test_without_that_session_the_login_is_refused_in_words(
    users_master: Path, server: Endpoint, home: Path
) -> None:
    subprocess.run(["ssh", "-S", users_master, "-O", "exit", "x"], check=True, capture_output=True)
    with closing(open_host(book(home, "cluster"), "x")) as host, pytest.raises(LinkError) as caught:
        host.run(["true"])
    assert caught.value.details["stage"] == "login"
    assert "Permission denied" in caught.value.message
    assert "by hand" in caught.value.hint


def test_a_session_of_the_users_that_falls_silent_is_noticed(
    server: Endpoint, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "KEEPALIVE_S", 0.5)
    monkeypatch.setattr(control, "DEAD_AFTER_S", 2.0)
    path = home / "cm"
    with closing(Relay(server.port)) as relay:
        base = ["ssh", "-F", "none", "-i", server.identity_files[0], "-p", str(relay.port)]
        strict = [
            "-o",
            f"UserKnownHostsFile={server.known_hosts[0]}",
            "-o",
            f"HostKeyAlias={server.known_as}",
        ]
        master = subprocess.Popen([*base, *strict, "-M", "-N", "-S", path, "127.0.0.1"], stdin=-3)
        deadline = time.monotonic() + 10
        while not path.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with closing(OpensshHost(replace(server, control_path=str(path)))) as host:
            assert host.run(["sleep", "1.5"], timeout=20).exit_code == 0
            threading.Timer(0.5, relay.silence).start()
            started = time.monotonic()
            with pytest.raises(LinkError) as caught:
                host.run(["sleep", "50"], timeout=60)
            assert time.monotonic() - started < 8
            assert "no sign of life for 2 s" in caught.value.message
            assert host.run(["printf", "own"]).stdout == b"own"  # a session of our own, past the dead one
        master.kill()
        master.wait()


def test_our_own_session_serves_all_programs_and_ends_with_the_host(server: Endpoint) -> None:
    host = OpensshHost(server)
    assert [host.run(["printf", str(n)]).stdout for n in range(3)] == [b"0", b"1", b"2"]
    assert (host.connections, host.requests) == (1, 3)
    mark = f"Port={server.port}"
    assert ssh_programs(mark)
    host.close()
    gone(mark)
    with pytest.raises(LinkError, match="closed here"):
        host.run(["true"])


def test_our_own_session_dies_with_us(server: Endpoint) -> None:
    program = (
        "import pickle, sys, time; from orchestrator.hosts.openssh import OpensshHost\n"
        "host = OpensshHost(pickle.load(sys.stdin.buffer)); host.connect(); print('up', flush=True); time.sleep(60)"
    )
    client = subprocess.Popen(
        [sys.executable, "-c", program], cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(pickle.dumps(server))
    client.stdin.close()
    assert client.stdout.readline() == b"up\n"
    mark = f"Port={server.port}"
    words = b"\0".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in ssh_programs(mark))
    (folder,) = {Path(word.decode()).parent for word in words.split(b"\0") if word.endswith(b"/s")}
    assert folder.is_dir()
    client.send_signal(signal.SIGKILL)
    client.wait()
    client.stdout.close()
    gone(mark)
    deadline = time.monotonic() + 5
    while folder.exists():  # the watch beside it removes it a moment after the program's end
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_a_program_left_running_may_go_on_talking(server: Endpoint) -> None:
    with closing(OpensshHost(server)) as host:
        done = host.run(["sh", "-c", "echo first >&2; (sleep 0.3; echo later >&2) & exit 5"])
    assert (done.exit_code, done.stderr) == (5, b"first\nlater\n")


@pytest.mark.parametrize("transport", [SshHost, OpensshHost])
def test_more_programs_at_once_than_the_session_takes_all_run(
    server: Endpoint, transport: type[SshHost] | type[OpensshHost]
) -> None:
    results: list[bytes] = []
    with closing(transport(server)) as host:
        threads = [
            threading.Thread(
                target=lambda n=n: results.append(host.run(["sh", "-c", f"sleep 0.5; printf {n}"]).stdout)
            )
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert sorted(results) == [b"0", b"1", b"2", b"3"]


# --------------------------------------------------------------------------- every hop strict


def test_a_host_key_that_is_not_on_record_or_has_changed_stops_with_our_remedy(
    server: Endpoint, tmp_path: Path
) -> None:
    file = tmp_path / "known\" 'hosts %h\\"
    error = refusal(OpensshHost(replace(server, known_hosts=(file,))))
    assert (error.details["stage"], error.details["state"]) == ("host key", "unknown")
    assert "orch hosts trust real" in error.hint
    file.write_text(f"{server.known_as} {make_key(tmp_path / 'other')}")
    error = refusal(OpensshHost(replace(server, known_hosts=(file,))))
    assert "HAS CHANGED" in error.message
    assert f"{file}:1" in error.message
    assert shlex.join(["ssh-keygen", "-R", server.known_as, "-f", str(file)]) in error.hint
    file.write_text(server.known_hosts[0].read_text())
    with closing(OpensshHost(replace(server, known_hosts=(file,)))) as host:
        assert host.run(["true"]).exit_code == 0


def test_jump_hosts_are_as_strict_whatever_the_configuration_allows(tmp_path: Path, home: Path) -> None:
    with sshd_chain(tmp_path) as (config, lines):
        (home / ".ssh" / "config").write_text(config)
        known = home / ".ssh" / "known_hosts"
        inventory = book(home, "inner")
        for missing, name in enumerate(("outer", "middle", "x")):
            known.write_text("".join(line for number, line in enumerate(lines) if number != missing))
            host = open_host(inventory, "x")
            assert isinstance(host, OpensshHost)
            error = refusal(host)
            assert (error.details["host"], error.details["state"]) == (name, "unknown")
        known.write_text("".join(lines))
        with closing(open_host(inventory, "x")) as opened:
            assert opened.run(["printf", "%s", "a b%h$(id)"]).stdout == b"a b%h$(id)"


def test_what_the_configuration_wants_for_people_does_not_get_in_the_way(
    server: Endpoint, home: Path
) -> None:
    (home / ".ssh" / "config").write_text(
        f"Host box\n  HostName 127.0.0.1\n  Port {server.port}\n  User {server.user}\n"
        f"  IdentityFile {server.identity_files[0]}\n  UserKnownHostsFile {server.known_hosts[0]}\n"
        f"  RemoteCommand sleep 60\n  RequestTTY force\n  PermitLocalCommand yes\n"
        f"  LocalCommand touch {home}/ran\n  LocalForward {free_port()} localhost:1\n  LogLevel DEBUG\n"
        f"  ControlMaster auto\n  ControlPersist 60\n  ControlPath {home}/cm\n  StrictHostKeyChecking ask\n"
    )
    with closing(open_host(book(home, "box"), "x")) as host:
        done = host.run(["sh", "-c", "printf out; printf err >&2; test -t 1 || exit 4"])
    assert (done.exit_code, done.stdout, done.stderr) == (4, b"out", b"err")
    assert not (home / "ran").exists()
    assert not (home / "cm").exists()  # our own session stays ours


# --------------------------------------------------------------------------- links that break


def test_a_link_that_falls_silent_ends_our_session(server: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "KEEPALIVE_S", 1.0)
    monkeypatch.setattr(control, "DEAD_AFTER_S", 3.0)
    with closing(Relay(server.port)) as relay, closing(OpensshHost(replace(server, port=relay.port))) as host:
        host.run(["true"])
        relay.silence()
        started = time.monotonic()
        with pytest.raises(LinkError) as caught:
            host.run(["sleep", "50"], timeout=60)
        assert time.monotonic() - started < 8
        assert "the link broke while `sleep 50` ran" in caught.value.message
        assert "not responding" in caught.value.message
        relay.cut()
        assert host.run(["printf", "back"]).stdout == b"back"
        assert host.connections == 2


def test_a_session_that_stays_full_is_said(server: Endpoint) -> None:
    with closing(SshHost(server)) as host:
        held = [host.stream(["sh", "-c", "echo x; sleep 3"]) for _ in range(2)]
        for pieces in held:
            next(pieces)
        with pytest.raises(LinkError) as caught:
            host.run(["true"], timeout=1)
        assert "takes no further program" in caught.value.message
        held[0].close()  # type: ignore[attr-defined]
        assert host.run(["true"], timeout=30).exit_code == 0


@pytest.mark.parametrize(
    ("change", "stage"),
    [
        ({"port": "free"}, "connect"),
        ({"address": "no-such-host.invalid"}, "dns"),
        ({"port": "mute"}, "connect"),
        ({"identity_files": ()}, "login"),
    ],
)
def test_a_session_that_cannot_be_opened_says_at_what_it_stopped(
    server: Endpoint, change: dict[str, object], stage: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        ports = {"free": free_port(), "mute": mute.getsockname()[1]}
        if "port" in change:
            change = {"port": ports[str(change["port"])]}
        error = refusal(OpensshHost(replace(server, connect_timeout=2, **change)), within=8)
    assert error.details["stage"] == stage
    assert error.message.startswith("real (")
    assert error.hint


def test_without_the_program_the_error_says_what_to_install(
    server: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with closing(OpensshHost(server)) as host, pytest.raises(ConfigError) as caught:
        host.run(["true"])
    assert "openssh-client" in caught.value.hint


def test_a_gateway_with_the_ssh_program_wants_it_for_those_behind_it_too(tmp_path: Path) -> None:
    hosts = {
        "login": HostEntry(name="login", address="login.lab", transport="openssh"),
        "gpu7": HostEntry(name="gpu7", address="gpu7", gateway="login"),
    }
    with pytest.raises(ConfigError) as caught:
        open_host(Inventory(tmp_path / "inventory.yaml", tmp_path, hosts=hosts), "gpu7")
    assert "give hosts.gpu7 `transport: openssh` too" in caught.value.hint
