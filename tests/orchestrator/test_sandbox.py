"""`orch sandbox`: hosts on loopback that are up when `up` says so, survive repetition, and end with `down`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError, HostFailedError, LinkError
from orchestrator.hosts import open_host, resolve_entry
from orchestrator.hosts.sandbox_state import is_running, read_state
from orchestrator.inventory import Inventory, load_inventory
from orchestrator.sandbox import down, status, up
from tests.conftest import OrchRun

RunOrch = Callable[..., OrchRun]

INVENTORY = """\
hosts:
  ct129: {sandbox: ct129, roles: [inference]}
  ct200: {sandbox: ct200, roles: [training]}
sandbox:
  ct129: {models/m: seed}
"""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Inventory]:
    """A project with a small seed, whose sandbox a test may treat as it likes."""
    (tmp_path / "seed").mkdir()
    (tmp_path / "seed" / "weights").write_bytes(b"w" * 1000)
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    inventory = load_inventory(tmp_path / "inventory.yaml")
    yield inventory
    down(inventory)


def folder(inventory: Inventory) -> Path:
    return inventory.folder / ".orch" / "sandbox"


def says(inventory: Inventory, host: str, *argv: str) -> str:
    with closing(open_host(inventory, host)) as opened:
        done = opened.run(argv, timeout=20)
    assert done.exit_code == 0, done.error_text()
    return done.stdout.decode().strip()


def test_hosts_listen_when_up_returns_and_are_gone_after_down(own: Inventory) -> None:
    report = up(own)
    assert report.started
    for name, host in report.state.hosts.items():
        assert says(own, name, "sh", "-c", "echo $HOME; pwd").split() == [str(host.home)] * 2
    was = report.state
    assert down(own).was_running
    assert not is_running(folder(own))
    for host in was.hosts.values():
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", host.port), timeout=2)
    assert down(own).was_running is False


def test_the_server_is_nobodys_child_and_holds_no_terminal_or_pipe(own: Inventory) -> None:
    pid = up(own).state.pid
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    assert os.getsid(pid) == pid
    assert os.getsid(pid) != os.getsid(0)


def test_up_again_leaves_a_sound_server_alone(own: Inventory) -> None:
    first, second = up(own), up(own)
    assert (first.started, second.started) == (True, False)
    assert first.state == second.state
    assert [seed.action for seed in first.seeds + second.seeds] == ["copied", "unchanged"]


def test_host_keys_and_homes_outlive_the_server(own: Inventory) -> None:
    before = {name: host.fingerprint for name, host in up(own).state.hosts.items()}
    assert len(set(before.values())) == 2
    says(own, "ct129", "touch", "kept")
    down(own)
    after = up(own).state.hosts
    assert {name: host.fingerprint for name, host in after.items()} == before
    assert (after["ct129"].home / "kept").exists()


def test_purge_removes_everything(own: Inventory) -> None:
    up(own)
    assert down(own, purge=True).purged
    assert not folder(own).exists()


def test_private_files_are_private(own: Inventory) -> None:
    up(own)
    for name in ("id_ed25519", "keys/ct129", "keys/ct200", "state.json", "known_hosts"):
        assert stat.S_IMODE((folder(own) / name).stat().st_mode) & 0o077 == 0, name
    assert (own.folder / ".orch" / ".gitignore").read_text() == "*\n"


@pytest.mark.parametrize(
    "damage", ["killed", "no state", "bad state", "no known_hosts", "foreign key", "no home"]
)
def test_up_repairs_what_is_half_dead(own: Inventory, damage: str) -> None:
    state = up(own).state
    place = folder(own)
    if damage == "killed":
        os.kill(state.pid, signal.SIGKILL)
        wait_until(lambda: not is_running(place))
        with pytest.raises(LinkError) as caught:
            open_host(own, "ct129")
        assert "orch sandbox up" in caught.value.hint
    elif damage == "no state":
        (place / "state.json").unlink()
    elif damage == "bad state":
        (place / "state.json").write_text("{")
    elif damage == "no known_hosts":
        (place / "known_hosts").unlink()
    elif damage == "foreign key":
        (place / "known_hosts").write_text((place / "known_hosts").read_text().replace("AAAAC3", "AAAAC4"))
    elif damage == "no home":
        shutil.rmtree(state.hosts["ct129"].home)
    assert status(own).state is None or status(own).problems
    assert up(own).started
    assert not status(own).problems
    assert says(own, "ct129", "printf", "well") == "well"


def test_a_host_that_the_inventory_gained_is_started(own: Inventory) -> None:
    up(own)
    own.path.write_text(INVENTORY.replace("sandbox:\n", "  new: {sandbox: new}\nsandbox:\n", 1))
    grown = load_inventory(own.path)
    with pytest.raises(LinkError) as caught:
        open_host(grown, "new")
    assert "does not have this host" in caught.value.message
    assert up(grown).started
    assert says(grown, "new", "printf", "here") == "here"


def test_ups_at_the_same_time_end_in_one_server(own: Inventory, run_orch: RunOrch) -> None:
    command = [sys.executable, "-m", "orchestrator", "sandbox", "up", "--json", "-i", str(own.path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    runs = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in range(3)]
    documents = [json.loads(run.communicate(timeout=60)[0]) for run in runs]
    assert len({document["pid"] for document in documents}) == 1
    assert sorted(document["started"] for document in documents) == [False, False, True]


def test_sandboxes_in_different_folders_do_not_meet(
    own: Inventory, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other_folder = tmp_path_factory.mktemp("other")
    (other_folder / "inventory.yaml").write_text("hosts:\n  ct129: {sandbox: ct129}\n")
    other = load_inventory(other_folder / "inventory.yaml")
    mine, theirs = up(own).state, up(other).state
    try:
        assert mine.hosts["ct129"].port != theirs.hosts["ct129"].port
        assert says(own, "ct129", "sh", "-c", "echo $HOME") != says(other, "ct129", "sh", "-c", "echo $HOME")
    finally:
        down(other)
    assert says(own, "ct129", "printf", "on") == "on"


@pytest.mark.parametrize("change", ["content", "size", "more", "fewer"])
def test_a_seed_that_differs_is_replaced_whole(own: Inventory, change: str) -> None:
    home = up(own).state.hosts["ct129"].home
    copy = home / "models" / "m"
    if change == "content":
        (copy / "weights").write_bytes(b"v" * 1000)
    elif change == "size":
        (copy / "weights").write_bytes(b"w")
    elif change == "more":
        (copy / "extra").write_bytes(b"")
    else:
        (copy / "weights").unlink()
    assert [seed.action for seed in up(own).seeds] == ["replaced"]
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == {"weights": b"w" * 1000}
    assert [path.name for path in (home / "models").iterdir()] == ["m"]


def test_a_seed_that_is_not_there_is_named(own: Inventory) -> None:
    shutil.rmtree(own.folder / "seed")
    with pytest.raises(ConfigError) as caught:
        up(own)
    assert f"{own.folder}/seed is not there" in caught.value.message


def test_a_server_that_cannot_start_leaves_nothing_and_shows_its_log(own: Inventory) -> None:
    (folder(own) / "keys").mkdir(parents=True)
    (folder(own) / "keys" / "ct200").write_text("no key")
    with pytest.raises(HostFailedError) as caught:
        up(own)
    assert "KeyImportError" in caught.value.message
    assert not is_running(folder(own))
    assert read_state(folder(own)) is None


def test_an_inventory_without_sandbox_hosts_says_how_to_add_one(tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text("hosts:\n  a: {address: x}\n")
    with pytest.raises(ConfigError) as caught:
        up(load_inventory(tmp_path / "inventory.yaml"))
    assert "sandbox: ct129" in caught.value.hint


def test_without_asyncssh_the_extra_is_named(own: Inventory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError) as caught:
        up(own)
    assert "pip install 'orch[sandbox]'" in caught.value.hint


def test_commands_see_a_clean_environment(own: Inventory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_SECRET", "of the caller")
    up(own)
    seen = dict(line.split("=", 1) for line in says(own, "ct129", "env").splitlines())
    assert set(seen) - {"_", "PWD", "SHLVL", "OLDPWD"} == {"HOME", "LANG", "LOGNAME", "PATH", "SHELL", "USER"}
    assert str(Path(sys.prefix)) not in seen["PATH"]
    assert says(own, "ct129", "sh", "-c", "umask") in ("0022", "022")


def test_the_interpreter_is_the_one_that_up_ran_unless_the_inventory_names_one(own: Inventory) -> None:
    up(own)
    assert resolve_entry(own, "ct129").python == sys.executable
    own.path.write_text(INVENTORY.replace("roles: [inference]", "python: /opt/py"))
    assert resolve_entry(load_inventory(own.path), "ct129").python == "/opt/py"


def test_every_exec_request_is_in_the_log_with_its_connection(own: Inventory) -> None:
    up(own)
    with closing(open_host(own, "ct129")) as first, closing(open_host(own, "ct200")) as second:
        first.run(["true"])
        first.run(["printf", "x" * 500])
        second.run(["true"])
        counted = first.requests + second.requests
    lines = [json.loads(line) for line in (folder(own) / "exec.log").read_text().splitlines()]
    assert len(lines) == counted == 3
    assert [line["host"] for line in lines] == ["ct129", "ct129", "ct200"]
    assert lines[0]["connection"] == lines[1]["connection"] != lines[2]["connection"]
    assert len(lines[1]["command"]) == 200


def test_a_command_outlives_the_client_that_started_it(own: Inventory) -> None:
    up(own)
    with closing(open_host(own, "ct129")) as opened:
        pieces = opened.stream(["sh", "-c", "echo on; sleep 0.5; touch finished"])
        assert next(pieces) == b"on\n"
        home = own.folder / ".orch" / "sandbox" / "hosts" / "ct129"
    wait_until(lambda: (home / "finished").exists())
    assert says(own, "ct129", "printf", "well") == "well"
    assert (folder(own) / "server.log").read_text() == ""


def test_down_does_not_wait_for_commands_and_leaves_them_running(own: Inventory) -> None:
    home = up(own).state.hosts["ct129"].home
    with closing(open_host(own, "ct129")) as opened:
        pieces = opened.stream(["sh", "-c", "echo on; sleep 1.5; touch finished"])
        assert next(pieces) == b"on\n"
        started = time.monotonic()
        down(own)
        assert time.monotonic() - started < 1.4
        with pytest.raises(LinkError):
            list(pieces)
    wait_until(lambda: (home / "finished").exists())


def test_a_detached_program_lets_its_command_return_at_once(own: Inventory) -> None:
    if shutil.which("setsid") is None:
        pytest.skip("there is no setsid program here (util-linux has it)")
    up(own)
    started = time.monotonic()
    says(own, "ct129", "sh", "-c", "setsid sleep 20 </dev/null >/dev/null 2>&1 & echo $! > pid")
    assert time.monotonic() - started < 5
    os.kill(int((folder(own) / "hosts" / "ct129" / "pid").read_text()), signal.SIGKILL)


def test_sixty_programs_at_once_all_end(own: Inventory) -> None:
    up(own)
    with closing(open_host(own, "ct129")) as opened:
        streams = [opened.stream(["sh", "-c", f"echo a; sleep 0.3; echo {n}"], timeout=30) for n in range(60)]
        assert [next(pieces) for pieces in streams] == [b"a\n"] * 60
        assert [b"".join(pieces) for pieces in streams] == [f"{n}\n".encode() for n in range(60)]


@pytest.mark.parametrize("tool", ["ssh", "sftp"])
def test_openssh_clients_can_use_it(own: Inventory, tool: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    host = up(own).state.hosts["ct129"]
    options = ["-F", "none", "-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={host.known_hosts}"]
    options += ["-o", "StrictHostKeyChecking=yes", "-o", "IdentitiesOnly=yes", "-i", str(host.identity)]
    where = f"{host.user}@127.0.0.1"
    if tool == "ssh":
        command = ["ssh", *options, "-p", str(host.port), where, "cat; exit 3"]
        done = subprocess.run(command, input=b"\0\xff", capture_output=True, timeout=30, check=False)
        assert (done.returncode, done.stdout) == (3, b"\0\xff")
    else:
        (host.home / "file").write_text("content")
        command = ["sftp", *options, "-P", str(host.port), f"{where}:file", str(own.folder / "fetched")]
        subprocess.run(command, capture_output=True, timeout=30, check=True)
        assert (own.folder / "fetched").read_text() == "content"


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --------------------------------------------------------------------------- the commands


def test_the_commands_report_as_json_and_by_exit_code(own: Inventory, run_orch: RunOrch) -> None:
    where = own.folder
    stopped = run_orch("sandbox", "status", "--json", cwd=where)
    assert (stopped.code, stopped.json()["running"]) == (1, False)
    started = run_orch("sandbox", "up", "--json", cwd=where)
    assert started.code == 0, started.stderr
    document = started.json()
    assert document["schema"] == "orch/sandbox-up/1"
    assert set(document["hosts"]) == {"ct129", "ct200"}
    assert document["seeds"] == [
        {"host": "ct129", "path": "models/m", "action": "copied", "files": 1, "bytes": 1000}
    ]
    running = run_orch("sandbox", "status", "--json", cwd=where)
    assert (running.code, running.json()["pid"], running.json()["problems"]) == (0, document["pid"], [])
    ended = run_orch("sandbox", "down", "--json", cwd=where)
    assert (ended.code, ended.json()["was_running"]) == (0, True)


def test_the_commands_talk_on_stderr_and_print_hosts_on_stdout(own: Inventory, run_orch: RunOrch) -> None:
    started = run_orch("sandbox", "up", cwd=own.folder)
    assert [line.split()[0] for line in started.stdout.splitlines()] == ["ct129", "models/m", "ct200"]
    assert "the sandbox is up" in started.stderr
    assert run_orch("sandbox", "up", "--quiet", cwd=own.folder).stderr == ""
    stopped = run_orch("sandbox", "down", cwd=own.folder)
    assert "its files stay" in stopped.stderr
    status = run_orch("sandbox", "status", cwd=own.folder)
    assert (status.code, status.stdout) == (1, "")
    assert "next: run `orch sandbox up`" in status.stderr


def test_a_host_comes_back_on_its_port_so_that_who_waits_for_it_finds_it(own: Inventory) -> None:
    inventory = own
    try:
        first = {name: host.port for name, host in up(inventory).state.hosts.items()}
        waiting = open_host(inventory, "ct129")
        down(inventory)
        with pytest.raises(LinkError, match="connection refused") as caught:
            waiting.run(["true"])
        assert "orch sandbox up" in caught.value.hint
        second = {name: host.port for name, host in up(inventory).state.hosts.items()}
        assert second == first
        assert waiting.run(["true"]).exit_code == 0
        waiting.close()
        down(inventory)
        with socket.create_server(("127.0.0.1", first["ct129"])):
            assert up(inventory).state.hosts["ct129"].port != first["ct129"]
    finally:
        down(inventory)


def test_a_sandbox_that_is_down_is_said_of_the_host_that_was_asked_for(own: Inventory) -> None:
    path = own.path
    path.write_text(path.read_text().replace("  ct129:", "  eval-box:", 1), encoding="utf-8")
    inventory = load_inventory(path)
    with pytest.raises(LinkError, match=r"^eval-box: the sandbox is down"):
        open_host(inventory, "eval-box")
