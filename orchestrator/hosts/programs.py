"""Programs on this machine, fed and drained within a deadline.

What always holds: a program that outlives its deadline, or whose caller gives up, is killed with its whole
process group; one that stops reading its stdin early is no error (its exit code and output say what happened).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import signal
import subprocess
import threading
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, TypeAlias

from orchestrator.hosts.base import Completed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
    from pathlib import Path

__all__ = ["ExpiredError", "PipeEnd", "StartError", "Watch", "pipe_program", "run_program", "stream_program"]

Watch: TypeAlias = "Callable[[Callable[[], None]], contextlib.AbstractContextManager[None]]"
"""Makes a context that a program runs in, from a function that kills the program."""

_PIECE = 1 << 20
_PIPE_SIZE = 1 << 20  # what the kernel lets a plain user have; fewer switches between the programs
_ERROR_TAIL = 64 * 1024


class ExpiredError(Exception):
    """The deadline passed first; the program was killed."""


class StartError(Exception):
    """The program could not be started; `error` says why."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class PipeEnd:
    """A running program's stdout, to be passed into another program's stdin without passing through here.

    Among the pieces of a `stdin` it stands for all that comes until its end.
    """

    def __init__(self, descriptor: int, silence: float, count: Callable[[int], bool] | None = None) -> None:
        self._descriptor, self._silence = descriptor, silence
        self.count = count
        """Told the bytes of each step as they pass; False ends it."""
        self.fell_silent = False
        """Whether nothing came for `silence` seconds, so that it was given up."""
        self.cut_short = False
        """Whether `count` has ended it."""

    def pour(self, into: int) -> None:
        """Passes everything into a pipe. Raises BrokenPipeError if nobody reads any more."""
        _widen(self._descriptor)
        _widen(into)
        with selectors.DefaultSelector() as selector:
            selector.register(self._descriptor, selectors.EVENT_READ)
            while True:
                if not selector.select(self._silence):
                    self.fell_silent = True
                    return
                passed = self._step(into)
                if not passed:
                    return
                if self.count is not None and not self.count(passed):
                    self.cut_short = True
                    return

    def _step(self, into: int) -> int:
        if hasattr(os, "splice"):  # within the kernel
            return int(os.splice(self._descriptor, into, _PIECE))
        piece = os.read(self._descriptor, _PIECE)
        left = memoryview(piece)
        while left:
            left = left[os.write(into, left) :]
        return len(piece)


def run_program(
    argv: Sequence[str],
    *,
    stdin: bytes | Iterable[bytes | PipeEnd] = b"",
    timeout: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    watch: Watch | None = None,
) -> Completed:
    """Runs a program to its end.

    Args:
        argv: the program and its arguments.
        stdin: what it reads.
        timeout: seconds for all of it.
        cwd: where it starts.
        env: its whole environment; None for ours.
        watch: what it runs in.

    Raises:
        StartError: it cannot be started.
        ExpiredError: the deadline passed.
    """
    process = _start(argv, subprocess.PIPE, cwd, env)
    expired = threading.Event()
    timer = threading.Timer(timeout, lambda: _expire(process, expired))
    timer.daemon = True
    timer.start()
    out, err = _Drain(process.stdout), _Drain(process.stderr)
    try:
        with watch(lambda: _kill(process)) if watch else contextlib.nullcontext():
            _feed(process, [stdin] if isinstance(stdin, bytes) else stdin)
            process.wait()
    except BaseException:
        _kill(process)
        process.wait()
        raise
    finally:
        timer.cancel()
        with contextlib.suppress(BrokenPipeError):
            _pipe(process.stdin).close()
        patience = 0.1 if expired.is_set() else 2.0
        stdout, stderr = out.result(patience), err.result(patience)
    if expired.is_set():
        raise ExpiredError
    return Completed(max(process.returncode, -1), stdout, stderr)


def stream_program(
    argv: Sequence[str],
    *,
    silence: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    watch: Watch | None = None,
) -> Generator[bytes, None, Completed]:
    """Yields a program's stdout as it comes and returns its end, with the last of its stderr.

    Raises:
        StartError: it cannot be started.
        ExpiredError: nothing came for `silence` seconds.
    """
    with _pouring(argv, cwd, env, watch) as program:
        yield from _pieces(program.process, silence)
    return program.end()


def pipe_program(
    argv: Sequence[str],
    *,
    silence: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    watch: Watch | None = None,
) -> Generator[PipeEnd, None, Completed]:
    """Yields a program's stdout, once, and returns its end after whoever got it has poured it out.

    Raises:
        StartError: it cannot be started.
        ExpiredError: nothing came for `silence` seconds.
    """
    with _pouring(argv, cwd, env, watch) as program:
        end = PipeEnd(_pipe(program.process.stdout).fileno(), silence)
        yield end
        if end.fell_silent:
            raise ExpiredError
        if end.cut_short:  # nobody wants the rest, nor to hear that it could not be written
            _kill(program.process)
        _pipe(program.process.stdout).close()
    return Completed(0, b"", b"") if end.cut_short else program.end()


@dataclass
class _Pouring:
    """A program whose stdout somebody takes as it comes. Once that is over: how it ended, the last of its stderr."""

    process: subprocess.Popen[bytes]
    errors: bytes = b""

    def end(self) -> Completed:
        """Returns how it ended; it has."""
        return Completed(max(self.process.returncode, -1), b"", self.errors)


@contextlib.contextmanager
def _pouring(
    argv: Sequence[str], cwd: Path | None, env: Mapping[str, str] | None, watch: Watch | None
) -> Generator[_Pouring, None, None]:
    """Runs a program in its watch, to its end; one whose reader gives up is killed."""
    process = _start(argv, subprocess.DEVNULL, cwd, env)
    program, stderr = _Pouring(process), _Drain(process.stderr, _ERROR_TAIL)
    try:
        with watch(lambda: _kill(process)) if watch else contextlib.nullcontext():
            yield program
            process.wait()
    finally:
        _kill(process)
        process.wait()
        program.errors = stderr.result()
        _pipe(process.stdout).close()


def _start(
    argv: Sequence[str], stdin: int, cwd: Path | None, env: Mapping[str, str] | None
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(argv),
            cwd=cwd,
            env=env,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise StartError(error) from error


class _Drain:
    """Reads a pipe to its end in a thread, so that a full one never stops the program."""

    def __init__(self, pipe: IO[bytes] | None, keep: int | None = None) -> None:
        self._pipe, self._keep, self._data = _pipe(pipe), keep, bytearray()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._pipe:
            while piece := self._pipe.read1(_PIECE):  # type: ignore[attr-defined]
                self._data += piece
                if self._keep is not None and len(self._data) > 2 * self._keep:
                    del self._data[: -self._keep]

    def result(self, patience: float = 2.0) -> bytes:
        # Whoever inherited the pipe keeps it open after the program has ended: a process that it left in the
        # background, or ssh's shared session. What the program itself wrote is there by then.
        self._thread.join(patience)
        return bytes(self._data)


def _feed(process: subprocess.Popen[bytes], pieces: Iterable[bytes | PipeEnd]) -> None:
    stdin = _pipe(process.stdin)
    source = iter(pieces)
    try:
        for piece in source:
            if isinstance(piece, PipeEnd):
                stdin.flush()
                piece.pour(stdin.fileno())
            else:
                stdin.write(piece)
        stdin.flush()
    except BrokenPipeError:  # it reads no further; its exit code and output say why
        pass
    finally:
        getattr(source, "close", lambda: None)()
    with contextlib.suppress(BrokenPipeError):
        stdin.close()


def _pieces(process: subprocess.Popen[bytes], silence: float) -> Generator[bytes, None, None]:
    descriptor = _pipe(process.stdout).fileno()
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            if not selector.select(silence):
                raise ExpiredError
            piece = os.read(descriptor, _PIECE)
            if not piece:
                return
            yield piece


def _widen(pipe: int) -> None:
    """Has a pipe hold more, where the system can do that."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # a socket, or more than this user may have
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise ValueError("the program was started without this pipe")
    return stream


def _expire(process: subprocess.Popen[bytes], expired: threading.Event) -> None:
    expired.set()
    _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
