"""A desk and a host with a slow wire between them: real sshd, the real `orch`, and what runs on both sides.

What always holds: every process of either side is in that side's network namespace, so what a command has left
running anywhere is found without knowing its name; a site leaves no process, namespace or file behind.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from remote_payload.supervise.lockdir import LockDir
from tests.faults.goods import write_payload
from tests.faults.requests import RequestLog
from tests.faults.warm import WarmOrch
from tests.orchestrator.netns import Lab, lab
from tests.orchestrator.ssh_servers import SSHD, wait_for_word
from tests.payload.fake_smi import FakeSmi

__all__ = ["HOST", "Command", "Site", "opened_site"]

HOST = "gpu"
_REPO = Path(__file__).resolve().parents[2]
_DELAY_MS, _MBIT = 2, 32
_CONNECT_S = 6.0
_PAYLOAD_BYTES = 1_200_000


class Command:
    """An `orch` command at the desk, as a process: what it said and how it ended. `words` are its arguments."""

    def __init__(self, orch: WarmOrch, words: Sequence[str], said: Path) -> None:
        self.words, self._orch = list(words), orch
        self._said = [said.with_suffix(f".{stream}") for stream in ("out", "err")]
        for path in self._said:
            path.touch()
        self._pid = orch.start(self.words, *self._said)

    @property
    def stdout(self) -> str:
        return self._said[0].read_text(encoding="utf-8")

    @property
    def stderr(self) -> str:
        return self._said[1].read_text(encoding="utf-8")

    def runs(self) -> bool:
        return self._orch.code(self._pid) is None

    def kill(self) -> bool:
        """Ends it with no word; False if it had ended."""
        if not self.runs():
            return False
        _kill(self._pid)
        return self._orch.code(self._pid, 10.0) == -signal.SIGKILL

    def wait(self, seconds: float) -> int | None:
        """Returns its exit code; None if it does not end, whereupon it is killed."""
        code = self._orch.code(self._pid, seconds)
        if code is None:
            self.kill()
        return code


class Site:
    """The desk, the host, and the wire between them.

    `within` is for whoever strikes: how long each phase has lately been, in seconds.
    """

    def __init__(self, root: Path, code: Path, stack: ExitStack) -> None:
        self.root, self.project = root, root / "project"
        for folder in (self.project, root / "person", root / "net"):
            folder.mkdir()
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("ORCH_", "SSH_", "XDG_"))}
        environment.update(HOME=str(root / "person"), PYTHONPATH=f"{code}:{_REPO}", NO_COLOR="1")
        asked = [sys.executable, "-m", "tests.faults.requests"]
        answer = subprocess.run(asked, cwd=root, env=environment, check=True, capture_output=True)
        self.requests = RequestLog(root, json.loads(answer.stdout))
        self._lab: Lab = stack.enter_context(lab(root / "net"))
        self._wire = self._lab.wire("desk", HOST, _DELAY_MS, _MBIT)
        self._endpoint = self._lab.serve(HOST, settings=self.requests.setting)
        (self._server,) = self._on_host()
        stack.callback(self._end_all)
        self.smi = FakeSmi(root / "bin", 1)
        self.workdir = root / "net" / HOST / "home" / "orch"
        self.payload = write_payload(root / "payload", random.Random(root.name), _PAYLOAD_BYTES)  # noqa: S311
        (self.project / "prompts.jsonl").write_text('{"id": "p", "text": "x"}\n', encoding="ascii")
        self.within: dict[str, float] = {}
        self._commands = 0
        self._orch = WarmOrch(["ip", "netns", "exec", self.desk], self.project, environment)
        stack.callback(self._orch.close)

    @property
    def desk(self) -> str:
        """The desk's network namespace."""
        return self._lab.namespace("desk")

    @property
    def where(self) -> str:
        """The host as messages have to name it."""
        return f"{HOST} ({self._endpoint.where})"

    # ---------------------------------------------------------------- the person

    def tell_worker(self, *tags: str) -> None:
        """Writes the inventory; the workers of jobs that are started from now on do what the tags say."""
        host = {
            "address": self._endpoint.address,
            "user": self._endpoint.user,
            "identity_file": str(self._endpoint.identity_files[0]),
            "known_hosts": str(self._endpoint.known_hosts[0]),
            "roles": ["inference"],
            "workdir": str(self.workdir),
            "python": sys.executable,
            "lock_dir": str(self.root / "locks"),
            "connect_timeout": _CONNECT_S,
            "env": {
                "PATH": self.smi.path(),
                "CUDA_VISIBLE_DEVICES": "0",
                "ORCH_TEST_TAGS": " ".join(tags),
            },
        }
        document = {
            "defaults": {"target": "t", "suite": "s"},
            "hosts": {HOST: host},
            "targets": {"t": {"path": "/nowhere"}},
            "suites": {"s": {"prompts": "prompts.jsonl", "max_new_tokens": 8, "shapes": ["chain"]}},
        }
        (self.project / "inventory.yaml").write_text(json.dumps(document, indent=1), encoding="utf-8")

    def start(self, *words: str) -> Command:
        """Types an `orch` command at the desk."""
        self._commands += 1
        return Command(self._orch, words, self.root / f"command-{self._commands}")

    def recorded(self) -> set[str]:
        """Returns the runs that are on record at the desk."""
        folder = self.project / "runs"
        return {path.name for path in folder.glob("[!.]*")} if folder.is_dir() else set()

    # ---------------------------------------------------------------- faults

    def cut_wire(self) -> None:
        """From now on nothing passes, and nobody is told."""
        self._wire.cut()

    def heal_wire(self) -> None:
        self._wire.heal()

    def set_interface(self, state: str) -> None:
        """Takes the desk's end of the wire `down` or `up`, as when a cable is pulled."""
        subprocess.run(["ip", "-n", self.desk, "link", "set", self._wire.interface, state], check=True)

    def reset_connections(self) -> None:
        """Forgets all connections at the host, which tells the desk so, as a firewall that starts anew does."""
        argv = ["ip", "netns", "exec", self._lab.namespace(HOST), "ss", "-K", "sport = :22"]
        subprocess.run(argv, check=True, capture_output=True)

    def stop_server(self) -> None:
        """Kills sshd and all of its sessions; what they started is not touched."""
        for pid in self._on_host():
            if _program(pid) == "sshd":
                _kill(pid)

    def start_server(self) -> None:
        """Starts sshd as it was."""
        folder = self.root / "net" / HOST
        assert SSHD is not None
        log = folder / "sshd-again.log"
        with log.open("wb") as stream:
            argv = ["ip", "netns", "exec", self._lab.namespace(HOST), SSHD, "-D", "-e", "-f"]
            process = subprocess.Popen([*argv, folder / "sshd_config"], stderr=stream)
        self._server = process.pid
        wait_for_word(log, "Server listening")

    # ---------------------------------------------------------------- what runs

    def left_running(self, seconds: float) -> list[str]:
        """Returns what runs on either side, other than sshd itself, once it had some time to end."""
        deadline = time.monotonic() + seconds
        while True:
            found = [("desk", pid) for pid in _pids(self.desk) if pid != self._orch.pid]
            found += [(HOST, pid) for pid in self._on_host() if pid != self._server]
            if not found or time.monotonic() > deadline:
                return [f"{side}: pid {pid}: {_words(pid)}" for side, pid in found]
            time.sleep(0.3)

    def _on_host(self) -> list[int]:
        return [pid for pid in _pids(self._lab.namespace(HOST)) if pid != self._wire.pid]

    def _end_all(self) -> None:
        for pid in [*_pids(self.desk), *self._on_host()]:
            _kill(pid)

    def kept_locks(self) -> list[str]:
        """Returns what is locked on the host, and who is in line."""
        folder = LockDir(self.root / "locks", shared=True)
        try:
            line = [f"still in line: {ticket}" for ticket in folder.line()]
            return line + [f"{u} is still taken" for u in self.smi.uuids if folder.holder(u) is not None]
        finally:
            folder.close()


def _pids(namespace: str) -> list[int]:
    done = subprocess.run(["ip", "netns", "pids", namespace], check=True, capture_output=True, text=True)
    return [int(word) for word in done.stdout.split() if _program(int(word))]


def _program(pid: int) -> str:
    """Returns the name of a process; empty if it has ended."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition(" (")[2].rpartition(") ")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if rest.startswith("Z") else name


def _words(pid: int) -> str:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return "it has just ended"
    return " ".join(word[:60] for word in line.decode("utf-8", "replace").split("\0"))[:300]


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextmanager
def opened_site(code: Path = _REPO) -> Iterator[Site]:
    """A site that is taken down at the end; `code` is where the person's `orchestrator` is from."""
    root = Path(tempfile.mkdtemp(prefix="orch-site-"))
    try:
        with ExitStack() as stack:
            yield Site(root, code, stack)
    finally:
        shutil.rmtree(root, ignore_errors=True)
