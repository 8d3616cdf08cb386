"""A host behind the OpenSSH program: the user's own open session where there is one, else one of ours.

What always holds: a session that the user opened by hand (ControlMaster, for hosts with a second factor) is used
and never closed; our own is private to this object and ends with it. Every hop is checked strictly, whatever
ssh's configuration allows, jump hosts too; nothing is ever asked. A program's exit code is what the host
reported of it: ssh's own 255 is never taken for one. A link that falls silent ends within DEAD_AFTER_S.
"""

from __future__ import annotations

import secrets
import shlex
import threading
from typing import TYPE_CHECKING

from orchestrator.errors import LinkError
from orchestrator.hosts.base import Completed, command_words
from orchestrator.hosts.control import NoSessionError, Session, begin_session, users_session
from orchestrator.hosts.linkfault import broken_link, closed_here, connect_retry, overdue, program_failed
from orchestrator.hosts.programs import ExpiredError, PipeEnd, pipe_program, run_program, stream_program
from orchestrator.hosts.sshwords import explain_words, is_host_key_fault

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

    from orchestrator.hosts.endpoint import Endpoint

__all__ = ["OpensshHost"]

# Runs a program and says on stderr, under a word that only we know, how it ended.
_REPORT = '"$@"; code=$?; printf "\\n%s %s\\n" "$0" "$code" >&2; exit $code'


class OpensshHost:
    """A machine behind the ssh program; see `Host`. `requests` and `connections` count as `SshHost`'s do.

    With `alone` it opens a session of its own, whatever the user has open. `ciphers` is a list for a session of its
    own, in the order of preference; None is ssh's own choice.
    """

    def __init__(self, endpoint: Endpoint, *, alone: bool = False, ciphers: str | None = None) -> None:
        self.endpoint = endpoint
        self._ciphers = ciphers
        self._alone = alone
        self.requests = 0
        self.connections = 0
        self._lock = threading.RLock()
        self._session: Session | None = None
        self._begun: Session | None = None
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

    def pipe(self, argv: Sequence[str], *, timeout: float = 60.0) -> Generator[PipeEnd, None, None]:
        """Runs a program and yields its stdout as one end of a pipe; it fails as `stream` does."""
        session = self._open()
        token, command = _reported(command_words(argv, None))
        try:
            end = yield from pipe_program([*session.client, command], silence=timeout, watch=session.watch)
        except ExpiredError as error:
            raise overdue(self.endpoint, argv, f"was silent for {timeout:g} s") from error
        done = self._ended(session, argv, token, end)
        if done.exit_code != 0:
            raise program_failed(self.endpoint, argv, done.exit_code, done.stderr)

    def connect(self) -> None:
        """Opens the session now. Raises LinkError."""
        self._open(count=False)

    def begin(self) -> None:
        """Begins to open a session of our own and does not wait for it.

        Raises:
            ConfigError: the ssh program is not installed.
        """
        with self._lock:
            if self._begun is None and self._session is None:
                self._begun = begin_session(self.endpoint, self._ciphers)

    def attempt(self) -> str:
        """Opens the session now if it can be done at the first try. Returns what ssh said if it cannot.

        Raises:
            LinkError: this host was closed.
        """
        try:
            self._open(count=False, insist=False)
        except NoSessionError as error:
            return error.words
        return ""

    def close(self) -> None:
        """Ends our own session, for good; the user's is left alone."""
        self._closed = True
        if self._lock.acquire(timeout=0.2):
            try:
                for session in (self._session, self._begun):
                    if session is not None:
                        session.end()
                self._session = self._begun = None
            finally:
                self._lock.release()

    def _open(self, *, count: bool = True, insist: bool = True) -> Session:
        with self._lock:
            if self._closed:
                raise closed_here(self.endpoint)
            if self._session is not None and not self._session.alive():
                self._session.end()
                self._session = None
            if self._session is None:
                self._session = self._new_session(insist)
                self.connections += 1
            self.requests += count
            return self._session

    def _new_session(self, insist: bool) -> Session:
        """Returns the user's session or one of ours that stands; whoever insists gets a LinkError, after more tries."""
        if not self._alone and (users := users_session(self.endpoint)):
            return users
        return connect_retry()(self._own_session_or_error) if insist else self._own_session()

    def _own_session_or_error(self) -> Session:
        try:
            return self._own_session()
        except NoSessionError as error:
            raise _refusal(self.endpoint, error.words) from error

    def _own_session(self) -> Session:
        session, self._begun = self._begun or begin_session(self.endpoint, self._ciphers), None
        try:
            session.stand(lambda: self._closed)
        except NoSessionError:
            if self._closed:
                raise closed_here(self.endpoint) from None
            raise
        return session

    def _ended(self, session: Session, argv: Sequence[str], token: str, done: Completed) -> Completed:
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


def _refusal(endpoint: Endpoint, words: str) -> LinkError:
    """Returns the error for an ssh program that could not open a session."""
    if is_host_key_fault(words):
        from orchestrator.hosts.ssh import SshHost
        from orchestrator.hosts.verify import check_host_key

        for hop in endpoint.hops():  # our own look gives file, line and remedy
            host = SshHost(hop)
            try:
                check_host_key(hop, host.fetch_host_key())
            except LinkError as error:
                return error
            finally:
                host.close()
    return explain_words(endpoint, words)
