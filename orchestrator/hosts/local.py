"""This machine as a host: the same contract as a machine behind SSH, over subprocess.

What always holds: programs start in `home` with HOME set to it, as a login there would have it; `programs` says
how they are fed, drained and ended.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import HostFailedError, LinkError
from orchestrator.hosts.base import Completed
from orchestrator.hosts.programs import (
    ExpiredError,
    PipeEnd,
    StartError,
    pipe_program,
    run_program,
    stream_program,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

__all__ = ["LocalHost"]


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
            return run_program(argv, stdin=stdin, timeout=timeout, cwd=self._home, env=self._environment(env))
        except StartError as error:
            return _cannot_start(argv, error.error)
        except ExpiredError as error:
            raise LinkError(
                f"{self.name}: {Path(argv[0]).name} did not end within {timeout:g} s and was stopped",
                "run it again; if it stays slow, look at the load of this machine",
            ) from error

    def stream(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> Iterator[bytes]:
        """Runs a program and yields its stdout as it comes; see `Host.stream`."""
        try:
            done = yield from stream_program(
                argv, silence=timeout, cwd=self._home, env=self._environment(env)
            )
        except StartError as error:
            raise HostFailedError(f"{self.name}: {_cannot_start(argv, error.error).error_text()}") from error
        except ExpiredError as error:
            raise LinkError(f"{self.name}: nothing came for {timeout:g} s", "run it again") from error
        self._check_end(argv, done)

    def _check_end(self, argv: Sequence[str], done: Completed) -> None:
        if done.exit_code != 0:
            raise HostFailedError(
                f"{self.name}: {Path(argv[0]).name} failed (exit code {done.exit_code}): {done.error_text()}",
                exit_code=done.exit_code,
                stderr=done.error_text(),
            )

    def pipe(self, argv: Sequence[str], *, timeout: float = 60.0) -> Generator[PipeEnd, None, None]:
        """Runs a program and yields its stdout as one end of a pipe; it fails as `stream` does."""
        try:
            done = yield from pipe_program(argv, silence=timeout, cwd=self._home, env=self._environment(None))
        except StartError as error:
            raise HostFailedError(f"{self.name}: {_cannot_start(argv, error.error).error_text()}") from error
        except ExpiredError as error:
            raise LinkError(f"{self.name}: nothing came for {timeout:g} s", "run it again") from error
        self._check_end(argv, done)

    def connect(self) -> None:
        """There is nothing to connect."""

    def close(self) -> None:
        """Nothing is kept open."""

    def _environment(self, env: Mapping[str, str] | None) -> dict[str, str]:
        return {**os.environ, "HOME": str(self._home), **(env or {})}


def _cannot_start(argv: Sequence[str], error: OSError) -> Completed:
    return Completed(
        126 if isinstance(error, PermissionError) else 127, b"", f"{argv[0]}: {error.strerror}".encode()
    )
