"""Transfers over real links: sshd's in network namespaces, wires that are cut, clients that are killed.

What passed where is read off the interfaces' own counters.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import checkpoints
from orchestrator.checkpoints import Checkpoint, CheckpointRef
from orchestrator.errors import LinkError
from orchestrator.hosts.openssh import OpensshHost
from orchestrator.hosts.ssh import SshHost
from orchestrator.inventory import HostEntry
from orchestrator.transfer.parcel import CHUNK
from tests.conftest import REPO
from tests.orchestrator.netns import Lab, Wire, lab
from tests.orchestrator.test_transfer import SEED, write_large
from tests.orchestrator.trees import make_inventory

pytestmark = [pytest.mark.sshd, pytest.mark.slow]
SIZE = 32 << 20
WITHIN_S = 20.0


class Fleet:
    """A desk, a host that trains and one that evaluates, each joined with each."""

    def __init__(self, folder: Path, place: Lab) -> None:
        self.folder, self.place = folder, place
        self.wires: dict[str, Wire] = {
            "gpu": place.wire("desk", "gpu", 1),
            "train": place.wire("desk", "train", 1),
            "between": place.wire("train", "gpu", 1),
        }
        self.gpu = place.serve("gpu", settings=self._keys("gpu"))
        self.train = place.serve("train", settings=self._keys("train"))
        # The training host has a way of its own to the address that the desk knows.
        self.ip("train", "route", "add", f"{self.gpu.address}/32", "via", "10.99.3.2")
        self.keys = folder / "gpu" / "home" / ".ssh" / "authorized_keys"
        self.source = write_large(folder / "ckpt" / "step_40", size=SIZE)

    def _keys(self, name: str) -> str:
        return f"AuthorizedKeysFile {self.folder}/{name}/authorized_keys {self.folder}/{name}/home/.ssh/authorized_keys"

    def ip(self, name: str, *words: str) -> str:
        argv = ["ip", "-n", self.place.namespace(name), *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout

    def passed(self, name: str) -> dict[str, int]:
        """Returns the bytes that have gone in and out by each interface of a machine."""
        links = json.loads(self.ip(name, "-s", "-j", "link"))
        found = {link["ifname"]: link["stats64"] for link in links if link["ifname"] != "lo"}
        return {name: stats["rx"]["bytes"] + stats["tx"]["bytes"] for name, stats in found.items()}

    def look(self, host: SshHost | None) -> Checkpoint:
        entry = HostEntry(name="train", address="unused", python=sys.executable)
        ref = CheckpointRef("c", "train" if host else None, str(self.source), "step_40")
        return checkpoints.inspect(make_inventory(self.folder, entry), ref, host)

    def entry(self, work: str, **settings: Any) -> HostEntry:
        return HostEntry(
            name="gpu", address="unused", workdir=str(self.folder / work), python=sys.executable, **settings
        )

    def arrived(self, work: str) -> int:
        """Returns how many chunks a work folder has of what is on its way."""
        maps = list((self.folder / work / "checkpoints" / ".parts").glob("*.map"))
        return sum(file.read_bytes()[::8].count(1) for file in maps)

    def visits(self) -> list[Path]:
        """Returns what is left of folders that were laid ready for a visit to this lab's host."""
        key = self.gpu.known_hosts[0].read_text().split()[2]
        laid = Path("/dev/shm").glob("orch-visit-*/known_hosts")
        return [file for file in laid if key in file.read_text()]

    def is_whole(self, path: str) -> bool:
        return (Path(path) / "model.safetensors").read_bytes() == (
            self.source / "model.safetensors"
        ).read_bytes()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    with lab(folder) as place:
        yield Fleet(folder, place)


@pytest.fixture
def fleet(shared: Fleet, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setattr("orchestrator.transfer.delivery._LARGE", CHUNK)
    monkeypatch.setattr("orchestrator.transfer.streamed._WORTH_A_PIPE", CHUNK)
    with shared.place.at():
        yield shared
    assert not shared.keys.exists()
    assert shared.visits() == []


@contextmanager
def sessions(*hosts: SshHost) -> Iterator[None]:
    try:
        yield
    finally:
        for host in hosts:
            host.close()


def wait_until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.005)


# --------------------------------------------------------------------------- through this machine


def test_a_checkpoint_goes_up_by_the_ssh_program_and_down_again(fleet: Fleet) -> None:
    host = SshHost(fleet.gpu)
    with sessions(host):
        checkpoint = fleet.look(None)
        path = checkpoints.stage(checkpoint, None, sys.executable, host, fleet.entry("up"))
        assert fleet.is_whole(path)
        assert isinstance(host.companion, OpensshHost)
        target = fleet.folder / "down"
        before = fleet.passed("desk")["wire1"]
        ref = CheckpointRef("c", "gpu", path, "step_40")
        entry = HostEntry(name="gpu", address="unused", python=sys.executable)
        there = checkpoints.inspect(make_inventory(fleet.folder, entry), ref, host)
        done = checkpoints.fetch(there, host, sys.executable, target)
        assert fleet.is_whole(str(target))
        assert done.sent >= SIZE
        assert SIZE <= fleet.passed("desk")["wire1"] - before <= 1.2 * SIZE


def test_without_the_ssh_program_it_goes_over_the_open_session(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.hosts.bulk.shutil.which", lambda _: None)
    host = SshHost(fleet.gpu)
    with sessions(host):
        path = checkpoints.stage(fleet.look(None), None, sys.executable, host, fleet.entry("plain"))
        assert fleet.is_whole(path)
        assert (host.connections, host.companion) == (1, None)


@pytest.mark.parametrize("own", [True, False], ids=["own session", "ssh program"])
def test_lanes_share_a_far_hosts_transfer(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, own: bool) -> None:
    monkeypatch.setattr("orchestrator.transfer.delivery._FAR_S", 0.0)
    if own:
        monkeypatch.setattr("orchestrator.hosts.bulk.shutil.which", lambda _: None)
    host, calls = SshHost(fleet.gpu), []
    with sessions(host):
        checkpoint, work = fleet.look(None), f"lanes-{own}"
        path = checkpoints.stage(
            checkpoint, None, sys.executable, host, fleet.entry(work), lambda done, _: calls.append(done)
        )
        assert fleet.is_whole(path)
        assert calls == sorted(calls)
        assert calls[-1] == checkpoint.size
        used = host.companion if isinstance(host.companion, OpensshHost) else host
        assert used.requests >= 4 + 1  # the lanes, and the one who makes it whole


def test_a_cut_at_nine_tenths_sends_little_again(fleet: Fleet) -> None:
    checkpoint = fleet.look(None)
    host = SshHost(fleet.gpu)
    wire = fleet.wires["gpu"]
    cut_at: list[float] = []

    def progress(done: int, total: int) -> None:
        if done >= 0.9 * total and not cut_at:
            cut_at.append(time.monotonic())
            wire.cut()

    try:
        with sessions(host), pytest.raises(LinkError) as caught:
            checkpoints.stage(checkpoint, None, sys.executable, host, fleet.entry("cut"), progress)
        assert time.monotonic() - cut_at[0] < WITHIN_S
    finally:
        wire.heal()
    assert "goes on from there" in caught.value.hint
    assert fleet.arrived("cut") >= 0.5 * SIZE / CHUNK
    again = SshHost(fleet.gpu)
    before = fleet.passed("desk")["wire1"]
    lost = checkpoint.size - fleet.arrived("cut") * CHUNK
    with sessions(again):
        assert fleet.is_whole(checkpoints.stage(checkpoint, None, sys.executable, again, fleet.entry("cut")))
    assert fleet.passed("desk")["wire1"] - before <= 1.1 * lost + (1 << 20)


def test_a_client_that_is_killed_is_taken_up_by_the_next(fleet: Fleet) -> None:
    (fleet.folder / "inventory.yaml").write_text(
        f"hosts:\n  gpu: {{address: {fleet.gpu.address}, user: {fleet.gpu.user}, workdir: {fleet.folder}/killed,\n"
        f"    identity_file: {fleet.gpu.identity_files[0]}, known_hosts: {fleet.gpu.known_hosts[0]},\n"
        f"    python: {sys.executable}}}\n"
    )
    large = write_large(fleet.folder / "large", seed=SEED + 1, size=48 * CHUNK)
    argv = [sys.executable, "-m", "orchestrator", "ckpt", "stage", str(large), "--on", "gpu", "--json"]
    environment = {**os.environ, "HOME": str(fleet.folder), "PYTHONPATH": str(REPO)}
    chance = random.Random(SEED)  # noqa: S311
    seen = 0
    for _ in range(2):
        wanted = seen + chance.randint(4, 12)
        client = subprocess.Popen(argv, cwd=fleet.folder, env=environment, stdout=subprocess.DEVNULL)
        wait_until(lambda: fleet.arrived("killed") >= wanted or client.poll() is not None)  # noqa: B023
        client.send_signal(signal.SIGKILL)
        assert client.wait() == -signal.SIGKILL
        assert list((fleet.folder / "killed" / "checkpoints").glob("[0-9a-f]*")) == []
        time.sleep(0.3)  # what was on its way arrives
        seen = fleet.arrived("killed")
    before = fleet.passed("desk")["wire1"]
    done = subprocess.run(argv, cwd=fleet.folder, env=environment, capture_output=True, check=True)
    (row,) = json.loads(done.stdout)["staged"]
    assert (Path(row["path"]) / "model.safetensors").read_bytes() == (
        large / "model.safetensors"
    ).read_bytes()
    assert fleet.passed("desk")["wire1"] - before <= 1.1 * (48 - seen) * CHUNK + (1 << 20)


# --------------------------------------------------------------------------- from host to host


def stage_between(fleet: Fleet, work: str, **policy: Any) -> tuple[str, list[str], int]:
    """Stages from the training host. Returns the path, what was reported, and the bytes that passed the desk."""
    gpu, train = SshHost(fleet.gpu), SshHost(policy.pop("train", fleet.train))
    said: list[str] = []
    with sessions(gpu, train):
        checkpoint = fleet.look(train)
        before = sum(fleet.passed("desk").values())
        path = checkpoints.stage(
            checkpoint, train, sys.executable, gpu, fleet.entry(work, **policy), report=said.append
        )
        return path, said, sum(fleet.passed("desk").values()) - before


def test_a_checkpoint_goes_from_host_to_host_and_not_through_the_desk(fleet: Fleet) -> None:
    fleet.keys.parent.mkdir(exist_ok=True)
    between = fleet.passed("train")["wire3"]
    path, said, passed = stage_between(fleet, "direct", one_off_key=True)
    assert fleet.is_whole(path)
    assert (said, fleet.keys.exists()) == ([], False)
    assert passed < 300_000
    assert fleet.passed("train")["wire3"] - between >= SIZE


def test_the_key_is_bound_to_these_files_and_leaves_the_other_lines_alone(fleet: Fleet) -> None:
    own = b"# mine\nssh-ed25519 AAAA somebody@elsewhere"  # without an end of line
    fleet.keys.parent.mkdir(exist_ok=True)
    fleet.keys.write_bytes(own)
    fleet.keys.chmod(0o640)
    lines: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            try:
                lines.update(line for line in fleet.keys.read_text().splitlines() if "orch-transfer-" in line)
            except FileNotFoundError:
                continue
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        path, said, _ = stage_between(fleet, "bound", one_off_key=True)
    finally:
        over.set()
        watcher.join()
    assert (fleet.is_whole(path), said) == (True, [])
    (line,) = lines
    assert line.startswith('restrict,expiry-time="20')
    assert ',command="' in line
    assert fleet.keys.read_bytes() == own + b"\n"
    assert fleet.keys.stat().st_mode & 0o777 == 0o640
    fleet.keys.unlink()


def test_without_leave_it_goes_through_the_desk_and_says_how_it_could_not(fleet: Fleet) -> None:
    path, said, passed = stage_between(fleet, "no-leave")
    assert fleet.is_whole(path)
    assert passed > 2 * SIZE
    assert len(said) == 1
    assert "goes through this machine: `one_off_key: true` of gpu in the inventory would let" in said[0]


def test_hosts_that_do_not_reach_each_other_use_the_desk(fleet: Fleet) -> None:
    fleet.ip("train", "route", "del", f"{fleet.gpu.address}/32")
    try:
        path, said, passed = stage_between(fleet, "apart", one_off_key=True)
    finally:
        fleet.ip("train", "route", "add", f"{fleet.gpu.address}/32", "via", "10.99.3.2")
    assert fleet.is_whole(path)
    assert passed > 2 * SIZE
    assert len(said) == 1
    assert f"{fleet.gpu.address}:22 does not answer it" in said[0]


def test_a_key_that_cannot_be_laid_down_is_told_and_the_desk_is_used(fleet: Fleet) -> None:
    ssh = fleet.keys.parent
    ssh.mkdir(exist_ok=True)
    ssh.rmdir()
    ssh.write_text("a file where the folder should be")
    try:
        path, said, _ = stage_between(fleet, "refused", one_off_key=True)
    finally:
        ssh.unlink()
    assert fleet.is_whole(path)
    assert len(said) == 1
    assert "its key could not be laid down" in said[0]


def test_a_key_that_is_not_let_in_is_taken_out_and_the_desk_is_used(fleet: Fleet) -> None:
    fleet.keys.parent.mkdir(exist_ok=True)
    fleet.keys.write_text("\n")  # nobody's key: such a file goes with ours
    elsewhere = replace(fleet.gpu, user="nobody-of-that-name")
    gpu, train = SshHost(fleet.gpu), SshHost(fleet.train)
    said: list[str] = []
    with sessions(gpu, train):
        gpu.connect()
        gpu.endpoint = elsewhere  # the open session goes on; another's ssh is told of the new name
        checkpoint = fleet.look(train)
        entry = fleet.entry("not-let-in", one_off_key=True)
        path = checkpoints.stage(checkpoint, train, sys.executable, gpu, entry, report=said.append)
    assert fleet.is_whole(path)
    assert len(said) == 1
    assert "its ssh was not let in: nobody-of-that-name@" in said[0]
    assert not fleet.keys.exists()


def test_a_cut_between_the_hosts_is_an_error_and_resumed(fleet: Fleet) -> None:
    gpu, train = SshHost(fleet.gpu), SshHost(fleet.train)
    wire, cut_at = fleet.wires["between"], []

    def progress(done: int, total: int) -> None:
        if done >= 0.5 * total and not cut_at:
            cut_at.append(time.monotonic())
            wire.cut()

    entry = fleet.entry("between", one_off_key=True)
    with sessions(gpu, train):
        checkpoint = fleet.look(train)
        try:
            with pytest.raises(LinkError, match="train → gpu") as caught:
                checkpoints.stage(checkpoint, train, sys.executable, gpu, entry, progress)
            assert time.monotonic() - cut_at[0] < WITHIN_S
            assert not fleet.keys.exists()
            assert fleet.visits() == []
        finally:
            wire.heal()
        assert "goes on from there" in caught.value.hint
        before, kept = fleet.passed("train")["wire3"], fleet.arrived("between")
        assert kept >= 8
        assert fleet.is_whole(checkpoints.stage(checkpoint, train, sys.executable, gpu, entry))
        assert fleet.passed("train")["wire3"] - before <= 1.1 * (checkpoint.size - kept * CHUNK) + (1 << 20)


def test_a_client_that_dies_while_its_key_stands_leaves_none(fleet: Fleet) -> None:
    """The holder on the host takes it out when its client is gone."""
    from orchestrator.hosts import remote

    fleet.keys.parent.mkdir(exist_ok=True)
    args = {
        "public": "ssh-ed25519 AAAA",
        "command": "true",
        "mark": "orch-transfer-" + "0" * 16,
        "seconds": 60,
    }
    host = SshHost(fleet.gpu)
    holder = remote.stream(host, "transfer_key", args, python=sys.executable)
    with closing(holder):
        assert next(holder) == b"ready\n"
        assert fleet.keys.exists()
        transport = host.transport()
        transport.sock.close()  # no goodbye
        wait_until(lambda: not fleet.keys.exists(), 10)
        host.close()
        with pytest.raises(LinkError):
            list(holder)


def test_a_one_off_key_can_do_one_thing_and_not_for_long(fleet: Fleet) -> None:
    from orchestrator.hosts import remote
    from orchestrator.hosts.introduce import make_key

    key = make_key()
    file = fleet.folder / "one-off"
    file.write_text(key.private)
    file.chmod(0o600)
    words = ["-o", f"UserKnownHostsFile={fleet.gpu.known_hosts[0]}", "-o", "BatchMode=yes"]
    ssh = ["ssh", "-F", "none", "-i", file, *words, f"{fleet.gpu.user}@{fleet.gpu.address}"]
    canary = fleet.folder / "canary"
    args = {"public": key.public, "command": 'echo "only this"', "mark": "orch-transfer-" + "1" * 16}
    host = SshHost(fleet.gpu)
    with sessions(host):
        holder = remote.stream(host, "transfer_key", {**args, "seconds": 4}, python=sys.executable)
        with closing(holder):
            assert next(holder) == b"ready\n"
            tried = subprocess.run([*ssh, "touch", canary], capture_output=True, check=False)
            assert tried.stdout == b"only this\n"
            assert not canary.exists()
            forward = subprocess.run([*ssh, "-N", "-W", "127.0.0.1:22"], capture_output=True, check=False)
            assert forward.returncode != 0
            list(holder)  # to its end, which comes by itself
        refused = subprocess.run([*ssh, "true"], capture_output=True, check=False)
        assert b"Permission denied" in refused.stderr


def test_a_key_that_a_dead_transfer_left_is_refused_in_time_and_taken_out_by_the_next(fleet: Fleet) -> None:
    overdue = f"ssh-ed25519 AAAA orch-transfer-{'2' * 16}-{int(time.time()) - 5}"
    young = f"ssh-ed25519 AAAA orch-transfer-{'3' * 16}-{int(time.time()) + 500}"
    fleet.keys.parent.mkdir(exist_ok=True)
    fleet.keys.write_text(f"{overdue}\n{young}\n")
    path, said, _ = stage_between(fleet, "after-a-dead-one", one_off_key=True)
    assert (fleet.is_whole(path), said) == (True, [])
    assert fleet.keys.read_text() == f"{young}\n"
    fleet.keys.unlink()


def test_a_destination_whose_host_key_is_not_the_one_on_record_gets_nothing(fleet: Fleet) -> None:
    wrong = fleet.folder / "wrong_known_hosts"
    other = fleet.train.known_hosts[0].read_text().split(" ", 1)[1]
    wrong.write_text(f"{fleet.gpu.known_as} {other}")
    gpu, train = SshHost(fleet.gpu), SshHost(fleet.train)
    said: list[str] = []
    with sessions(gpu, train):
        gpu.connect()
        gpu.endpoint = replace(fleet.gpu, known_hosts=(wrong,))  # as if another machine answered the source
        entry = fleet.entry("impostor", one_off_key=True)
        between = fleet.passed("train")["wire3"]
        path = checkpoints.stage(fleet.look(train), train, sys.executable, gpu, entry, report=said.append)
    assert fleet.is_whole(path)
    assert fleet.passed("train")["wire3"] - between < 100_000
    assert "Host key verification failed" in said[0]


def test_the_agent_is_used_where_it_may_be_lent(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    socket = fleet.folder / "agent.socket"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    try:
        wait_until(socket.exists)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        subprocess.run(["ssh-add", "-q", fleet.gpu.identity_files[0]], check=True)
        path, said, passed = stage_between(fleet, "agent", train=replace(fleet.train, forward_agent=True))
    finally:
        agent.terminate()
        agent.wait()
    assert fleet.is_whole(path)
    assert said == []
    assert passed < 300_000
