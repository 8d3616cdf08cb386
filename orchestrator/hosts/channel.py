"""One exec request on an open SSH session: bytes in, bytes out, an exit code, within a deadline.

What always holds: both streams are drained while stdin is fed, so neither can fill its window and stop the
other; a program that ends without reading its stdin still gives its exit code and output; whoever waits,
waits against a monotonic deadline, and a guard closes the session if even the waiting is stuck.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from paramiko.agent import AgentRequestHandler
    from paramiko.channel import Channel
    from paramiko.transport import Transport

__all__ = ["BrokenLinkError", "DeadlineError", "Exec"]

_PIECE = 64 * 1024
_PACKET = 32 * 1024
_TICK = 1.0  # how often a blocked read or write looks up; it delays nothing that arrives
_BUSY_S = 0.2  # how long to wait before a host that takes no further program is asked again
_GRACE = 2.0  # how long after the deadline the guard waits before it closes the whole session
_ERROR_TAIL = 64 * 1024


class BrokenLinkError(Exception):
    """The session ended before the program's exit code arrived; what became of it is not known."""


class DeadlineError(Exception):
    """The deadline passed first."""


class _Drain(threading.Thread):
    """Reads one stream of a channel to its end; with a limit it keeps only the last bytes."""

    def __init__(self, read: Callable[[int], bytes], limit: int | None = None) -> None:
        super().__init__(daemon=True)
        self._read = read
        self._limit = limit
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self.start()

    def run(self) -> None:
        while True:
            try:
                piece = self._read(_PIECE)
            except TimeoutError:
                continue
            except (OSError, EOFError):
                return
            if not piece:
                return
            self._pieces.append(piece)
            self._size += len(piece)
            while self._limit is not None and self._size - len(self._pieces[0]) > self._limit:
                self._size -= len(self._pieces.popleft())

    @property
    def data(self) -> bytes:
        return b"".join(self._pieces)


class Exec:
    """A program started on the other side.

    Raises:
        BrokenLinkError, DeadlineError: from the constructor and from every method that waits.
    """

    def __init__(self, transport: Transport, line: str, timeout: float, *, lend_agent: bool = False) -> None:
        self._transport = transport
        self._deadline = time.monotonic() + timeout
        self._agent: AgentRequestHandler | None = None
        with self._guarded():
            self._channel = self._open(timeout)
            self._channel.settimeout(_TICK)
            if lend_agent:
                self._lend_agent()
            self._start(line)

    def _open(self, timeout: float) -> Channel:
        """Opens a channel; where the host takes no further one (MaxSessions), as soon as another has ended."""
        from paramiko.ssh_exception import SSHException

        while True:
            try:
                return self._transport.open_session(timeout=min(timeout, self._transport.channel_timeout))
            except (SSHException, OSError, EOFError) as error:
                self._check_deadline()
                why = f"no channel could be opened ({error or type(error).__name__})"
                if not self._transport.is_active():
                    raise BrokenLinkError(why) from error
                if "Timeout" in str(error):
                    self._transport.close()  # a session that does not open a channel in time is dead
                    raise BrokenLinkError(why) from error
                # Refused. paramiko tells only one of several threads the reason.
                if time.monotonic() + _BUSY_S >= self._deadline:
                    raise BrokenLinkError(
                        f"the host takes no further program on this session ({error})"
                    ) from error
                time.sleep(_BUSY_S)

    def _lend_agent(self) -> None:
        from paramiko.agent import AgentRequestHandler
        from paramiko.ssh_exception import SSHException

        try:
            self._agent = AgentRequestHandler(self._channel)
        except (SSHException, OSError, EOFError) as error:
            raise BrokenLinkError(f"the agent could not be lent ({error})") from error

    def _start(self, line: str) -> None:
        from paramiko.ssh_exception import SSHException

        try:
            self._channel.exec_command(line)
        except (SSHException, OSError, EOFError) as error:
            self._channel.close()
            self._check_deadline()
            raise BrokenLinkError(f"the command was not taken ({error or type(error).__name__})") from error

    def run(self, stdin: Iterable[bytes]) -> tuple[int, bytes, bytes]:
        """Feeds stdin, waits for the end, and returns exit code (-1: died of a signal), stdout and stderr."""
        out, err = _Drain(self._channel.recv), _Drain(self._channel.recv_stderr)
        with self._guarded():
            try:
                self._feed(stdin)
                for stream in (out, err):
                    stream.join(self._left())
                    if stream.is_alive():
                        raise DeadlineError
                return self._exit_code(self._left()), out.data, err.data
            finally:
                self._channel.close()

    def stream(self, silence: float) -> Iterator[bytes]:
        """Yields stdout as it comes; afterwards `finish` has the exit code. `silence` limits each wait."""
        self._errors = _Drain(self._channel.recv_stderr, _ERROR_TAIL)
        try:
            self._channel.shutdown_write()
            self._channel.settimeout(silence)
            while piece := self._channel.recv(_PIECE):
                yield piece
        except TimeoutError as error:
            raise DeadlineError from error
        except (OSError, EOFError) as error:
            raise BrokenLinkError(str(error) or type(error).__name__) from error

    def finish(self, silence: float) -> tuple[int, bytes]:
        """Returns the exit code of a streamed program and the end of its stderr."""
        self._errors.join(silence)
        return self._exit_code(silence), self._errors.data

    def close(self) -> None:
        """Lets go of the program; what it does next is its own business."""
        if self._agent is not None:
            self._agent.close()
        with self._guarded():
            self._channel.close()

    def _feed(self, stdin: Iterable[bytes]) -> None:
        pieces = iter(stdin)
        try:
            for piece in pieces:
                if not self._send(piece):
                    break
        finally:
            close = getattr(pieces, "close", None)
            if close is not None:
                close()
        try:
            self._channel.shutdown_write()
        except (OSError, EOFError):
            return  # the program or the link is gone: the exit code tells which

    def _send(self, piece: bytes) -> bool:
        """Sends all of a piece; False once nobody reads any more."""
        sent = 0
        while sent < len(piece):
            try:
                count = self._channel.send(piece[sent : sent + _PACKET])
            except TimeoutError:
                self._check_deadline()
                continue
            except (OSError, EOFError):
                return False
            if count == 0:
                return False
            sent += count
            self._check_deadline()
        return True

    def _exit_code(self, wait: float) -> int:
        channel = self._channel
        if not channel.status_event.wait(wait):
            raise DeadlineError
        code: int = channel.exit_status
        if code != -1:
            return code
        # Either the server closed the channel (a signal) or the session ended, whose thread then does too.
        self._transport.join(0.2)
        if not self._transport.is_active():
            raise BrokenLinkError("the session ended before the exit code arrived")
        return code

    def _left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _check_deadline(self) -> None:
        if time.monotonic() >= self._deadline:
            raise DeadlineError

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        guard = threading.Timer(self._left() + _GRACE, self._transport.close)
        guard.daemon = True
        guard.start()
        try:
            yield
        finally:
            guard.cancel()
