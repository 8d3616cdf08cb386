"""A work folder on this machine with a fake payload release: real supervisors, no SSH, no torch."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import LinkError
from orchestrator.hosts.base import Completed
from orchestrator.hosts.local import LocalHost
from orchestrator.hosts.packed import START, unpack
from orchestrator.inventory import HostEntry
from orchestrator.launch import ProcessLauncher
from orchestrator.runs import Run, RunStore, Where
from orchestrator.runs.attached import AttachedRun
from remote_payload import durable, protocol
from remote_payload.supervise import processes
from tests.payload import fake_tree

RELEASE = "f" * 64


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Waits until something is so, and returns it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.03)
    raise AssertionError("it did not happen in time")


class FaultyHost:
    """A host whose link can be cut: before a request reaches it, or before its answer comes back."""

    def __init__(self, inner: LocalHost) -> None:
        self.inner = inner
        self.cut_before = 0
        self.cut_after = 0
        self.cut_streams = 0
        self.requests = 0
        self.greeting = b""
        self.spoil: Callable[[bytes], bytes] | None = None

    @property
    def name(self) -> str:
        return self.inner.name

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Iterable[bytes] = b"",
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> Completed:
        self.requests += 1
        if self.cut_before:
            self.cut_before -= 1
            raise LinkError(f"{self.name}: the link is down")
        done = self.inner.run(argv, stdin=stdin, env=env, timeout=timeout)
        if self.cut_after:
            self.cut_after -= 1
            raise LinkError(f"{self.name}: the link broke")
        return done

    def stream(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 60.0
    ) -> Iterator[bytes]:
        self.requests += 1
        data = b"".join(unpack(self.inner.stream(argv, env=env, timeout=timeout)))
        if self.cut_streams:
            self.cut_streams -= 1
            yield START + zlib.compress(data[: data.index(b'"file": "summary.json"')])
            raise LinkError(f"{self.name}: the link broke")
        yield self.greeting + START + zlib.compress(self.spoil(data) if self.spoil else data)

    def connect(self) -> None:
        """Is connected."""

    def close(self) -> None:
        self.inner.close()


class Desk:
    """A host, its launcher, a store of runs, and the jobs that were made here."""

    def __init__(self, root: Path, build: Callable[[Path], Path] = fake_tree.build, **host: Any) -> None:
        self.root = root
        self.workdir = root / "host" / "orch"
        fake_tree.seal(build(self.workdir / "releases" / RELEASE))
        (self.workdir / "current").symlink_to(f"releases/{RELEASE}")
        self.host = FaultyHost(LocalHost("box", root / "host"))
        import sys

        self.entry = HostEntry(
            name="box", address="nowhere", workdir=str(self.workdir), python=sys.executable, **host
        )
        self.launcher = ProcessLauncher(self.host, self.entry)
        self.store = RunStore(root / "project")
        self.made: list[str] = []

    def job(self, job_id: str, *tags: str, **more: Any) -> protocol.Job:
        self.made.append(job_id)
        return fake_tree.job(job_id, *tags, payload_hash=RELEASE, **more)

    def recorded(self, job_id: str, *tags: str, **more: Any) -> AttachedRun:
        """A run in the record that was not submitted."""
        run = self.store.create(
            self.job(job_id, *tags, **more), Where("box", str(self.workdir)), {"prompts.jsonl": b'{"id":1}\n'}
        )
        return self.attached(run)

    def attached(self, run: Run) -> AttachedRun:
        return AttachedRun(run, self.host, self.entry)

    def folder(self, job_id: str) -> Path:
        return self.workdir / "jobs" / job_id

    def state(self, job_id: str) -> str:
        path = self.folder(job_id) / "state.json"
        return str(durable.read_json(path)["state"]) if path.exists() else "none"

    def until(self, job_id: str, *states: str) -> None:
        wait_for(lambda: self.state(job_id) in states)

    def close(self) -> None:
        for job_id in self.made:
            assert processes.end_tagged(job_id, grace=0.0) == []
