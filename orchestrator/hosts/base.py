"""One machine, whatever leads to it: run a program, feed it bytes, read bytes back.

What always holds: arguments are argv lists and are quoted in one place; bytes go in and come out, nothing
is decoded on the way; both streams are drained; every call has a deadline; a broken link is a LinkError and
says nothing about the program on the other side.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Completed", "Host", "Named", "command_line", "command_words", "shown"]

_REMOTE_MARGIN_S = 1  # the deadline here comes first; the one there ends what is left of the program
_SHOWN = 80
# Where the host has no `timeout` (coreutils, busybox) the program has no deadline of its own there.
_LIMITED = 'if command -v timeout >/dev/null 2>&1; then exec timeout -k 5 "$@"; fi; shift; exec "$@"'


@dataclass(frozen=True)
class Completed:
    """What a program did on a host. `exit_code` is -1 if it died of a signal or the link did not say."""

    exit_code: int
    stdout: bytes
    stderr: bytes

    def error_text(self, limit: int = 2000) -> str:
        """Returns the end of stderr as text, for a message."""
        return self.stderr.decode("utf-8", "replace").strip()[-limit:]


class Host(Protocol):
    """A machine that runs programs. Implementations: `ssh.SshHost`, `openssh.OpensshHost`, `local.LocalHost`."""

    @property
    def name(self) -> str:
        """The host's name in the inventory: its identity, whatever its address is."""

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Iterable[bytes] = b"",
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> Completed:
        """Runs a program to its end.

        Raises:
            LinkError: the host cannot be reached, its key is not accepted, the link broke, or the deadline
                passed.
        """

    def stream(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> Iterator[bytes]:
        """Runs a program and yields what it prints to stdout, in pieces, as it comes.

        `timeout` limits the silence between two pieces. A non-zero exit raises HostFailedError with the end
        of its stderr, after the last piece.
        """

    def connect(self) -> None:
        """Opens the connection now, instead of at the first program. Raises LinkError."""

    def close(self) -> None:
        """Closes the connection, if one is open."""


class Named(list[str]):
    """An argv list that messages call by a name instead of its words."""

    def __init__(self, argv: Iterable[str], name: str) -> None:
        super().__init__(argv)
        self.name = name


def shown(argv: Sequence[str]) -> str:
    """Returns how a message calls a program: by its name if it has one, else by the start of its words."""
    text = argv.name if isinstance(argv, Named) else shlex.join(argv)
    return f"`{text[: _SHOWN - 3]}…`" if len(text) > _SHOWN else f"`{text}`"


def command_line(
    argv: Sequence[str], env: Mapping[str, str] | None = None, limit: float | None = None
) -> str:
    """Returns the one shell line for an argv list: the only place where anything is quoted for a shell."""
    return shlex.join(command_words(argv, env, limit))


def command_words(
    argv: Sequence[str], env: Mapping[str, str] | None = None, limit: float | None = None
) -> list[str]:
    """Returns the argv list that runs a program with an environment and a limit.

    With a `limit` (seconds) the program and its children are ended there shortly after it, whether or not
    anybody here is left to ask for that.
    """
    words = list(argv)
    if env:
        words = ["env", *(f"{key}={value}" for key, value in env.items()), *words]
    if limit is not None:
        words = ["sh", "-c", _LIMITED, "orch", str(math.ceil(limit) + _REMOTE_MARGIN_S), *words]
    return words
