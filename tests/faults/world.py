"""A host, its jobs and a client, on which faults are let loose: the real launcher, supervisor, protocol and record.

What always holds: the worker needs the standard library only, everything else is what a real host has; a world leaves
no process, mount or file behind.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import struct
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.runs.attached import AttachedRun
from remote_payload import durable, protocol
from remote_payload.supervise import processes
from tests.orchestrator.desk import Desk
from tests.payload import fake_tree
from tests.payload.fake_smi import FakeSmi

__all__ = ["Case", "World", "opened"]

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SHIM = Path(__file__).with_name("clock_shim.c")
_SMALL_DISK = "12m"
_FORKS = 0.2
"""The share of jobs whose worker leaves a child in a session of its own, which ignores TERM."""


@dataclass
class Case:
    """One job of a scenario, and what is known of it."""

    attached: AttachedRun
    total: int
    kept: list[dict[str, Any]] = field(default_factory=list)

    @property
    def job_id(self) -> str:
        return self.attached.run.job_id


class World:
    """One host with one GPU. Jobs have ids of their own, so that worlds do not meet.

    Args:
        root: an empty folder.
        small_disk: whether the host's disk is a file system of a few MiB (needs root).
    """

    pace = 1.0
    """How many times longer everything takes than with the worker of the standard library."""

    jobs = 2
    """How many jobs a scenario has: the struck one and a bystander, or the struck one alone."""

    def __init__(self, root: Path, *, small_disk: bool = False) -> None:
        self.root = root
        self.smi = FakeSmi(root / "bin", 1)
        self._mounts: list[Path] = []
        host = root / "desk" / "host"
        host.mkdir(parents=True)
        if small_disk:
            self._mount("-t", "tmpfs", "-o", f"size={_SMALL_DISK}", "tmpfs", at=host)
        env = {"PATH": self.smi.path(), "CUDA_VISIBLE_DEVICES": "0"}
        self.desk = Desk(root / "desk", self.build, lock_dir=str(root / "locks"), env=env)
        self._clock: Path | None = None
        self._filler = host / "FILL"

    def build(self, root: Path) -> Path:
        """Makes the payload's tree."""
        return fake_tree.build(root)

    def _mount(self, *words: str, at: Path) -> None:
        subprocess.run(["mount", *words, str(at)], check=True, capture_output=True)
        self._mounts.append(at)

    # ---------------------------------------------------------------- jobs

    def new_case(self, rng: random.Random, *, slow: bool = False) -> Case:
        """Records a job, not yet submitted: of a second, or of some. Its limits are far longer than it needs."""
        job_id, total = f"fault-{uuid.uuid4().hex[:12]}", rng.randint(4, 9)
        pause = rng.uniform(0.5, 0.8) if slow else rng.uniform(0.03, 0.12)
        tags = [f"rows={total}", f"pause={pause}", "tail=0.3"]
        if rng.random() < _FORKS:
            tags.append("fork")
        return Case(self.desk.recorded(job_id, *tags, timeout_s=120.0, stall_s=60.0), total)

    def wrong_rows(self, case: Case, rows: list[dict[str, Any]]) -> list[str]:
        """Says what is wrong with the rows of a job that is done."""
        numbers = [row["row"] for row in rows]
        if numbers != list(range(case.total)):
            return [f"there are rows {numbers}, not 0 to {case.total - 1} once each"]
        writers = [row["pid"] for row in rows]
        if len(set(writers)) != 1 + sum(one != two for one, two in itertools.pairwise(writers)):
            return [f"two workers wrote at once: {writers}"]
        return []

    def folder(self, case: Case) -> Path:
        return self.desk.folder(case.job_id)

    def rows(self, case: Case) -> list[dict[str, Any]]:
        """Returns the whole rows that are on the host's disk now."""
        return list(durable.iter_jsonl(self.folder(case) / "rows.jsonl"))

    def phase(self, case: Case) -> str:
        """Returns how far a job has come: launch, queue, run, end (all rows are there), or over."""
        state = self.desk.state(case.job_id)
        if state in protocol.TERMINAL_STATES:
            return "over"
        if state == "running":
            return "end" if len(self.rows(case)) >= case.total else "run"
        return "queue" if state == "queued" else "launch"

    def supervisor(self, case: Case) -> int | None:
        """Returns the pid of a job's supervisor, if there is one."""
        return self._process(case, b"supervise", b"run")

    def _process(self, case: Case, *words: bytes) -> int | None:
        for pid in processes.tagged(case.job_id):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if all(word in line for word in (b"remote_payload", *words)):
                return pid
        return None

    def worker(self, case: Case) -> int | None:
        """Returns the pid of a job's worker, if there is one."""
        return self._process(case, b"worker")

    # ---------------------------------------------------------------- faults

    def reboot(self, cases: list[Case]) -> int:
        """Kills all processes of the host at once (of its jobs, and what a client has running there) and gives it
        another boot id. Returns how many it killed.
        """
        boot = self.root / "boot_id"
        boot.write_text(f"{uuid.uuid4()}\n", encoding="ascii")
        if BOOT_ID not in self._mounts:
            self._mount("--bind", str(boot), at=BOOT_ID)
        killed = set()
        for _ in range(3):  # those that were being born, too
            for pid in {*_on_the_host(), *(pid for case in cases for pid in processes.tagged(case.job_id))}:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                killed.add(pid)
            time.sleep(0.02)
        return len(killed)

    def fill_disk(self) -> None:
        """Takes the last byte of the host's disk."""
        with self._filler.open("ab", buffering=0) as stream:
            piece = bytes(1 << 16)
            while piece:
                try:
                    stream.write(piece)
                except OSError:
                    piece = piece[: len(piece) // 2]

    def free_disk(self) -> None:
        """Gives the disk back."""
        self._filler.unlink(missing_ok=True)

    def jump_clock(self, seconds: float) -> None:
        """Moves the clock of the wall for every process of the host that started after the first call."""
        if self._clock is None:
            shim, self._clock = self.root / "clock_shim.so", self.root / "clock"
            argv = ["cc", "-shared", "-fPIC", "-O1", "-o", str(shim), str(_SHIM), "-ldl"]
            subprocess.run(argv, check=True, capture_output=True)
            self._clock.write_bytes(struct.pack("d", 0.0))
            os.environ.update(LD_PRELOAD=str(shim), ORCH_TEST_CLOCK=str(self._clock))
        with self._clock.open("r+b", buffering=0) as stream:
            stream.write(struct.pack("d", seconds))

    def close(self) -> list[int]:
        """Ends everything. Returns the pids of the jobs' processes that had to be ended."""
        for name in ("LD_PRELOAD", "ORCH_TEST_CLOCK"):
            if self._clock is not None:
                os.environ.pop(name, None)
        left = [pid for job_id in self.desk.made for pid in processes.tagged(job_id)]
        for job_id in self.desk.made:
            processes.end_tagged(job_id, grace=0.0)
        for path in reversed(self._mounts):
            subprocess.run(["umount", "-l", str(path)], check=True)
        for _ in range(3):  # a program that was just killed may have written a last file
            shutil.rmtree(self.root, ignore_errors=True)
        return left


def _on_the_host() -> list[int]:
    """Returns the pids of what clients have running on the host: descendants of this process, less the clients."""
    parents, clients = {}, {os.getpid()}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                if b"tests.faults.client" in (path / "cmdline").read_bytes():
                    clients.add(int(path.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    found: set[int] = set()
    while more := {pid for pid, parent in parents.items() if parent in clients | found} - found - clients:
        found |= more
    return sorted(found)


@contextmanager
def opened(root: Path, **options: Any) -> Iterator[World]:
    """A world that is closed at the end."""
    world = World(root, **options)
    try:
        yield world
    finally:
        world.close()
