"""Starting, watching and ending jobs: one contract (`base`), one implementation per engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.launch.base import (
    ENDED,
    RESUMABLE,
    START,
    Cancelled,
    Cursor,
    Handle,
    Launcher,
    LogPiece,
    Observation,
)
from orchestrator.launch.process import ProcessLauncher

if TYPE_CHECKING:
    from orchestrator.hosts.base import Host
    from orchestrator.inventory import HostEntry

__all__ = [
    "ENDED",
    "RESUMABLE",
    "START",
    "Cancelled",
    "Cursor",
    "Handle",
    "Launcher",
    "LogPiece",
    "Observation",
    "ProcessLauncher",
    "launcher_for",
]


def launcher_for(host: Host, entry: HostEntry) -> ProcessLauncher:
    """Returns the launcher that a host's entry names (`process` is the only one yet)."""
    return ProcessLauncher(host, entry)
