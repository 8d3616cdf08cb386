"""The jump hosts of one command, each connected once for all hosts behind it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.hosts.endpoint import Endpoint
    from orchestrator.hosts.ssh import SshHost

__all__ = ["SharedGateways"]


class SharedGateways:
    """The gateways of one command: each is connected once, however many hosts are behind it.

    A gateway's server drops connections that come too many at a time; it does not mind many channels.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._hosts: dict[Endpoint, SshHost] = {}

    def __enter__(self) -> SharedGateways:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes all of them."""
        for host in list(self._hosts.values()):
            host.close()

    def open(self, endpoint: Endpoint) -> SshHost:
        """Returns the one host for an endpoint, and those before it shared too; not yet connected."""
        with self._lock:
            if endpoint not in self._hosts:
                from orchestrator.hosts.ssh import SshHost

                self._hosts[endpoint] = SshHost(endpoint, self)
            return self._hosts[endpoint]
