"""Programs run over SSH byte for byte and within their deadlines; no host is believed without its key.

The contract tests run against both servers: the sandbox's and, where it is installed, OpenSSH's sshd.
"""

from __future__ import annotations

import json
import os
import shutil
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
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.errors import ConfigError, HostFailedError, LinkError
from orchestrator.hosts import SharedGateways, open_host, trust
from orchestrator.hosts.endpoint import Endpoint, resolve_endpoint
from orchestrator.hosts.openssh import OpensshHost
from orchestrator.hosts.ssh import SshHost
from orchestrator.hosts.sshconfig import resolve_alias
from orchestrator.inventory import HostEntry, Inventory, load_inventory
from tests.conftest import REPO
from tests.orchestrator.ssh_servers import Relay, free_port, make_key, openssh_server

PYTHON = sys.executable
MEGA5 = 5 * 1024 * 1024


@pytest.fixture(scope="module")
def inventory(sandbox_project: Path) -> Inventory:
    return load_inventory(sandbox_project / "inventory.yaml")


@pytest.fixture(scope="module")
def sandbox_endpoint(inventory: Inventory) -> Endpoint:
    return resolve_endpoint(inventory, "ct129")


@pytest.fixture(scope="module", params=["sandbox", pytest.param("sshd", marks=pytest.mark.sshd)])
def endpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """The way to a server that works, of either kind."""
    if request.param == "sandbox":
        yield request.getfixturevalue("sandbox_endpoint")
        return
    with openssh_server(tmp_path_factory.mktemp("sshd")) as found:
        yield found


TRANSPORTS = {"fabric": SshHost, "openssh": OpensshHost}


@pytest.fixture(scope="module", params=["fabric", pytest.param("openssh", marks=pytest.mark.sshd)])
def transport(request: pytest.FixtureRequest) -> type[SshHost] | type[OpensshHost]:
    """What a host is reached by; both keep the same contract."""
    if request.param == "openssh" and shutil.which("ssh") is None:
        pytest.skip("OpenSSH's client is not installed (apt-get install openssh-client)")
    return TRANSPORTS[request.param]


@pytest.fixture(scope="module")
def host(endpoint: Endpoint, transport: type[SshHost] | type[OpensshHost]) -> Iterator[SshHost | OpensshHost]:
    with closing(transport(endpoint)) as opened:
        yield opened


@pytest.fixture
def relay(endpoint: Endpoint) -> Iterator[Relay]:
    with closing(Relay(endpoint.port)) as between:
        yield between


def through(endpoint: Endpoint, relay: Relay) -> Endpoint:
    return replace(endpoint, port=relay.port)  # the key stays on record under the server's own name


def refused(endpoint: Endpoint) -> LinkError:
    """Tries to run a program and returns the LinkError that it must end in."""
    with closing(SshHost(endpoint)) as opened, pytest.raises(LinkError) as caught:
        opened.run(["true"], timeout=5)
    assert opened.requests == 0
    assert endpoint.name in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == 4
    return caught.value


# --------------------------------------------------------------------------- programs, bytes, exit codes


def test_output_error_output_and_exit_code_come_back_apart(host: SshHost) -> None:
    done = host.run(["sh", "-c", "printf out; printf err >&2; exit 7"])
    assert (done.exit_code, done.stdout, done.stderr) == (7, b"out", b"err")


def test_many_programs_share_one_connection(endpoint: Endpoint) -> None:
    with closing(SshHost(endpoint)) as opened:
        assert opened.connections == 0
        assert [opened.run(["printf", str(n)]).stdout for n in range(3)] == [b"0", b"1", b"2"]
        assert (opened.connections, opened.requests) == (1, 3)


def test_programs_may_run_at_the_same_time(host: SshHost) -> None:
    before = host.connections
    results: list[bytes] = []
    threads = [
        threading.Thread(
            target=lambda n=n: results.append(host.run(["sh", "-c", f"sleep 0.2; printf {n}"]).stdout)
        )
        for n in range(5)
    ]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(results) == [b"0", b"1", b"2", b"3", b"4"]
    assert time.monotonic() - started < 5 * 0.2 + 2
    assert host.connections <= before + 1


def test_five_megabytes_on_both_streams_at_once_arrive_whole(host: SshHost) -> None:
    program = (
        "import sys, threading\n"
        f"ts = [threading.Thread(target=s.buffer.write, args=(c * {MEGA5},)) "
        "for s, c in ((sys.stdout, b'o'), (sys.stderr, b'e'))]\n"
        "[t.start() for t in ts]; [t.join() for t in ts]\n"
        "sys.stdout.flush(); sys.stderr.flush(); sys.exit(3)"
    )
    done = host.run([PYTHON, "-c", program], timeout=60)
    assert done.exit_code == 3
    assert done.stdout == b"o" * MEGA5
    assert done.stderr == b"e" * MEGA5


def test_stderr_beyond_the_window_does_not_stop_stdout(host: SshHost) -> None:
    program = f"import sys; sys.stderr.buffer.write(b'e' * {MEGA5}); sys.stderr.flush(); print('end')"
    done = host.run([PYTHON, "-c", program], timeout=60)
    assert (done.exit_code, done.stdout, len(done.stderr)) == (0, b"end\n", MEGA5)


def test_binary_input_comes_back_unchanged(host: SshHost) -> None:
    data = os.urandom(3 * 1024 * 1024) + bytes(range(256)) * 16
    assert host.run(["cat"], stdin=data, timeout=60).stdout == data


def test_input_may_be_produced_piece_by_piece(host: SshHost) -> None:
    pieces = [b"a" * 100_000, b"", b"b", os.urandom(70_000)]
    assert host.run(["cat"], stdin=iter(pieces)).stdout == b"".join(pieces)


def test_a_fault_of_whoever_produces_the_input_reaches_the_caller(host: SshHost) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"x"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        host.run(["cat"], stdin=pieces(), timeout=10)
    assert host.run(["true"]).exit_code == 0


def test_a_program_that_ends_before_its_input_gives_its_code_and_words(host: SshHost) -> None:
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        while taken < 200 * 1024 * 1024:
            taken += 65536
            yield b"x" * 65536

    done = host.run(["sh", "-c", "echo no space >&2; exit 9"], stdin=endless(), timeout=30)
    assert (done.exit_code, done.stderr) == (9, b"no space\n")
    assert taken < 200 * 1024 * 1024


def test_a_program_that_stops_reading_may_go_on_working(host: SshHost) -> None:
    done = host.run(
        ["sh", "-c", "exec 0</dev/null; sleep 0.3; echo done; exit 4"], stdin=b"x" * MEGA5, timeout=30
    )
    assert (done.exit_code, done.stdout) == (4, b"done\n")


def test_no_input_means_end_of_file_at_once(host: SshHost) -> None:
    assert host.run(["cat"], timeout=10).exit_code == 0


@pytest.mark.parametrize("code", [0, 1, 2, 126, 255])
def test_exit_codes_are_passed_on(host: SshHost, code: int) -> None:
    assert host.run(["sh", "-c", f"exit {code}"]).exit_code == code


def test_a_program_that_is_not_there_exits_with_127(host: SshHost) -> None:
    done = host.run(["no-such-program-here"])
    assert done.exit_code == 127
    assert b"no-such-program-here" in done.stderr


def test_death_by_a_signal_is_minus_one_and_the_link_lives(host: SshHost) -> None:
    done = host.run(
        [PYTHON, "-c", f"import os; print('last words', flush=True); os.kill(os.getpid(), {signal.SIGKILL})"]
    )
    # The host's shell may replace itself by the program (a signal) or report it (128 + signal).
    assert done.exit_code in (-1, 137)
    assert done.stdout == b"last words\n"
    assert host.run(["true"]).exit_code == 0


def test_death_of_the_shell_itself_is_not_a_broken_link(host: SshHost) -> None:
    assert host.run(["sh", "-c", "kill -9 $$"]).exit_code in (-1, 137)


ECHO = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ.get('ORCH_TEST')]))"
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(TEXT, max_size=4), TEXT)
def test_arguments_and_environment_arrive_verbatim(host: SshHost, arguments: list[str], value: str) -> None:
    done = host.run([PYTHON, "-X", "utf8", "-c", ECHO, *arguments], env={"ORCH_TEST": value})
    assert done.exit_code == 0, done.error_text()
    assert json.loads(done.stdout) == [arguments, value]


@pytest.mark.parametrize(
    "text",
    [
        "a b",
        "it's",
        '"q"',
        "$(touch pwned)",
        "`id`",
        "a\nb",
        "\\",
        "!!",
        "~",
        "*",
        "-n",
        "",
        "ä€𝄞",
        "a;b&&c|d>e",
    ],
)
def test_what_a_shell_would_act_on_arrives_verbatim(host: SshHost, text: str) -> None:
    done = host.run([PYTHON, "-X", "utf8", "-c", ECHO, text], env={"ORCH_TEST": text})
    assert json.loads(done.stdout) == [[text], text]


# --------------------------------------------------------------------------- streams


def test_a_stream_yields_while_the_program_runs(host: SshHost) -> None:
    pieces = host.stream(["sh", "-c", "echo one; sleep 0.5; echo two"], timeout=10)
    assert next(pieces) == b"one\n"
    first = time.monotonic()
    assert b"".join(pieces) == b"two\n"
    assert time.monotonic() - first > 0.2


def test_a_stream_of_megabytes_is_whole_while_stderr_flows_too(host: SshHost) -> None:
    program = (
        f"import sys\nfor n in range(80): sys.stdout.buffer.write(b'o' * {MEGA5 // 80}); "
        f"sys.stderr.buffer.write(b'e' * {MEGA5 // 80})"
    )
    assert b"".join(host.stream([PYTHON, "-c", program])) == b"o" * MEGA5


def test_a_stream_that_ends_badly_says_so_after_its_last_piece(host: SshHost) -> None:
    pieces = host.stream(["sh", "-c", "echo data; echo why >&2; exit 5"])
    assert next(pieces) == b"data\n"
    with pytest.raises(HostFailedError) as caught:
        list(pieces)
    assert "exited with 5: why" in caught.value.message
    assert caught.value.details["exit_code"] == 5


def test_silence_beyond_the_limit_ends_a_stream(host: SshHost) -> None:
    pieces = host.stream(["sh", "-c", "echo x; sleep 30"], timeout=0.5)
    started = time.monotonic()
    with pytest.raises(LinkError) as caught:
        list(pieces)
    assert time.monotonic() - started < 5
    assert "was silent for 0.5 s" in caught.value.message


def test_a_stream_left_half_way_leaves_the_connection_usable(host: SshHost) -> None:
    pieces = host.stream(["sh", "-c", "while :; do echo x; done"])
    next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    assert host.run(["printf", "on"]).stdout == b"on"


# --------------------------------------------------------------------------- deadlines and broken links


def test_a_deadline_is_kept_and_the_connection_goes_on(host: SshHost) -> None:
    started = time.monotonic()
    with pytest.raises(LinkError) as caught:
        host.run(["sleep", "30"], timeout=0.5)
    assert 0.4 < time.monotonic() - started < 3
    assert "did not end within 0.5 s" in caught.value.message
    assert host.run(["true"]).exit_code == 0


def test_a_deadline_holds_while_input_is_being_fed(host: SshHost) -> None:
    started = time.monotonic()
    with pytest.raises(LinkError):
        host.run(["sleep", "30"], stdin=b"x" * (20 * 1024 * 1024), timeout=1)
    assert time.monotonic() - started < 5


def test_a_cut_link_is_a_link_error_and_the_next_program_reconnects(endpoint: Endpoint, relay: Relay) -> None:
    with closing(SshHost(through(endpoint, relay))) as opened:
        assert opened.run(["true"]).exit_code == 0
        threading.Timer(0.3, relay.cut).start()
        with pytest.raises(LinkError) as caught:
            opened.run(["sleep", "30"], timeout=20)
        assert "the link broke" in caught.value.message
        assert "not known" in caught.value.message
        assert opened.run(["printf", "back"]).stdout == b"back"
        assert opened.connections == 2


def test_a_cut_link_ends_a_stream_too(endpoint: Endpoint, relay: Relay) -> None:
    with closing(SshHost(through(endpoint, relay))) as opened:
        pieces = opened.stream(["sh", "-c", "echo x; sleep 30"], timeout=20)
        assert next(pieces) == b"x\n"
        relay.cut()
        with pytest.raises(LinkError):
            list(pieces)


@pytest.mark.parametrize("stdin", [b"", b"x" * (8 * 1024 * 1024)], ids=["idle", "feeding"])
def test_a_link_that_falls_silent_holds_nobody_beyond_the_deadline(
    endpoint: Endpoint, relay: Relay, stdin: bytes
) -> None:
    with closing(SshHost(through(endpoint, relay))) as opened:
        opened.run(["true"])
        relay.silence()
        started = time.monotonic()
        with pytest.raises(LinkError):
            opened.run(["cat"], stdin=stdin, timeout=1)
        assert time.monotonic() - started < 6


# --------------------------------------------------------------------------- ports that are no hosts


def test_a_refused_port_is_tried_again_quickly_and_then_reported(sandbox_endpoint: Endpoint) -> None:
    started = time.monotonic()
    error = refused(replace(sandbox_endpoint, port=free_port()))
    assert "connection refused" in error.message
    assert error.details["stage"] == "connect"
    assert time.monotonic() - started < 3


def test_a_handshake_that_stops_half_way_times_out(sandbox_endpoint: Endpoint) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            client, _ = server.accept()
            client.sendall(b"SSH-2.0-Slow\r\n")
            client.recv(1 << 16)
            time.sleep(3)
            client.close()

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        error = refused(replace(sandbox_endpoint, port=server.getsockname()[1], connect_timeout=1))
        thread.join(5)
    assert "no answer within 1 s" in error.message
    assert error.details["stage"] == "key exchange"


def test_a_port_that_never_answers_times_out(sandbox_endpoint: Endpoint) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        started = time.monotonic()
        error = refused(replace(sandbox_endpoint, port=server.getsockname()[1], connect_timeout=1))
        assert time.monotonic() - started < 4
    assert "no answer within 1 s" in error.message
    assert "connect_timeout" in error.hint


@pytest.mark.parametrize(
    "greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["hangs up", "speaks HTTP"]
)
def test_a_port_that_is_no_ssh_server_is_named_as_such(
    sandbox_endpoint: Endpoint, greeting: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                client.sendall(greeting)
                client.close()

        threading.Thread(target=answer, daemon=True).start()
        error = refused(replace(sandbox_endpoint, port=server.getsockname()[1], connect_timeout=3))
        server.shutdown(socket.SHUT_RDWR)
    assert error.details["stage"] in ("banner", "key exchange")
    assert "Traceback" not in capfd.readouterr().err


def test_a_name_that_does_not_resolve_is_named(sandbox_endpoint: Endpoint) -> None:
    error = refused(replace(sandbox_endpoint, address="no-such-host.invalid"))
    assert "'no-such-host.invalid' cannot be resolved" in error.message
    assert error.details["stage"] == "dns"


# --------------------------------------------------------------------------- host keys and logins


def wrong_key(folder: Path) -> str:
    return " ".join(make_key(folder / "another").split()[:2])


def test_an_unknown_host_key_is_refused_with_fingerprint_and_remedy(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    file = tmp_path / "known_hosts"
    error = refused(replace(endpoint, known_hosts=(file,)))
    assert error.details["fingerprint"].startswith("SHA256:")
    assert error.details["fingerprint"] in error.message
    assert f"orch hosts trust {endpoint.trust_name}" in error.hint
    assert not file.exists()


def test_a_changed_host_key_is_refused_with_line_and_exact_remedy(endpoint: Endpoint, tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"# mine\n{endpoint.known_as} {wrong_key(tmp_path)}\n")
    before = file.read_bytes()
    error = refused(replace(endpoint, known_hosts=(file,)))
    assert "HAS CHANGED" in error.message
    assert f"{file}:2" in error.message
    assert error.message.count("SHA256:") == 2
    removal = f"ssh-keygen -R '{endpoint.known_as}' -f {file}"
    assert removal in error.hint
    assert file.read_bytes() == before
    subprocess.run(["ssh-keygen", "-R", endpoint.known_as, "-f", file], check=True, capture_output=True)
    assert (
        "not known" in refused(replace(endpoint, known_hosts=(file,))).message
    )  # the remedy does what it says


def test_a_revoked_host_key_is_refused(endpoint: Endpoint, tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    good = next(
        line
        for line in endpoint.known_hosts[0].read_text().splitlines()
        if line.startswith(endpoint.known_as)
    )
    file.write_text(f"{good}\n@revoked * {' '.join(good.split()[1:3])}\n")
    assert f"@revoked in {file}:2" in refused(replace(endpoint, known_hosts=(file,))).message


def test_marker_and_wildcard_lines_do_not_get_in_the_way(endpoint: Endpoint, tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    good = next(
        line
        for line in endpoint.known_hosts[0].read_text().splitlines()
        if line.startswith(endpoint.known_as)
    )
    key = " ".join(good.split()[1:3])
    file.write_text(f"@cert-authority * {wrong_key(tmp_path)}\n[127.0.0.?]:{endpoint.port} {key}\n")
    with closing(SshHost(replace(endpoint, known_hosts=(file,)))) as opened:
        assert opened.run(["true"]).exit_code == 0


@pytest.mark.sshd
@pytest.mark.parametrize("kept", ["ecdsa", "rsa"])
def test_the_key_type_on_record_is_asked_for_first(tmp_path: Path, kept: str) -> None:
    with openssh_server(tmp_path, ("ed25519", "ecdsa", "rsa")) as found:
        lines = found.known_hosts[0].read_text().splitlines()
        found.known_hosts[0].write_text("\n".join(line for line in lines if kept in line.split()[1]) + "\n")
        with closing(SshHost(found)) as opened:
            assert opened.run(["true"]).exit_code == 0


def test_a_key_that_the_host_does_not_know_is_a_refused_login(endpoint: Endpoint, tmp_path: Path) -> None:
    make_key(tmp_path / "stranger")
    error = refused(replace(endpoint, identity_files=(tmp_path / "stranger",)))
    assert error.details["stage"] == "login"
    assert "authorized_keys" in error.hint


def test_another_user_is_a_refused_login(sandbox_endpoint: Endpoint) -> None:
    assert "did not accept nobody-here" in refused(replace(sandbox_endpoint, user="nobody-here")).message


def test_a_key_with_a_passphrase_asks_for_the_agent(endpoint: Endpoint, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", locked], check=True)
    error = refused(replace(endpoint, identity_files=(locked,)))
    assert "passphrase" in error.message
    assert "ssh-add" in error.hint


# --------------------------------------------------------------------------- gateways


@pytest.fixture
def hops(inventory: Inventory) -> Inventory:
    """The sandbox, with ct129 reached through ct200."""
    hosts = {**inventory.hosts, "inner": HostEntry(name="inner", sandbox="ct129", gateway="ct200")}
    return replace(inventory, hosts=hosts)


def test_a_host_behind_a_gateway_is_reached_through_it(hops: Inventory) -> None:
    with closing(open_host(hops, "inner")) as inner:
        assert inner.run(["sh", "-c", "echo $HOME"]).stdout.strip().endswith(b"/ct129")
        assert inner.gateway is not None
        assert (inner.connections, inner.gateway.connections, inner.gateway.requests) == (1, 1, 0)
        data = os.urandom(1 << 20)
        assert inner.run(["cat"], stdin=data).stdout == data


def test_many_hosts_behind_one_gateway_share_its_session(hops: Inventory) -> None:
    with SharedGateways() as shared:
        inner = [open_host(hops, "inner", shared) for _ in range(3)]
        assert [host.run(["printf", "x"]).stdout for host in inner] == [b"x"] * 3
        (way,) = {host.gateway for host in inner}
        assert way.connections == 1
        inner[0].close()
        assert inner[1].run(["printf", "on"]).stdout == b"on"
        for host in inner:
            host.close()
    with pytest.raises(LinkError, match="closed here"):
        way.run(["true"])


def test_those_behind_a_dead_gateway_fail_together_not_one_after_the_other(hops: Inventory) -> None:
    found = resolve_endpoint(hops, "inner")
    assert found.gateway is not None
    with socket.create_server(("127.0.0.1", 0)) as mute, SharedGateways() as shared:
        gateway = replace(found.gateway, port=mute.getsockname()[1], connect_timeout=2)
        inner = [SshHost(replace(found, gateway=gateway), shared) for _ in range(6)]
        errors: list[str] = []

        def attempt(host: SshHost) -> None:
            with pytest.raises(LinkError) as caught:
                host.run(["true"])
            errors.append(caught.value.message)

        threads = [threading.Thread(target=attempt, args=(host,)) for host in inner]
        started = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert time.monotonic() - started < 6
    assert len(errors) == 6
    assert all("ct200" in error for error in errors)


def test_a_gateway_whose_key_is_not_known_stops_the_way(hops: Inventory, tmp_path: Path) -> None:
    inner = resolve_endpoint(hops, "inner")
    assert inner.gateway is not None
    error = refused_at(replace(inner, gateway=replace(inner.gateway, known_hosts=(tmp_path / "none",))))
    assert error.details["host"] == "ct200"


def test_a_host_behind_a_gateway_is_checked_as_strictly(hops: Inventory, tmp_path: Path) -> None:
    error = refused_at(replace(resolve_endpoint(hops, "inner"), known_hosts=(tmp_path / "none",)))
    assert error.details["host"] == "inner"
    assert error.details["stage"] == "host key"


def test_a_gateway_that_cannot_forward_is_named(hops: Inventory) -> None:
    error = refused_at(replace(resolve_endpoint(hops, "inner"), port=free_port()))
    assert "forwarding through ct200" in error.message


def refused_at(endpoint: Endpoint) -> LinkError:
    with closing(SshHost(endpoint)) as opened, pytest.raises(LinkError) as caught:
        opened.run(["true"], timeout=5)
    return caught.value


# --------------------------------------------------------------------------- trust


def one_host(endpoint: Endpoint, folder: Path, **more: object) -> Inventory:
    entry = HostEntry(
        name="real",
        address=endpoint.address,
        port=endpoint.port,
        user=endpoint.user,
        identity_file=str(endpoint.identity_files[0]),
        known_hosts="my_known_hosts",
        **more,
    )
    return Inventory(path=folder / "inventory.yaml", folder=folder, hosts={"real": entry})


def test_trust_records_the_key_once_and_the_host_is_open(endpoint: Endpoint, tmp_path: Path) -> None:
    inventory = one_host(endpoint, tmp_path)
    offers = []
    (first,) = trust(inventory, "real", lambda offer: offers.append(offer) or True)
    (again,) = trust(inventory, "real", lambda _: pytest.fail("asked again"))
    assert (first.recorded, again.recorded) == (True, False)
    assert offers[0].key == first.key
    assert first.file == tmp_path / "my_known_hosts"
    with closing(open_host(inventory, "real")) as opened:
        assert opened.run(["true"]).exit_code == 0


def test_trust_records_nothing_without_a_yes(endpoint: Endpoint, tmp_path: Path) -> None:
    with pytest.raises(LinkError):
        trust(one_host(endpoint, tmp_path), "real", lambda _: False)
    assert not (tmp_path / "my_known_hosts").exists()


def test_trust_never_overrules_another_key_on_record(endpoint: Endpoint, tmp_path: Path) -> None:
    file = tmp_path / "my_known_hosts"
    file.write_text(f"{endpoint.known_as} {wrong_key(tmp_path)}\n")
    before = file.read_bytes()
    with pytest.raises(LinkError) as caught:
        trust(one_host(endpoint, tmp_path), "real", lambda _: True)
    assert "HAS CHANGED" in caught.value.message
    assert file.read_bytes() == before


def test_trust_walks_the_way_from_the_outermost_hop(hops: Inventory) -> None:
    known = trust(hops, "inner", lambda _: pytest.fail("all are known"))
    assert [hop.host for hop in known] == ["ct200", "inner"]


# --------------------------------------------------------------------------- ssh's own configuration


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    return tmp_path


def test_an_alias_of_the_ssh_configuration_leads_to_the_host(endpoint: Endpoint, own_home: Path) -> None:
    (own_home / ".ssh" / "config").write_text(
        f"Host gpu7\n  HostName 127.0.0.1\n  Port {endpoint.port}\n  User {endpoint.user}\n"
        f"  IdentityFile {endpoint.identity_files[0]}\n  UserKnownHostsFile {endpoint.known_hosts[0]}\n"
    )
    inventory = Inventory(own_home / "i", own_home, hosts={"x": HostEntry(name="x", address="gpu7")})
    with closing(open_host(inventory, "x")) as opened:
        assert opened.run(["printf", "here"]).stdout == b"here"


def test_proxyjump_hops_are_hosts_of_their_own_with_strict_keys(endpoint: Endpoint, own_home: Path) -> None:
    common = f"  User {endpoint.user}\n  IdentityFile {endpoint.identity_files[0]}\n"
    config = (
        f"Host jump\n  HostName 127.0.0.1\n  Port {endpoint.port}\n{common}"
        f"Host inner\n  HostName 127.0.0.1\n  Port {endpoint.port}\n  ProxyJump jump\n{common}"
        f"  UserKnownHostsFile {endpoint.known_hosts[0]}\n"
    )
    (own_home / ".ssh" / "config").write_text(config)
    inventory = Inventory(own_home / "i", own_home, hosts={"x": HostEntry(name="x", address="inner")})
    with closing(open_host(inventory, "x")) as opened, pytest.raises(LinkError) as caught:
        opened.run(["true"])
    assert (caught.value.details["host"], caught.value.details["stage"]) == ("jump", "host key")
    assert "orch hosts trust x" in caught.value.hint
    assert [hop.recorded for hop in trust(inventory, "x", lambda _: True)] == [True, False]
    with closing(open_host(inventory, "x")) as opened:
        assert opened.run(["printf", "here"]).stdout == b"here"


def test_the_inventory_wins_over_the_ssh_configuration(own_home: Path) -> None:
    (own_home / ".ssh" / "config").write_text("Host *\n  Port 1\n  User nobody\n")
    entry = HostEntry(name="x", address="gpu7", port=2222, user="ana")
    found = resolve_endpoint(Inventory(own_home / "i", own_home, hosts={"x": entry}), "x")
    assert (found.port, found.user, found.known_as) == (2222, "ana", "[gpu7]:2222")
    assert found.known_hosts[0] == own_home / ".ssh" / "known_hosts"


def test_sandbox_hosts_ignore_the_ssh_configuration(inventory: Inventory, own_home: Path) -> None:
    (own_home / ".ssh" / "config").write_text("Host *\n  Port 1\n  ProxyJump nowhere\n")
    with closing(open_host(inventory, "ct129")) as opened:
        assert opened.run(["true"]).exit_code == 0


def test_an_ssh_configuration_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_bytes(b"Host a\n  \xff\xfe\n")
    with pytest.raises(ConfigError) as caught:
        resolve_alias("a", files=(file,))
    assert str(file) in caught.value.message


def test_a_missing_identity_file_is_named_with_its_key(tmp_path: Path) -> None:
    entry = HostEntry(name="x", address="gpu7", identity_file="keys/none")
    with pytest.raises(ConfigError) as caught:
        open_host(Inventory(tmp_path / "inventory.yaml", tmp_path, hosts={"x": entry}), "x")
    assert "hosts.x.identity_file" in caught.value.message
    assert str(tmp_path / "keys/none") in caught.value.message


# --------------------------------------------------------------------------- before the first connection


def test_opening_a_host_imports_no_ssh_library(sandbox_project: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from orchestrator.hosts import open_host; from orchestrator.inventory import load_inventory\n"
        f"open_host(load_inventory(Path({str(sandbox_project / 'inventory.yaml')!r})), 'ct129')\n"
        "print([m for m in ('fabric', 'paramiko', 'invoke', 'asyncssh', 'tenacity') if m in sys.modules])"
    )
    done = subprocess.run([PYTHON, "-c", program], cwd=REPO, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_sandbox_that_is_down_says_how_to_start_it(project: Path) -> None:
    with pytest.raises(LinkError) as caught:
        open_host(load_inventory(), "ct129")
    assert "orch sandbox up" in caught.value.hint
