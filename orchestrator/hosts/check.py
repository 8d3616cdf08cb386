"""Does a host answer, and can it run our programs? One connection and one exec request a host.

What always holds: hosts are asked at the same time (`fanout`), and one that does not answer costs the others
nothing; every fault comes back as a Finding with its remedy, none is raised.
"""

from __future__ import annotations

import functools
import json
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from orchestrator.errors import HostFailedError, LinkError
from orchestrator.hosts.base import Named
from orchestrator.hosts.connect import SharedGateways, open_host, resolve_entry
from orchestrator.hosts.fanout import AT_ONCE, fan_out

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.hosts.base import Completed, Host
    from orchestrator.inventory import HostEntry, Inventory

__all__ = ["Finding", "check_hosts"]

_PROBE_S = 30.0

# Runs on the host with whatever Python is there: Python 2 too, so that it can be named.
_PROBE = """
import json, os, sys
folder = os.path.expanduser(sys.argv[1])
while not os.path.isdir(folder):
    folder = os.path.dirname(folder) or "/"
disk = os.statvfs(folder)
print("")
print(json.dumps({"version": "%d.%d.%d" % tuple(sys.version_info[:3]), "executable": sys.executable,
    "folder": folder, "free": disk.f_bavail * disk.f_frsize, "write": os.access(folder, os.W_OK)}))
"""


@dataclass(frozen=True)
class Finding:
    """What was found on one host. `error` is empty if all is well; `folder` is the nearest existing one."""

    host: str
    seconds: float
    python_version: str = ""
    executable: str = ""
    folder: str = ""
    free_bytes: int = 0
    error: str = ""
    hint: str = ""
    unreachable: bool = False
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        """Returns the record for `--json`."""
        return asdict(self)


def check_hosts(inventory: Inventory, names: Sequence[str], *, at_once: int = AT_ONCE) -> Iterator[Finding]:
    """Looks at hosts, at the same time, and yields what was found as it comes.

    Raises:
        ConfigError: a name is not in the inventory.
    """
    for name in names:
        inventory.host(name)

    def look(name: str, host: Host) -> Finding:
        entry = resolve_entry(inventory, name)
        started = time.monotonic()
        probe = Named([entry.python, "-c", _PROBE, entry.workdir], "hosts check")
        return _read(entry, host.run(probe, timeout=_PROBE_S), started)

    with SharedGateways() as gateways:
        opened = functools.partial(open_host, inventory, gateways=gateways)
        for verdict in fan_out(names, opened, look, deadline_s=2 * _PROBE_S, at_once=at_once):
            error = verdict.error
            if verdict.result is not None:
                yield replace(verdict.result, seconds=verdict.seconds)
            elif error is not None:
                yield Finding(
                    verdict.host,
                    verdict.seconds,
                    error=error.message,
                    hint=error.hint,
                    unreachable=isinstance(error, LinkError),
                    exit_code=error.exit_code,
                )


def _read(entry: HostEntry, done: Completed, started: float) -> Finding:
    try:
        found = json.loads(done.stdout.splitlines()[-1])
        version = tuple(int(part) for part in found["version"].split("."))
    except (ValueError, LookupError, TypeError) as error:
        raise HostFailedError(
            f"{entry.name}: {entry.python} did not run (exit code {done.exit_code}): {done.error_text(300)}",
            f"set `python:` of hosts.{entry.name} to the absolute path of a Python 3.10 or newer",
        ) from error
    if version < (3, 10):
        raise HostFailedError(
            f"{entry.name}: {entry.python} is Python {found['version']}; orch needs 3.10 or newer",
            f"set `python:` of hosts.{entry.name} to a newer interpreter",
        )
    if not found["write"]:
        raise HostFailedError(
            f"{entry.name}: {found['folder']} (for the work folder {entry.workdir}) cannot be written to",
            f"set `workdir:` of hosts.{entry.name} to a folder that the user owns",
        )
    return Finding(
        entry.name,
        time.monotonic() - started,
        python_version=found["version"],
        executable=found["executable"],
        folder=found["folder"],
        free_bytes=found["free"],
    )
