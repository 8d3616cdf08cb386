"""`orch hosts check` over real sshds: login shells, what they print, sshd's limits, where the way there ends."""

from __future__ import annotations

import contextlib
import getpass
import os
import pwd
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.hosts.check import Finding, Report, check_host, check_hosts
from orchestrator.hosts.endpoint import Endpoint
from orchestrator.hosts.ssh import SshHost
from orchestrator.inventory import HostEntry, Inventory
from tests.conftest import OrchRun
from tests.orchestrator.packages import GOOD, Torch, install
from tests.orchestrator.ssh_servers import free_port, make_key, openssh_server

pytestmark = pytest.mark.sshd

Serve = Callable[..., Endpoint]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts sshds."""
    with contextlib.ExitStack() as stack:

        def run(name: str = "real", **more: object) -> Endpoint:
            (tmp_path / name).mkdir()
            return stack.enter_context(openssh_server(tmp_path / name, name=name, **more))  # type: ignore[arg-type]

        yield run


def login_shell(folder: Path, shell: str) -> list[str]:
    """Returns the words that run a program where our user's login shell is another one."""
    if os.geteuid() != 0:
        pytest.skip("another login shell needs root (a mount namespace)")
    found = shutil.which(shell, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if found is None:
        pytest.skip(f"{shell} is not installed")
    lines = Path("/etc/passwd").read_text().splitlines()
    ours = pwd.getpwuid(os.getuid())
    changed = [
        ":".join([*line.split(":")[:-1], found]) if line.startswith(f"{ours.pw_name}:") else line
        for line in lines
    ]
    (folder / "passwd").write_text("\n".join(changed) + "\n")
    script = 'mount --bind "$0" /etc/passwd && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, str(folder / "passwd")]


def entry_for(found: Endpoint, packages: Path, **more: object) -> HostEntry:
    settings = {"python": sys.executable, "env": {"PYTHONPATH": str(packages)}, **more}
    return HostEntry(name=found.name, address=found.address, lock_dir=str(packages / "locks"), **settings)  # type: ignore[arg-type]


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    return install(tmp_path / "packages", GOOD, Torch())


def check(found: Endpoint, packages: Path, **more: object) -> Report:
    host = SshHost(found)
    try:
        host.connect()
        return check_host(host, entry_for(found, packages, **more))
    finally:
        host.close()


def about(report: Report, subject: str) -> Finding:
    (found,) = [finding for finding in report.findings if finding.check == subject]
    return found


# --------------------------------------------------------------------------- login shells


@pytest.mark.parametrize(
    ("shell", "file", "noise", "guard"),
    [
        ("bash", ".bashrc", "echo Welcome", "~/.bashrc"),
        ("fish", ".config/fish/config.fish", "echo Welcome", "config.fish"),
        ("tcsh", ".tcshrc", "echo Welcome", "~/.tcshrc"),
    ],
)
def test_every_login_shell_works_and_what_it_prints_is_a_warning(
    tmp_path: Path, packages: Path, serve: Serve, shell: str, file: str, noise: str, guard: str
) -> None:
    found = serve(within=login_shell(tmp_path, shell))
    quiet = check(found, packages)
    assert quiet.severity == "ok", quiet.findings
    start_up = tmp_path / "real" / "home" / file
    start_up.parent.mkdir(parents=True, exist_ok=True)
    start_up.write_text(f"{noise}\n")
    finding = about(check(found, packages), "shell")
    assert finding.severity == "warning"
    assert "'Welcome'" in finding.seen
    assert guard in finding.fix


def test_a_login_shell_that_runs_nothing_is_told_from_a_missing_python(
    tmp_path: Path, packages: Path, serve: Serve
) -> None:
    report = check(serve(within=login_shell(tmp_path, "nologin")), packages)
    (finding,) = report.findings
    assert (finding.check, finding.severity, report.exit_code) == ("shell", "error", 6)
    assert "runs no command" in finding.seen
    assert "not available" in finding.seen


# --------------------------------------------------------------------------- sshd's limits


@pytest.mark.parametrize(("most", "severity"), [(10, "ok"), (4, "ok"), (2, "note"), (1, "warning")])
def test_max_sessions_is_found_by_trying(packages: Path, serve: Serve, most: int, severity: str) -> None:
    report = check(serve(settings=f"MaxSessions {most}"), packages)
    finding = about(report, "sessions")
    assert finding.severity == severity
    assert (f"sshd takes {most} program" in finding.seen) == (most < 4)
    assert report.exit_code == 0


def test_a_small_max_startups_is_seen_in_sshds_title(packages: Path, serve: Serve) -> None:
    report = check(serve(settings="MaxStartups 2:50:60"), packages)
    if not any(finding.check == "startups" for finding in report.findings):
        pytest.fail(f"sshd's title was not seen: {report.findings}")
    assert "more than 2 come at a time" in about(report, "startups").seen


def test_one_connection_and_one_request(packages: Path, serve: Serve) -> None:
    found = serve()
    host = SshHost(found)
    host.connect()
    check_host(host, entry_for(found, packages))
    assert (host.connections, host.requests) == (1, 1)
    host.close()


# --------------------------------------------------------------------------- where the way ends


def book(folder: Path, found: Endpoint, packages: Path, **hosts: dict[str, object]) -> Inventory:
    usual: dict[str, object] = {
        "address": "127.0.0.1",
        "port": found.port,
        "user": getpass.getuser(),
        "identity_file": str(found.identity_files[0]),
        "known_hosts": str(found.known_hosts[0]),
        "python": sys.executable,
        "lock_dir": str(packages / "locks"),
        "env": {"PYTHONPATH": str(packages)},
        "connect_timeout": 5.0,
    }
    entries = {name: HostEntry(name=name, **{**usual, **more}) for name, more in hosts.items()}  # type: ignore[arg-type]
    return Inventory(folder / "inventory.yaml", folder, hosts=entries)


def test_each_stage_of_the_way_has_its_own_finding_and_costs_the_others_nothing(
    tmp_path: Path, packages: Path, serve: Serve
) -> None:
    found = serve()
    make_key(tmp_path / "stranger")
    (tmp_path / "nobody_known").write_text("")
    closed = free_port()
    inventory = book(
        tmp_path,
        found,
        packages,
        fine={},
        name={"address": "no-such-host.invalid"},
        connection={"port": closed},
        host_key={"known_hosts": str(tmp_path / "nobody_known")},
        login={"identity_file": str(tmp_path / "stranger")},
        jump_host={"gateway": "connection"},
        forwarding={"gateway": "fine", "port": closed},
        openssh={"transport": "openssh"},
    )
    reports = {report.host: report for report in check_hosts(inventory, list(inventory.hosts))}
    assert set(reports) == set(inventory.hosts)
    first = {name: report.findings[0].check for name, report in reports.items() if report.exit_code}
    assert first == {
        "name": "name",
        "connection": "connection",
        "host_key": "host key",
        "login": "login",
        "jump_host": "jump host",
        "forwarding": "jump host",
    }
    assert {reports[name].exit_code for name in first} == {4}
    assert all(reports[name].unreachable and reports[name].findings[0].fix for name in first)
    assert reports["name"].stage == "dns"
    assert reports["fine"].severity == "ok"
    assert reports["openssh"].exit_code == 0


def test_the_command_says_it_for_many_hosts(
    tmp_path: Path, packages: Path, serve: Serve, run_orch: Callable[..., OrchRun]
) -> None:
    found = serve(settings="MaxSessions 1")
    usual = (
        f"address: 127.0.0.1, user: {getpass.getuser()}, identity_file: {found.identity_files[0]}, "
        f"known_hosts: {found.known_hosts[0]}, lock_dir: {packages}/locks, env: {{PYTHONPATH: {packages}}}, "
    )
    (tmp_path / "inventory.yaml").write_text(
        "hosts:\n"
        f"  well: {{{usual}port: {found.port}, python: {sys.executable}}}\n"
        f"  snake: {{{usual}port: {found.port}, python: /no/python}}\n"
        f"  dead: {{{usual}port: {free_port()}}}\n"
    )
    done = run_orch("hosts", "check", cwd=tmp_path)
    assert done.code == 8, done.stderr
    lines = done.stdout.splitlines()
    assert all(line.split()[0] in ("well", "snake", "dead") for line in lines)
    assert any(line.startswith("well   ok  Python 3.") for line in lines)
    assert any(line.startswith("well   warning  sessions: sshd takes 1 program") for line in lines)
    assert any(line.startswith("snake  error    interpreter: ") for line in lines)
    assert any(line.startswith("dead   error    connection: ") for line in lines)
    assert sum("fix: " in line for line in lines) == 3
    assert "2 of 3 hosts failed: snake, dead" in done.stderr
    document = run_orch("hosts", "check", "--failed", "--json", cwd=tmp_path).json()
    assert [host["host"] for host in document["hosts"]] == ["snake", "dead"]
    assert [host["findings"][0]["check"] for host in document["hosts"]] == ["interpreter", "connection"]
