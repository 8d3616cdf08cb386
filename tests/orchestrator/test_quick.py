"""The quickest way to a host: one session of the ssh program, begun ahead; the library's verdict where it fails."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import typer.main

from orchestrator.cli.ahead import FLAGS, VALUES, Push, plain_push
from orchestrator.cli.main import build_app
from orchestrator.errors import LinkError
from orchestrator.hosts import open_host
from orchestrator.hosts.endpoint import Endpoint
from orchestrator.hosts.quick import QuickHost, begin_ahead
from orchestrator.hosts.ssh import SshHost
from orchestrator.inventory import HostEntry, Inventory
from tests.conftest import REPO
from tests.orchestrator.ssh_servers import NEEDS_SSH, free_port, make_key, openssh_server
from tests.orchestrator.trees import write_payload

pytestmark = NEEDS_SSH


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Endpoint]:
    (tmp_path / "sshd").mkdir()
    with openssh_server(tmp_path / "sshd", settings="LogLevel VERBOSE") as found:
        yield found


def counts(server: Endpoint) -> tuple[int, int]:
    """How many logins and how many programs the server has seen."""
    text = (server.known_hosts[0].parent / "sshd.log").read_text()
    return text.count("Accepted publickey"), text.count("Starting session: command")


def test_all_programs_share_one_session_of_the_ssh_program(server: Endpoint) -> None:
    with closing(QuickHost(server)) as host:
        assert host.run(["sh", "-c", "cat; exit 3"], stdin=b"in").exit_code == 3
        assert b"".join(host.stream(["printf", "out"])) == b"out"
        assert (host.connections, host.requests) == (1, 2)
    assert counts(server) == (1, 2)
    with pytest.raises(LinkError, match="closed here"):
        host.run(["true"])


def test_a_session_that_was_begun_ahead_is_used_for_the_very_same_way_only(server: Endpoint) -> None:
    begin_ahead(server)
    with closing(QuickHost(replace(server, connect_timeout=14.0))) as other:
        other.run(["true"])
    with closing(QuickHost(server)) as host:
        host.run(["true"])
    assert counts(server) == (2, 2)  # the one that was begun, and the other way's own
    with closing(QuickHost(server)) as later:
        later.run(["true"])
    assert counts(server) == (3, 3)


def test_where_the_ssh_program_does_not_get_through_the_library_does(
    server: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'no such cipher' >&2\nexit 255\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    with closing(QuickHost(server)) as host:
        assert host.run(["printf", "here"]).stdout == b"here"
        assert (host.connections, host.requests) == (1, 1)


@pytest.mark.parametrize(
    "fault", ["unknown key", "changed key", "revoked key", "stranger", "refused", "no name", "mute", "locked"]
)
def test_every_fault_has_the_librarys_words(server: Endpoint, tmp_path: Path, fault: str) -> None:
    known = tmp_path / "known_hosts"
    recorded = server.known_hosts[0].read_text()
    make_key(tmp_path / "stranger")
    subprocess.run(["ssh-keygen", "-qted25519", "-Nsecret", f"-f{tmp_path}/locked"], check=True)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        texts = {
            "unknown key": "",
            "changed key": f"{server.known_as} {' '.join(make_key(tmp_path / 'other').split()[:2])}\n",
            "revoked key": f"@revoked * {' '.join(recorded.split()[1:3])}\n{recorded}",
        }
        known.write_text(texts.get(fault, recorded))
        changes = {
            "stranger": {"identity_files": (tmp_path / "stranger",)},
            "locked": {"identity_files": (tmp_path / "locked",)},
            "refused": {"port": free_port()},
            "no name": {"address": "no-such-host.invalid"},
            "mute": {"port": mute.getsockname()[1], "connect_timeout": 2.0},
        }
        endpoint = replace(server, known_hosts=(known,), **changes.get(fault, {}))  # type: ignore[arg-type]
        said = []
        for way in (SshHost, QuickHost):
            started = time.monotonic()
            with closing(way(endpoint)) as host, pytest.raises(LinkError) as caught:
                host.run(["true"], timeout=20)
            assert time.monotonic() - started < 5
            error = caught.value
            said.append((error.message, error.hint, error.exit_code, error.details))
    assert said[0] == said[1]


def test_only_a_plain_host_without_a_transport_of_its_own_is_reached_so(tmp_path: Path) -> None:
    hosts = {
        "plain": HostEntry(name="plain", address="a.example"),
        "library": HostEntry(name="library", address="a.example", transport="fabric"),
        "behind": HostEntry(name="behind", address="b.example", gateway="plain"),
    }
    book = Inventory(tmp_path / "inventory.yaml", tmp_path, hosts=hosts)
    assert isinstance(open_host(book, "plain", quick=True), QuickHost)
    assert isinstance(open_host(book, "plain"), SshHost)
    assert isinstance(open_host(book, "library", quick=True), SshHost)
    assert isinstance(open_host(book, "behind", quick=True), SshHost)


# --------------------------------------------------------------------------- what a command line will want


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("push gpu7", Push("gpu7", None, None)),
        ("push --json -q gpu7 --payload mine", Push("gpu7", None, "mine")),
        ("push -i here.yaml gpu7", Push("gpu7", "here.yaml", None)),
        ("push gpu7 --inventory=here.yaml --at-once 2", Push("gpu7", "here.yaml", None)),
        ("push", None),
        ("push gpu7 gpu8", None),
        ("push gpu7 --help", None),
        ("push --role training", None),
        ("push gpu7 --payload", None),
        ("push gpu7 --limit gpu*", None),
        ("rollback gpu7", None),
        ("eval push gpu7", None),
        ("", None),
    ],
)
def test_only_a_plain_push_to_one_host_is_seen_ahead(
    line: str, found: Push | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ORCH_INVENTORY", raising=False)
    assert plain_push(line.split()) == found


def test_what_is_seen_ahead_knows_the_options_as_push_has_them() -> None:
    command = typer.main.get_command(build_app()).commands["push"]  # type: ignore[attr-defined]
    flags = {name for option in command.params if getattr(option, "is_flag", False) for name in option.opts}
    options = {name for option in command.params for name in option.opts if name.startswith("-")}
    assert set(FLAGS) <= flags
    assert set(VALUES) <= options - flags


def test_a_push_is_one_connection_and_an_unchanged_one_a_single_request(
    server: Endpoint, tmp_path: Path
) -> None:
    (tmp_path / "inventory.yaml").write_text(
        f"hosts:\n  gpu: {{address: {server.address}, port: {server.port}, user: {server.user}, python: {sys.executable},\n"
        f"    identity_file: {server.identity_files[0]}, known_hosts: {server.known_hosts[0]}, workdir: {tmp_path}/work}}\n"
    )
    payload = write_payload(tmp_path / "payload")
    seen = []
    for _ in range(2):
        before = counts(server)
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator", "push", "gpu", "--payload", payload],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(REPO)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        seen.append((done.stdout.split()[1], *(b - a for a, b in zip(before, counts(server), strict=True))))
    assert seen == [("installed", 1, 2), ("unchanged", 1, 1)]


def test_a_push_that_is_wrong_leaves_no_session_behind(server: Endpoint, tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text(
        f"hosts:\n  gpu: {{address: {server.address}, port: {server.port}, user: {server.user},\n"
        f"    identity_file: {server.identity_files[0]}, known_hosts: {server.known_hosts[0]}}}\n"
    )
    (tmp_path / "empty").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "push", "gpu", "--payload", "empty"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, "neither a remote_payload tree" in done.stderr) == (2, True)
    mark = f"Port={server.port}".encode()
    deadline = time.monotonic() + 5
    while any(mark in words for words in _command_lines()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _command_lines() -> Iterator[bytes]:
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield entry.read_bytes()
        except OSError:
            continue
