"""Keys are tried as OpenSSH tries them: named files and certificates, the agent that is configured, usual files."""

from __future__ import annotations

import contextlib
import getpass
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import LinkError
from orchestrator.hosts import login
from orchestrator.hosts.endpoint import Endpoint
from orchestrator.hosts.ssh import SshHost
from tests.orchestrator.ssh_servers import make_key, openssh_server

pytestmark = pytest.mark.sshd
Server = Callable[..., Endpoint]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Starts an sshd; the way to it names no key and no agent."""
    with contextlib.ExitStack() as stack:

        def start(settings: str = "", prepare: Callable[[Path], str] | None = None) -> Endpoint:
            folder = tmp_path / "sshd"
            folder.mkdir()
            found = stack.enter_context(openssh_server(folder, settings=settings, prepare=prepare))
            return replace(found, only_identity=False, identity_agent="none", identity_files=())

        yield start


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Path]:
    """A real ssh-agent, empty."""
    if not shutil.which("ssh-agent"):
        pytest.skip("OpenSSH's client is not installed (apt-get install openssh-client)")
    place = tmp_path / "agent.sock"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", place], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 5
    while not place.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield place
    process.terminate()
    process.wait()


def add(agent: Path, key: Path) -> None:
    subprocess.run(
        ["ssh-add", "-q", key], env={"SSH_AUTH_SOCK": str(agent)}, check=True, stdin=subprocess.DEVNULL
    )


def user_key(endpoint: Endpoint) -> Path:
    return endpoint.known_hosts[0].parent / "user"


def enters(endpoint: Endpoint) -> bool:
    with closing(SshHost(endpoint)) as host:
        return host.run(["printf", "in"]).stdout == b"in"


def refusal(endpoint: Endpoint) -> LinkError:
    with closing(SshHost(endpoint)) as host, pytest.raises(LinkError) as caught:
        host.run(["true"])
    assert caught.value.details["stage"] == "login"
    return caught.value


def test_the_agent_that_is_configured_is_the_one_that_is_asked(
    server: Server, agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = server()
    add(agent, user_key(endpoint))
    assert enters(replace(endpoint, identity_agent=str(agent)))
    assert "no key to log in with" in refusal(endpoint).message
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    assert enters(replace(endpoint, identity_agent=None))
    assert enters(replace(endpoint, identity_agent="$SSH_AUTH_SOCK"))
    assert "no key to log in with" in refusal(replace(endpoint, identity_agent="none")).message
    assert (
        "no key to log in with" in refusal(replace(endpoint, identity_agent=None, only_identity=True)).message
    )


def test_a_locked_file_is_opened_by_the_agent_that_holds_its_key(server: Server, agent: Path) -> None:
    endpoint = server()
    key = user_key(endpoint)
    add(agent, key)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", key], check=True, stdout=-3)
    locked = replace(endpoint, identity_files=(key,))
    assert "has a passphrase" in refusal(locked).message
    assert enters(replace(locked, identity_agent=str(agent)))


def test_with_identities_only_the_agents_other_keys_stay_unseen(
    server: Server, agent: Path, tmp_path: Path
) -> None:
    endpoint = server("MaxAuthTries 2")
    for number in range(4):
        make_key(tmp_path / f"other{number}")
        add(agent, tmp_path / f"other{number}")
    add(agent, user_key(endpoint))
    usual = replace(endpoint, identity_agent=str(agent))
    assert "did not accept" in refusal(usual).message
    public_only = tmp_path / "mine"  # ssh too finds the agent's key by the public file alone
    public_only.write_text("")
    (tmp_path / "mine.pub").write_text(user_key(endpoint).with_suffix(".pub").read_text())
    assert enters(replace(usual, identities_only=True, identity_files=(public_only,)))


def test_a_named_file_comes_before_the_agents_keys(server: Server, agent: Path, tmp_path: Path) -> None:
    endpoint = server("MaxAuthTries 2")
    for number in range(4):
        make_key(tmp_path / f"other{number}")
        add(agent, tmp_path / f"other{number}")
    assert enters(replace(endpoint, identity_agent=str(agent), identity_files=(user_key(endpoint),)))


@pytest.fixture
def certified(server: Server) -> Endpoint:
    """An sshd that lets nobody in but with a certificate by its authority; `user-cert.pub` is one."""

    def prepare(folder: Path) -> str:
        (folder / "ca.pub").write_text(make_key(folder / "ca"))
        (folder / "authorized_keys").write_text("")
        subprocess.run(
            [
                "ssh-keygen",
                "-q",
                "-s",
                folder / "ca",
                "-I",
                "id",
                "-n",
                getpass.getuser(),
                folder / "user.pub",
            ],
            check=True,
            stderr=-3,
        )
        return f"TrustedUserCAKeys {folder}/ca.pub"

    return server(prepare=prepare)


def test_a_certificate_beside_its_key_is_shown(certified: Endpoint) -> None:
    assert enters(replace(certified, identity_files=(user_key(certified),)))


def test_a_certificate_elsewhere_is_shown_with_the_key_it_belongs_to(
    certified: Endpoint, tmp_path: Path
) -> None:
    key = user_key(certified)
    elsewhere = key.with_name("user-cert.pub").rename(tmp_path / "elsewhere.pub")
    make_key(tmp_path / "other")
    files = replace(certified, identity_files=(tmp_path / "other", key))
    assert "did not accept" in refusal(files).message
    assert enters(replace(files, certificate_files=(tmp_path / "none", tmp_path / "other.pub", elsewhere)))


def test_a_certificate_that_the_agent_holds_is_shown(certified: Endpoint, agent: Path) -> None:
    add(agent, user_key(certified))  # takes the certificate beside the key too
    held = subprocess.run(
        ["ssh-add", "-L"], env={"SSH_AUTH_SOCK": str(agent)}, capture_output=True, text=True, check=True
    ).stdout
    assert "cert-v01" in held
    assert enters(replace(certified, identity_agent=str(agent)))
    named = replace(certified, identity_agent=str(agent), identities_only=True)
    assert enters(replace(named, identity_files=(user_key(certified),)))


# --------------------------------------------------------------------------- agents and files that misbehave


@contextlib.contextmanager
def fake_agent(place: Path, answer: bytes | None) -> Iterator[str]:
    """An agent that gives one answer to everything, or none at all."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    with client:
                        while client.recv(4096):
                            if answer is not None:
                                client.sendall(struct.pack(">I", len(answer)) + answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield str(place)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def text(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


@pytest.mark.parametrize(
    "answer",
    [
        b"\x0c"
        + struct.pack(">I", 1)
        + text(text(b"sk-ssh-ed25519@openssh.com") + text(b"x" * 32))
        + text(b"token"),
        b"\x0c" + struct.pack(">I", 1) + text(text(b"ssh-ed25519") + text(b"short")) + text(b"broken"),
        b"\x05",
        b"",
    ],
    ids=["a security key", "a broken key", "refuses", "nonsense"],
)
def test_an_agent_with_something_odd_does_not_stop_the_files(
    server: Server, tmp_path: Path, answer: bytes
) -> None:
    endpoint = server()
    with fake_agent(tmp_path / "odd.sock", answer) as place:
        odd = replace(endpoint, identity_agent=place, usual_identities=(user_key(endpoint),))
        assert enters(odd)


def test_an_agent_that_never_answers_costs_little(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "_AGENT_S", 0.5)
    endpoint = server()
    with fake_agent(tmp_path / "mute.sock", None) as place:
        mute = replace(endpoint, identity_agent=place)
        started = time.monotonic()
        assert enters(replace(mute, identity_files=(user_key(endpoint),)))
        assert time.monotonic() - started < 5
        assert f"the agent at {place}: timed out" in refusal(mute).message


def test_files_that_are_no_keys_are_passed_over_and_told(server: Server, tmp_path: Path) -> None:
    endpoint = server()
    (tmp_path / "junk").write_text("no key")
    junk = (tmp_path / "junk", tmp_path / "absent")
    assert str(tmp_path / "junk") in refusal(replace(endpoint, identity_files=junk)).message
    assert enters(replace(endpoint, identity_files=(*junk, user_key(endpoint))))


@pytest.mark.parametrize("kind", ["rsa", "ecdsa", "ed25519"])
def test_every_kind_of_key_logs_in(server: Server, tmp_path: Path, kind: str) -> None:
    public = make_key(tmp_path / kind, kind)

    def prepare(folder: Path) -> str:
        (folder / "authorized_keys").write_text(public)
        return ""

    assert enters(replace(server(prepare=prepare), identity_files=(tmp_path / kind,)))


# --------------------------------------------------------------------------- hosts that want something else


def test_a_host_that_wants_a_second_factor_says_how_to_get_in(server: Server) -> None:
    endpoint = server("PasswordAuthentication yes\nAuthenticationMethods publickey,password")
    error = refusal(replace(endpoint, identity_files=(user_key(endpoint),)))
    assert "accepted the key" in error.message
    assert "asks for password too" in error.message
    assert "transport: openssh" in error.hint


def test_a_host_that_takes_no_keys_says_how_to_get_in(server: Server) -> None:
    endpoint = server("PubkeyAuthentication no\nPasswordAuthentication yes")
    error = refusal(replace(endpoint, identity_files=(user_key(endpoint),)))
    assert "lets nobody in by key: it asks for password" in error.message
    assert "transport: openssh" in error.hint
