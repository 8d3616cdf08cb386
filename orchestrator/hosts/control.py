"""Sessions of the ssh program that many programs share: the user's own, or one that we open (ControlMaster).

What always holds: the user's session is used and left alone; ours ends with whoever started it, however that ended,
and leaves no file. A session of ours that falls silent ends within DEAD_AFTER_S, and what runs on it with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.hosts.programs import ExpiredError, StartError, run_program
from orchestrator.hosts.sshcommand import destination, ssh_command
from orchestrator.hosts.watched import DEAD_AFTER_S, KEEPALIVE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from orchestrator.hosts.endpoint import Endpoint

__all__ = ["NoSessionError", "Session", "begin_session", "users_session"]

# Holds an ssh program for as long as somebody holds our stdin, and takes its folder ($0) away after it: it does not
# outlive whoever started it, however that ended.
_HOLD = (
    'exec 3<&0; "$@" </dev/null 3<&- & ssh=$!; { read _ <&3; rm -rf "$0"; kill $ssh; } 2>/dev/null & '
    "wait $ssh; code=$?; kill $! 2>/dev/null; exit $code"
)
_LOOK_S = 0.25
_LOCAL_S = 10.0  # for questions to a control socket, which no network answers
_SOON_S = 0.002
_END_S = 2.0


class NoSessionError(Exception):
    """A session did not come to stand; `words` is what ssh said."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.words = words


class Session:
    """A control socket, and the ssh program behind it if that is ours."""

    def __init__(
        self, endpoint: Endpoint, path: Path, master: subprocess.Popen[bytes] | None, deadline: float = 0.0
    ) -> None:
        self._path, self._master, self._deadline = path, master, deadline
        self._fault = ""
        self.client = [*ssh_command(endpoint), "-S", str(path), "-T", "--", destination(endpoint)]

    def stand(self, given_up: Callable[[], bool]) -> None:
        """Waits until the session can be used.

        Raises:
            NoSessionError: it could not be opened, not in time, or nobody wants it any more; it has been ended.
        """
        started = time.monotonic()
        while not self._path.exists():
            gone = self._master is None or self._master.poll() is not None
            if gone or time.monotonic() > self._deadline or given_up():
                words = _last_words(self._path.parent) or "Connection timed out"
                self.end()
                raise NoSessionError(words)
            time.sleep(min(_LOOK_S, max(_SOON_S, 0.01 * (time.monotonic() - started))))

    def alive(self) -> bool:
        """Says whether the session can still be used."""
        return not self._fault and (self._master is None or self._master.poll() is None)

    def why(self) -> str:
        """Returns why it ended, once that is known."""
        if self._master is not None and not self._fault:
            with suppress(subprocess.TimeoutExpired):
                self._master.wait(1)  # its own watch ends it a moment after what ran on it
                self._fault = _last_words(self._path.parent) or "the ssh program ended"
        return self._fault

    @contextmanager
    def watch(self, kill: Callable[[], None]) -> Iterator[None]:
        """Guards a program that runs on this session: it ends with it.

        Left alone, ssh would try a connection of its own then. The user's session, which may have no watch of its
        own, is asked for a sign of life now and then.
        """
        over = threading.Event()
        look, pause = (self._ask, KEEPALIVE_S) if self._master is None else (self._has_ended, _LOOK_S)

        def guard() -> None:
            while not over.wait(pause):
                if look():
                    kill()
                    return

        threading.Thread(target=guard, name="orch-guard", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _ask(self) -> bool:
        try:
            run_program([*self.client, "true"], timeout=DEAD_AFTER_S - KEEPALIVE_S)
        except (ExpiredError, StartError):
            self._fault = f"no sign of life for {DEAD_AFTER_S:.0f} s"
        return bool(self._fault)

    def _has_ended(self) -> bool:
        return self._master is not None and self._master.poll() is not None

    def end(self) -> None:
        """Ends our own ssh program and takes its socket away."""
        if self._master is None:
            return
        if self._master.stdin is not None:
            self._master.stdin.close()
        force = threading.Timer(_END_S, os.killpg, (self._master.pid, signal.SIGKILL))
        force.daemon = True
        force.start()
        self._master.wait()  # without a time limit, which would look only now and then
        force.cancel()
        shutil.rmtree(self._path.parent, ignore_errors=True)


def users_session(endpoint: Endpoint) -> Session | None:
    """Returns the session that the user has open for this host, if there is one and it answers."""
    if endpoint.control_path is None or not Path(endpoint.control_path).exists():
        return None
    session = Session(endpoint, Path(endpoint.control_path), None)
    try:
        checked = run_program([*session.client[:-2], "-O", "check", *session.client[-2:]], timeout=_LOCAL_S)
        if checked.exit_code != 0:
            return None
        pulse = run_program([*session.client, "true"], timeout=DEAD_AFTER_S)
    except ExpiredError:
        return None  # it hangs: a session of our own says what is wrong with the way
    return session if pulse.exit_code == 0 else None


def begin_session(endpoint: Endpoint, ciphers: str | None = None) -> Session:
    """Starts an ssh program that opens a session and holds it. It does not wait for it: `Session.stand` does.

    `ciphers` are those to ask for, in this order; None is ssh's own choice.
    """
    program, *options = ssh_command(endpoint)
    folder = Path(tempfile.mkdtemp(prefix="orch-ssh-", dir="/tmp"))  # short: it is a socket's
    path = folder / "s"
    argv = [
        *(program, "-o", "LogLevel=INFO"),  # or it would not say that the link fell silent
        *options,
        *("-M", "-N", "-T", "-S", str(path), "-o", "ControlPersist=no"),
        *("-o", f"ServerAliveInterval={KEEPALIVE_S:.0f}"),
        *("-o", f"ServerAliveCountMax={DEAD_AFTER_S / KEEPALIVE_S - 1:.0f}"),
        *(("-o", f"Ciphers={ciphers}") if ciphers else ()),
        *("--", destination(endpoint)),
    ]
    with (folder / "log").open("wb") as log:
        master = subprocess.Popen(
            ["sh", "-c", _HOLD, str(folder), *argv],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + len(endpoint.hops()) * endpoint.connect_timeout + 1
    return Session(endpoint, path, master, deadline)


def _last_words(folder: Path) -> str:
    try:
        return (folder / "log").read_text("utf-8", "replace").strip()[-1000:]
    except OSError:
        return ""
