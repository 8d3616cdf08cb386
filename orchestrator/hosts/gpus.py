"""The GPUs of hosts: who leased them, who else uses them, who waits. One connection and one exec request a host.

What always holds: hosts are asked at the same time, and one that does not answer costs the others nothing; every
fault comes back in its host's record with its remedy, none is raised. Nothing has to be installed there but Python,
and nothing is changed. What leases say of themselves was written by users of that host: it is shown, never trusted.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from orchestrator.errors import HostFailedError
from orchestrator.hosts import remote
from orchestrator.hosts.across import AT_ONCE, across

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.hosts.base import Host
    from orchestrator.inventory import HostEntry, Inventory

__all__ = ["HostGpus", "look_at_gpus", "look_at_hosts"]

_ANSWER_S = 90.0
_DEADLINE_S = 2 * _ANSWER_S


@dataclass(frozen=True)
class HostGpus:
    """What was found on one host. `error` is empty if all is well; `now` is the host's clock.

    `gpus` and `line` are records as the host gives them (`hosts/scripts/gpus.py`), complete by their keys.
    """

    host: str
    seconds: float
    nvidia_smi: bool = False
    now: float = 0.0
    lock_dir: str = ""
    gpus: tuple[dict[str, Any], ...] = ()
    line: tuple[dict[str, Any], ...] = field(default=())
    error: str = ""
    hint: str = ""
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        """Returns the record for `--json`."""
        return asdict(self)


def look_at_hosts(
    inventory: Inventory, names: Sequence[str], *, at_once: int = AT_ONCE
) -> Iterator[HostGpus]:
    """Looks at the GPUs of hosts, at the same time, and yields what was found as it comes.

    Raises:
        UnknownNameError: a name is not in the inventory.
    """

    def look(entry: HostEntry, host: Host) -> HostGpus:
        return look_at_gpus(host, entry)

    for verdict in across(inventory, names, look, deadline_s=_DEADLINE_S, at_once=at_once):
        error = verdict.error
        if verdict.result is not None:
            yield replace(verdict.result, seconds=verdict.seconds)
        elif error is not None:
            yield HostGpus(
                verdict.host,
                verdict.seconds,
                error=error.message,
                hint=error.hint,
                exit_code=error.exit_code,
            )


def look_at_gpus(host: Host, entry: HostEntry) -> HostGpus:
    """Looks at the GPUs of one host.

    Raises:
        LinkError: it does not answer.
        HostFailedError: Python, nvidia-smi or the folder of locks does not work there.
    """
    started = time.monotonic()
    arguments = {
        "env": dict(entry.env),
        "lock_dir": entry.lock_dir,
        "gpus": None if entry.gpus is None else [str(name) for name in entry.gpus],
        "gpu_free": entry.gpu_free,
    }
    found = remote.call(host, "gpus", arguments, python=entry.python, timeout=_ANSWER_S)
    if found["fault"]:
        raise HostFailedError(
            f"{entry.name}: {found['fault']}",
            f"mend that on {entry.name}; jobs with `--device cpu` run there",
        )
    return HostGpus(
        entry.name,
        time.monotonic() - started,
        nvidia_smi=bool(found["nvidia_smi"]),
        now=float(found["now"]),
        lock_dir=str(found["lock_dir"]),
        gpus=tuple(found["gpus"]),
        line=tuple(found["line"]),
    )
