"""How many programs at once a host takes on one connection, found by opening channels on which nothing runs."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from orchestrator.hosts.base import Named
from orchestrator.hosts.linkfault import broken_link

if TYPE_CHECKING:
    from paramiko.channel import Channel
    from paramiko.transport import Transport

    from orchestrator.hosts.ssh import SshHost

__all__ = ["count_channels"]

_ANSWER_S = 15.0
_PAUSES_S = (0.0, 0.1, 0.3, 0.8)


def count_channels(host: SshHost, most: int) -> int:
    """Opens channels beside each other until `most` are open or the host refuses, and closes them again.

    What ran on the session before may still count for a moment; so a refusal is tried again.

    Returns:
        how many it took.

    Raises:
        LinkError: the link broke meanwhile.
    """
    transport = host.transport()
    count = 0
    for pause in _PAUSES_S:
        time.sleep(pause)
        count = max(count, _open_many(transport, most))
        if count == most or not transport.is_active():
            break
    if not transport.is_active():
        raise broken_link(host.endpoint, Named([], "hosts check"), "the session ended")
    return count


def _open_many(transport: Transport, most: int) -> int:
    with ThreadPoolExecutor(most) as pool:
        tried = pool.map(lambda _: _open(transport), range(most))
        channels = [channel for channel in tried if channel is not None]
    for channel in channels:
        channel.close()
    return len(channels)


def _open(transport: Transport) -> Channel | None:
    from paramiko.ssh_exception import SSHException

    try:
        return transport.open_session(timeout=_ANSWER_S)
    except (SSHException, OSError, EOFError):  # refused; or the link is gone, which the session says
        return None
