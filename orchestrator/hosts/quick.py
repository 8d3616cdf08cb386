"""A host that a short command wants to reach soon: by the ssh program if that gets through, else by the library.

The ssh program is there in milliseconds, while the SSH library alone takes longer to be imported than a whole push of
an unchanged payload should last; and it opens its session while this process still reads and hashes.

What always holds: both ways are as strict about host keys. Where the ssh program does not get through, the library
tries too, and its verdict (and its words) counts: nothing fails that the library could do. Only a host that gave
the program no answer in time is not waited for twice.
"""

from __future__ import annotations

import shutil
import threading
from typing import TYPE_CHECKING, TypeAlias

from orchestrator.hosts.linkfault import closed_here, explain_fault
from orchestrator.hosts.openssh import OpensshHost
from orchestrator.hosts.sshwords import timeout_stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from orchestrator.hosts.base import Completed
    from orchestrator.hosts.endpoint import Endpoint
    from orchestrator.hosts.ssh import SshHost

    Way: TypeAlias = OpensshHost | SshHost

__all__ = ["QuickHost", "begin_ahead", "can_be_quick"]

_begun: dict[Endpoint, OpensshHost] = {}
"""Sessions that were begun before anybody asked for them, by what they lead to."""


def can_be_quick(endpoint: Endpoint) -> bool:
    """Says whether the ssh program is installed and nothing but a connection of our own leads to the host."""
    return endpoint.gateway is None and endpoint.proxy_command is None and shutil.which("ssh") is not None


def begin_ahead(endpoint: Endpoint) -> None:
    """Begins a session that a QuickHost for the very same endpoint takes over. It ends with this process."""
    host = OpensshHost(endpoint, alone=True)
    host.begin()
    _begun[endpoint] = host


class QuickHost:
    """A machine behind SSH, whichever way is quickest; see `Host`. Counts as `SshHost` does."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._lock = threading.Lock()
        self._program = _begun.pop(endpoint) if endpoint in _begun else OpensshHost(endpoint, alone=True)
        self._way: Way | None = None
        self._closed = False

    @property
    def name(self) -> str:
        """The host's name in the inventory."""
        return self.endpoint.name

    @property
    def requests(self) -> int:
        """How many exec requests were made."""
        return self._way.requests if self._way else 0

    @property
    def connections(self) -> int:
        """How many sessions were opened."""
        return self._way.connections if self._way else 0

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Iterable[bytes] = b"",
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> Completed:
        """Runs a program to its end; see `Host.run`."""
        return self._chosen().run(argv, stdin=stdin, env=env, timeout=timeout)

    def stream(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 60.0
    ) -> Iterator[bytes]:
        """Runs a program and yields its stdout as it comes; see `Host.stream`."""
        yield from self._chosen().stream(argv, env=env, timeout=timeout)

    def connect(self) -> None:
        """Opens the session now. Raises LinkError."""
        self._chosen()

    def close(self) -> None:
        """Closes the session, for good."""
        self._closed = True
        self._program.close()
        if self._way is not None:
            self._way.close()

    def _chosen(self) -> Way:
        with self._lock:
            if self._way is None:
                self._way = self._choose()
            return self._way

    def _choose(self) -> Way:
        words = self._program.attempt()
        if not words:
            return self._program
        if stage := timeout_stage(words):
            raise explain_fault(self.endpoint, TimeoutError(words), stage)
        from orchestrator.hosts.ssh import SshHost

        library = self._way = SshHost(self.endpoint)  # known to `close` from here on
        if self._closed:
            raise closed_here(self.endpoint)
        library.connect()
        return library
