"""The user's ssh agent, lent to a host for as long as one program runs there.

What always holds: only programs started by `stream` can ask the agent, and only while they run; the keys stay here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from orchestrator.hosts.base import Completed
    from orchestrator.hosts.ssh import SshHost

__all__ = ["AgentLent"]


class AgentLent:
    """A host that is lent the agent; see `Host`."""

    def __init__(self, host: SshHost) -> None:
        self._host = host

    @property
    def name(self) -> str:
        """The host's name in the inventory."""
        return self._host.name

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Iterable[bytes] = b"",
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> Completed:
        """Runs a program to its end, without the agent; see `Host.run`."""
        return self._host.run(argv, stdin=stdin, env=env, timeout=timeout)

    def stream(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 60.0
    ) -> Iterator[bytes]:
        """Runs a program that can use the agent; see `Host.stream`."""
        return self._host.stream(argv, env=env, timeout=timeout, lend_agent=True)

    def connect(self) -> None:
        """Opens the session now. Raises LinkError."""
        self._host.connect()

    def close(self) -> None:
        """The host is closed by whoever opened it."""
