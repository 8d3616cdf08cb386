"""Where the unfinished runs stand now: one request per work folder, all hosts at once (`fanout`).

What always holds: a host that does not answer costs the others nothing and its runs are `unreachable`, which
is said but never recorded: the record keeps what was last known of the job.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from orchestrator.errors import OrchError
from orchestrator.hosts.fanout import fan_out
from orchestrator.launch import ENDED, Cursor
from orchestrator.runs.attached import AttachedRun

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orchestrator.hosts.base import Host
    from orchestrator.inventory import HostEntry
    from orchestrator.runs.store import Run

__all__ = ["refresh"]

_DEADLINE_S = 120.0
_END_OF_FILES = Cursor(events=1 << 62, log=-1, rows=1 << 62)


def refresh(
    runs: Sequence[Run], open_host: Callable[[str], Host], entry: Callable[[str], HostEntry]
) -> dict[str, str]:
    """Asks the hosts of all runs that have not ended by the record. Returns job id -> fault of its host.

    Args:
        runs: any runs; those that have ended are left alone.
        open_host: the way to a host, not yet connected.
        entry: a host's entry.
    """
    groups: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if run.status() not in ENDED:
            groups[run.where.host][run.where.workdir].append(run)

    def ask(name: str, host: Host) -> dict[str, str]:
        about = entry(name)
        found: dict[str, str] = {}
        for members in groups[name].values():
            found.update(_ask([AttachedRun(run, host, about) for run in members]))
        return found

    faults: dict[str, str] = {}
    for verdict in fan_out(list(groups), open_host, ask, deadline_s=_DEADLINE_S, keep_open=True):
        faults.update(verdict.result or {})
        if verdict.error is not None:
            members = [run for folder in groups[verdict.host].values() for run in folder]
            faults.update({run.job_id: verdict.error.message for run in members})
    return faults


def _ask(members: list[AttachedRun]) -> dict[str, str]:
    """Asks one host about its runs and notes what it says."""
    handles = [member.handle for member in members]
    cursors = {handle.job_id: _END_OF_FILES for handle in handles}
    try:
        seen = members[0].launcher.poll(handles, cursors, max_bytes=1)
    except OrchError as error:
        return {handle.job_id: error.message for handle in handles}
    for member, look in zip(members, seen, strict=True):
        member.run.saw(look.verdict, look.state, look.fault, look.left)
    return {}
