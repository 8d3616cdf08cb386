"""The quickest session to a host that is open already: the ssh program's, which moves bytes faster than ours.

What always holds: it leads to the same endpoint, with the same strict keys and only ciphers that ssh may use there,
and belongs to the host, which closes it; where the ssh program is missing or is not let in, the host itself is the answer.
"""

from __future__ import annotations

import functools
import platform
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError, LinkError
from orchestrator.hosts.local import LocalHost
from orchestrator.hosts.openssh import OpensshHost
from orchestrator.hosts.ssh import SshHost

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.hosts.base import Host
    from orchestrator.hosts.programs import PipeEnd

__all__ = ["USUAL_CIPHERS", "bulk_host", "piped", "takes_pipes"]

_QUICK = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
USUAL_CIPHERS = (*_QUICK, "chacha20-poly1305@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr")
"""What every OpenSSH has, the ones first that machines with GPUs compute in hardware."""


def bulk_host(host: Host) -> Host:
    """Returns a host's session of the ssh program, opened now if need be, or the host itself."""
    if not isinstance(host, SshHost) or shutil.which("ssh") is None:
        return host
    with host.companion_lock:
        if host.companion is None:
            host.companion = _open_beside(host)
        return host.companion


def _open_beside(host: SshHost) -> Host:
    other = OpensshHost(host.endpoint, ciphers=_ciphers(host.endpoint.ciphers))
    try:
        other.connect()
    except (LinkError, ConfigError):  # it lets our own session in, which is all that is needed
        other.close()
        return host
    return other


def takes_pipes(host: Host) -> bool:
    """Says whether a host's `run` can be fed a `PipeEnd`, and whether it can give one."""
    return isinstance(host, (LocalHost, OpensshHost))


def piped(host: Host, argv: Sequence[str], *, timeout: float) -> Iterator[bytes | PipeEnd]:
    """Runs a program and yields its stdout as `Host.stream` does, or as one end of a pipe if the host can do that."""
    if isinstance(host, (LocalHost, OpensshHost)):
        return host.pipe(argv, timeout=timeout)
    return host.stream(argv, timeout=timeout)


def _ciphers(allowed: str | None) -> str | None:
    """Returns the ciphers that ssh may use, those first that this machine computes in hardware."""
    if not _has_aes():
        return None
    names = allowed.split(",") if allowed else list(USUAL_CIPHERS)
    return ",".join([*(n for n in names if n in _QUICK), *(n for n in names if n not in _QUICK)])


@functools.cache
def _has_aes() -> bool:
    if platform.system() == "Darwin":
        return True
    try:
        words = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").split()
    except OSError:
        return False
    return "aes" in words
