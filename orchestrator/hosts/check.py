"""Does a host answer, and can it run our programs? One connection and one exec request a host.

What always holds: hosts are asked at the same time, and one that does not answer costs the others nothing;
every fault comes back as a Finding with its remedy, none is raised.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.errors import HostFailedError, LinkError, OrchError
from orchestrator.hosts.connect import open_host, resolve_entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.hosts.base import Completed
    from orchestrator.inventory import HostEntry, Inventory

__all__ = ["Finding", "check_hosts"]

_PARALLEL = 16

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

    def to_json(self) -> dict[str, Any]:
        """Returns the record for `--json`."""
        return asdict(self)


def check_hosts(inventory: Inventory, names: Sequence[str]) -> list[Finding]:
    """Looks at hosts, at the same time; the order is that of `names`.

    Raises:
        ConfigError: a name is not in the inventory.
    """
    for name in names:
        inventory.host(name)
    with ThreadPoolExecutor(_PARALLEL) as pool:
        return list(pool.map(lambda name: _check(inventory, name), names))


def _check(inventory: Inventory, name: str) -> Finding:
    started = time.monotonic()
    try:
        entry = resolve_entry(inventory, name)
        with closing(open_host(inventory, name)) as host:
            done = host.run([entry.python, "-c", _PROBE, entry.workdir], timeout=30)
        return _read(entry, done, started)
    except OrchError as error:
        return Finding(
            name,
            time.monotonic() - started,
            error=error.message,
            hint=error.hint,
            unreachable=isinstance(error, LinkError),
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
