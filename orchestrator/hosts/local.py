"""This machine as a host: the same contract as a machine behind SSH, over subprocess.

What always holds: programs start in `home` with HOME set to it, as a login there would have it; a program
that outlives its deadline is killed with its whole process group; a program that stops reading its stdin
early is not an error (its exit code and its output say what happened).
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING

from orchestrator.errors import HostFailedError, LinkError
from orchestrator.hosts.base import Completed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["LocalHost"]

_PIECE = 1 << 20
_ERROR_TAIL = 64 * 1024


class LocalHost:
    """This machine. `name` is what messages call it; `home` stands for the home folder of a login."""

    def __init__(self, name: str = "this machine", home: Path | None = None) -> None:
        self._name = name
        self._home = home or Path.home()

    @property
    def name(self) -> str:
        """What messages call this host."""
        return self._name

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Iterable[bytes] = b"",
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> Completed:
        """Runs a program to its end; see `Host.run`. A program that is not there exits with 127."""
        try:
            process = self._start(argv, env, stdin=subprocess.PIPE)
        except OSError as error:
            return _cannot_start(argv, error)
        expired = threading.Event()
        timer = threading.Timer(timeout, lambda: _expire(process, expired))
        timer.daemon = True
        timer.start()
        out, err = _Drain(process.stdout), _Drain(process.stderr)
        try:
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
            stdout, stderr = out.result(), err.result()
        if expired.is_set():
            raise LinkError(
                f"{self.name}: {Path(argv[0]).name} did not end within {timeout:g} s and was stopped",
                "run it again; if it stays slow, look at the load of this machine",
            )
        return Completed(process.returncode if process.returncode >= 0 else -1, stdout, stderr)

    def stream(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> Iterator[bytes]:
        """Runs a program and yields its stdout as it comes; see `Host.stream`."""
        try:
            process = self._start(argv, env, stdin=subprocess.DEVNULL)
        except OSError as error:
            raise HostFailedError(f"{self.name}: {_cannot_start(argv, error).error_text()}") from error
        stderr = _Drain(process.stderr, _ERROR_TAIL)
        try:
            yield from _pieces(process, timeout, self.name)
            code = process.wait()
        finally:
            _kill(process)
            process.wait()
            errors = stderr.result()
            _pipe(process.stdout).close()
        if code != 0:
            text = Completed(code, b"", errors).error_text()
            raise HostFailedError(
                f"{self.name}: {Path(argv[0]).name} failed (exit code {code}): {text}",
                exit_code=code,
                stderr=errors.decode("utf-8", "replace").strip()[-2000:],
            )

    def close(self) -> None:
        """Nothing is kept open."""

    def _start(
        self, argv: Sequence[str], env: Mapping[str, str] | None, stdin: int
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            list(argv),
            cwd=self._home,
            env={**os.environ, "HOME": str(self._home), **(env or {})},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )


class _Drain:
    """Reads a pipe to its end in a thread, so that a full one never stops the program."""

    def __init__(self, pipe: IO[bytes] | None, keep: int | None = None) -> None:
        self._pipe, self._keep, self._data = _pipe(pipe), keep, bytearray()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while piece := self._pipe.read1(_PIECE):  # type: ignore[attr-defined]
            self._data += piece
            if self._keep is not None and len(self._data) > 2 * self._keep:
                del self._data[: -self._keep]

    def result(self) -> bytes:
        # A background process that inherited the pipe keeps it open after the program has ended: what
        # the program itself wrote is there by then.
        self._thread.join(timeout=2.0)
        if not self._thread.is_alive():
            self._pipe.close()
        return bytes(self._data)


def _feed(process: subprocess.Popen[bytes], pieces: Iterable[bytes]) -> None:
    stdin = _pipe(process.stdin)
    source = iter(pieces)
    try:
        for piece in source:
            stdin.write(piece)
        stdin.flush()
    except BrokenPipeError:  # it reads no further; its exit code and output say why
        pass
    finally:
        getattr(source, "close", lambda: None)()
    with contextlib.suppress(BrokenPipeError):
        stdin.close()


def _pieces(process: subprocess.Popen[bytes], silence: float, name: str) -> Iterator[bytes]:
    descriptor = _pipe(process.stdout).fileno()
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            if not selector.select(silence):
                raise LinkError(f"{name}: nothing came for {silence:g} s", "run it again")
            piece = os.read(descriptor, _PIECE)
            if not piece:
                return
            yield piece


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise ValueError("the program was started without this pipe")
    return stream


def _cannot_start(argv: Sequence[str], error: OSError) -> Completed:
    return Completed(
        126 if isinstance(error, PermissionError) else 127, b"", f"{argv[0]}: {error.strerror}".encode()
    )


def _expire(process: subprocess.Popen[bytes], expired: threading.Event) -> None:
    expired.set()
    _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
