"""A host behind the OpenSSH program: the user's own open session where there is one, else one of ours.

What always holds: a session that the user opened by hand (ControlMaster, for hosts with a second factor) is used
and never closed; our own is private to this object and ends with it. Every hop is checked strictly, whatever
ssh's configuration allows, jump hosts too; nothing is ever asked. A program's exit code is what the host
reported of it: ssh's own 255 is never taken for one. A link that falls silent ends within DEAD_AFTER_S.
"""

from __future__ import annotations

import math
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError, LinkError
from orchestrator.hosts.base import Completed, command_words
from orchestrator.hosts.known_hosts import host_pattern
from orchestrator.hosts.linkfault import (
    broken_link,
    closed_here,
    connect_retry,
    overdue,
    program_failed,
)
from orchestrator.hosts.programs import ExpiredError, StartError, run_program, stream_program
from orchestrator.hosts.ssh import SshHost
from orchestrator.hosts.sshconfig import followed_home
from orchestrator.hosts.sshwords import explain_words, is_host_key_fault
from orchestrator.hosts.verify import check_host_key
from orchestrator.hosts.watched import DEAD_AFTER_S, KEEPALIVE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from orchestrator.hosts.endpoint import Endpoint

__all__ = ["OpensshHost"]

# Runs a program and says on stderr, under a word that only we know, how it ended.
_REPORT = '"$@"; code=$?; printf "\\n%s %s\\n" "$0" "$code" >&2; exit $code'
# Holds an ssh program for as long as somebody holds our stdin, and takes its folder ($0) away after it: it does not
# outlive whoever started it, however that ended.
_HOLD = (
    'exec 3<&0; "$@" </dev/null 3<&- & ssh=$!; { read _ <&3; kill $ssh; rm -rf "$0"; } 2>/dev/null & '
    "wait $ssh; code=$?; kill $! 2>/dev/null; exit $code"
)
_LOOK_S = 0.25
_LOCAL_S = 10.0  # for questions to a control socket, which no network answers


class OpensshHost:
    """A machine behind the ssh program; see `Host`. `requests` and `connections` count as `SshHost`'s do."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.requests = 0
        self.connections = 0
        self._lock = threading.RLock()
        self._session: _Session | None = None
        self._closed = False

    @property
    def name(self) -> str:
        """The host's name in the inventory."""
        return self.endpoint.name

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Iterable[bytes] = b"",
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> Completed:
        """Runs a program to its end; see `Host.run`."""
        session = self._open()
        token, command = _reported(command_words(argv, env, timeout))
        try:
            done = run_program([*session.client, command], stdin=stdin, timeout=timeout, watch=session.watch)
        except ExpiredError as error:
            raise overdue(self.endpoint, argv, f"did not end within {timeout:g} s") from error
        return self._ended(session, argv, token, done)

    def stream(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 60.0
    ) -> Iterator[bytes]:
        """Runs a program and yields its stdout as it comes; see `Host.stream`."""
        session = self._open()
        token, command = _reported(command_words(argv, env))
        try:
            end = yield from stream_program([*session.client, command], silence=timeout, watch=session.watch)
        except ExpiredError as error:
            raise overdue(self.endpoint, argv, f"was silent for {timeout:g} s") from error
        done = self._ended(session, argv, token, end)
        if done.exit_code != 0:
            raise program_failed(self.endpoint, argv, done.exit_code, done.stderr)

    def connect(self) -> None:
        """Opens the session now. Raises LinkError."""
        self._open(count=False)

    def close(self) -> None:
        """Ends our own session, for good; the user's is left alone."""
        self._closed = True
        if self._lock.acquire(timeout=0.2):
            try:
                if self._session is not None:
                    self._session.end()
                    self._session = None
            finally:
                self._lock.release()

    def _open(self, *, count: bool = True) -> _Session:
        with self._lock:
            if self._closed:
                raise closed_here(self.endpoint)
            if self._session is not None and not self._session.alive():
                self._session.end()
                self._session = None
            if self._session is None:
                self._session = _users_session(self.endpoint) or connect_retry()(
                    _own_session, self.endpoint, lambda: self._closed
                )
                self.connections += 1
            self.requests += count
            return self._session

    def _ended(self, session: _Session, argv: Sequence[str], token: str, done: Completed) -> Completed:
        """Takes the report off a program's stderr; without one the link broke."""
        errors, found, report = done.stderr.rpartition(f"\n{token} ".encode())
        code, _, later = report.partition(b"\n")  # what it left running may have said something since
        if found and code.isdigit():
            return Completed(int(code), done.stdout, errors + later)
        if self._closed:
            raise closed_here(self.endpoint)
        raise broken_link(self.endpoint, argv, session.why() or done.error_text(300) or "ssh ended")


def _reported(words: Sequence[str]) -> tuple[str, str]:
    token = f"orch-end-{secrets.token_hex(8)}"
    return token, shlex.join(["sh", "-c", _REPORT, token, *words])


# --------------------------------------------------------------------------- sessions


class _Session:
    """A control socket, and the ssh program behind it if that is ours."""

    def __init__(self, endpoint: Endpoint, path: Path, master: subprocess.Popen[bytes] | None) -> None:
        self._path, self._master = path, master
        self._fault = ""
        self.client = [*_ssh(endpoint), "-S", str(path), "-T", "--", _destination(endpoint)]

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
        try:
            self._master.wait(2)
        except subprocess.TimeoutExpired:
            os.killpg(self._master.pid, signal.SIGKILL)
            self._master.wait()
        shutil.rmtree(self._path.parent, ignore_errors=True)


def _users_session(endpoint: Endpoint) -> _Session | None:
    """Returns the session that the user has open for this host, if there is one and it answers."""
    if endpoint.control_path is None or not Path(endpoint.control_path).exists():
        return None
    session = _Session(endpoint, Path(endpoint.control_path), None)
    try:
        checked = run_program([*session.client[:-2], "-O", "check", *session.client[-2:]], timeout=_LOCAL_S)
        if checked.exit_code != 0:
            return None
        pulse = run_program([*session.client, "true"], timeout=DEAD_AFTER_S)
    except ExpiredError:
        return None  # it hangs: a session of our own says what is wrong with the way
    return session if pulse.exit_code == 0 else None


def _own_session(endpoint: Endpoint, given_up: Callable[[], bool]) -> _Session:
    """Starts an ssh program that holds a session open.

    Raises:
        LinkError: it did not come to stand.
    """
    program, *options = _ssh(endpoint)
    folder = Path(tempfile.mkdtemp(prefix="orch-ssh-", dir="/tmp"))  # short: it is a socket's
    path = folder / "s"
    argv = [
        *(program, "-o", "LogLevel=INFO"),  # or it would not say that the link fell silent
        *options,
        *("-M", "-N", "-T", "-S", str(path), "-o", "ControlPersist=no"),
        *("-o", f"ServerAliveInterval={KEEPALIVE_S:.0f}"),
        *("-o", f"ServerAliveCountMax={DEAD_AFTER_S / KEEPALIVE_S - 1:.0f}"),
        *("--", _destination(endpoint)),
    ]
    with (folder / "log").open("wb") as log:
        master = subprocess.Popen(
            ["sh", "-c", _HOLD, str(folder), *argv],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    session = _Session(endpoint, path, master)
    hops = len(endpoint.hops())
    deadline = time.monotonic() + hops * endpoint.connect_timeout + 1
    while not path.exists():
        if master.poll() is not None or time.monotonic() > deadline or given_up():
            words = _last_words(folder) or "Connection timed out"
            session.end()
            if given_up():
                raise closed_here(endpoint)
            raise _refusal(endpoint, words)
        time.sleep(0.005)
    return session


def _last_words(folder: Path) -> str:
    try:
        return (folder / "log").read_text("utf-8", "replace").strip()[-1000:]
    except OSError:
        return ""


def _refusal(endpoint: Endpoint, words: str) -> LinkError:
    """Returns the error for an ssh program that could not open a session."""
    if is_host_key_fault(words):
        for hop in endpoint.hops():  # our own look gives file, line and remedy
            host = SshHost(hop)
            try:
                check_host_key(hop, host.fetch_host_key())
            except LinkError as error:
                return error
            finally:
                host.close()
    return explain_words(endpoint, words)


# --------------------------------------------------------------------------- the command line


def _ssh(endpoint: Endpoint) -> list[str]:
    """Returns the ssh program with everything that this hop and those before it need, but the destination."""
    program = shutil.which("ssh")
    if program is None:
        raise ConfigError(
            f"{endpoint.name}: `transport: openssh` needs the ssh program, which is not installed here",
            "install OpenSSH's client (openssh-client), or take the line out of the inventory",
        )
    argv = [program, *(("-F", "none") if endpoint.alias is None else followed_home())]
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "ClearAllForwardings": "yes",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "PermitLocalCommand": "no",
        "RemoteCommand": "none",
        "RequestTTY": "no",
        "ControlMaster": "no",
        "LogLevel": "ERROR",
        "ConnectTimeout": str(math.ceil(endpoint.connect_timeout)),
        "UserKnownHostsFile": " ".join(_quoted(path) for path in endpoint.known_hosts),
        "GlobalKnownHostsFile": "none",
        "HostName": endpoint.address.replace("%", "%%"),
        "Port": str(endpoint.port),
    }
    if endpoint.known_as != host_pattern(endpoint.address, endpoint.port):
        options["HostKeyAlias"] = endpoint.known_as
    if endpoint.user is not None:
        options["User"] = endpoint.user
    if endpoint.only_identity:
        options |= {"IdentitiesOnly": "yes", "IdentityAgent": "none"}
    if endpoint.gateway is not None:
        options["ProxyCommand"] = _through(endpoint.gateway, endpoint)
    argv += [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    for identity in endpoint.identity_files:
        argv += ["-o", f"IdentityFile={_quoted(identity)}"]
    return argv


def _through(gateway: Endpoint, endpoint: Endpoint) -> str:
    """The command that carries the session through a gateway: ssh's own ProxyJump would drop our options."""
    target = f"[{endpoint.address}]:{endpoint.port}"
    words = [*_ssh(gateway), "-W", target, "--", _destination(gateway)]
    return shlex.join(words).replace("%", "%%")


def _destination(endpoint: Endpoint) -> str:
    return endpoint.address if endpoint.alias is None else endpoint.alias


def _quoted(path: Path) -> str:
    """A file name as ssh's configuration takes it. Raises ConfigError for one that it would change."""
    text = str(path)
    if "${" in text:
        raise ConfigError(
            f"{path}: ssh would fill in a variable in this file name",
            "give the file another name, or a link to it",
        )
    for character in ("\\", '"'):
        text = text.replace(character, "\\" + character)
    return '"' + text.replace("%", "%%") + '"'
