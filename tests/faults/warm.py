"""`orch` kept warm: a process that has imported everything once, and of which each `orch` command is a fork.

`python -m tests.faults.warm` reads requests from stdin, a JSON object a line (`words`, the files `out` and `err`), and
writes `{"pid"}` for each, then `{"pid", "code"}` once it has ended (a code below zero is a signal's).

What always holds: a command is a process of its own, runs the program's own `main` and ends as any Python program
does; only the seconds of its imports are saved.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["WarmOrch"]

_MODULES = (
    "fabric",
    "orchestrator.__main__",
    "orchestrator.cli.main",
    "orchestrator.cli.watching",
    "orchestrator.compare.digest",
    "orchestrator.evaluation",
    "orchestrator.evaluation.outcome",
    "orchestrator.hosts.ssh",
    "orchestrator.payload",
    "orchestrator.payload.check",
    "orchestrator.releases",
    "orchestrator.runs.attached",
    "paramiko.transport",
    "rich.console",
    "tenacity",
)


class WarmOrch:
    """The process, for whoever types commands. `pid` is its own.

    Args:
        prefix: what it is started through (`ip netns exec …`).
        cwd: where the commands run.
        environment: their environment.
    """

    def __init__(self, prefix: list[str], cwd: Path, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.faults.warm"],
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._news = threading.Condition()
        self._started: list[int] = []
        self._codes: dict[int, int] = {}
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            record = json.loads(line)
            with self._news:
                if "code" in record:
                    self._codes[record["pid"]] = record["code"]
                else:
                    self._started.append(record["pid"])
                self._news.notify_all()

    def start(self, words: list[str], out: Path, err: Path) -> int:
        """Starts a command and returns its pid."""
        assert self._process.stdin is not None
        request = {"words": words, "out": str(out), "err": str(err)}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        with self._news:
            assert self._news.wait_for(lambda: self._started, 60), "the warm process does not answer"
            pid = self._started.pop()
            self._codes.pop(pid, None)
            return pid

    def code(self, pid: int, seconds: float = 0.0) -> int | None:
        """Returns a command's exit code; None if it has not ended after so many seconds."""
        with self._news:
            self._news.wait_for(lambda: pid in self._codes, seconds)
            return self._codes.get(pid)

    def close(self) -> None:
        """Ends it, and the commands that still run."""
        with self._process:
            self._process.kill()
            self._reader.join(10.0)


def _serve() -> dict[str, Any] | None:
    """Forks for each request. Returns the request in the fork; None, in the process itself, at the end of stdin."""
    bell, ring = os.pipe()
    for end in (bell, ring):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(ring)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    held = b""
    while True:
        ready, _, _ = select.select([0, bell], [], [])
        if bell in ready:
            os.read(bell, 4096)
            _reap()
        if 0 not in ready:
            continue
        piece = os.read(0, 65536)
        if not piece:
            return None
        *lines, held = (held + piece).split(b"\n")
        for line in lines:
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.close(bell)
                os.close(ring)
                return dict(json.loads(line))
            _say(pid=pid)


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _say(pid=pid, code=os.waitstatus_to_exitcode(status))


def _say(**record: int) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def _become(request: Mapping[str, Any]) -> None:
    """Makes this process the command: its session, its streams, its arguments."""
    os.setsid()
    for descriptor, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, request["err"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        opened = os.open(path, flags, 0o644)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.argv = ["orch", *request["words"]]


if __name__ == "__main__":
    for name in _MODULES:
        importlib.import_module(name)
    asked = _serve()
    if asked is not None:
        _become(asked)
        importlib.import_module("orchestrator.__main__").main()
