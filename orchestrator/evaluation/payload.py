"""Which payload an eval runs: the one here, made current on the host, or a release that the host has.

What always holds: an eval that changes which release is current says so, and names the one that was; with
`--release` it changes nothing, and the release it names is as it was installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from orchestrator import releases
from orchestrator.errors import HostFailedError, UsageError
from orchestrator.payload import load_tree
from orchestrator.text import human_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.evaluation.plan import Plan
    from orchestrator.hosts.base import Host
    from orchestrator.inventory import HostEntry

__all__ = ["Ready", "ready_payload"]

CURRENT = "current"


class Ready(NamedTuple):
    """The release that the job will pin, and what was (or, dry, would be) done for it."""

    release: str
    status: str


def ready_payload(chosen: Plan, host: Host, report: Callable[[str], None], *, dry_run: bool = False) -> Ready:
    """Makes the payload ready on the evaluating host.

    Raises:
        UsageError: `--release` names none that is installed.
        HostFailedError: the release that it names was changed on the host.
        OrchError: as `releases.push`.
    """
    entry, wanted = chosen.entry, chosen.options.release
    if wanted is not None:
        release = _installed(entry, host, wanted)
        report(f"{entry.name}: uses its release {release[:12]}; nothing is pushed")
        return Ready(release, "as it is")
    tree = load_tree(chosen.options.payload)

    def step(text: str) -> None:
        report(f"{entry.name}: {text}")

    pushed = releases.push(entry, host, tree, dry_run=dry_run, report=step)
    if pushed.status == "unchanged" or dry_run:
        return Ready(pushed.release, pushed.status)
    if pushed.before is None or pushed.before == pushed.release:
        was = ""
    else:
        was = f" (was {pushed.before[:12]}; to use that one: --release {pushed.before[:12]})"
    if pushed.status == "activated" and not pushed.sent:
        report(f"{entry.name}: made {pushed.release[:12]} current again{was}")
    else:
        report(
            f"{entry.name}: pushed payload {pushed.release[:12]} ({human_bytes(pushed.sent)}), now current{was}"
        )
    return Ready(pushed.release, pushed.status)


def _installed(entry: HostEntry, host: Host, wanted: str) -> str:
    have = releases.list_releases(entry, host)
    found = [r for r in have if (r.current if wanted == CURRENT else r.release.startswith(wanted))]
    if len(found) != 1:
        listed = ", ".join(r.release[:12] + (" (current)" if r.current else "") for r in have) or "none"
        what = "fits several releases" if found else "is no release that is installed there"
        raise UsageError(
            f"{entry.name}: --release {wanted} {what}; there are: {listed}",
            f"name one of these, or push first: orch push {entry.name}",
        )
    release = found[0].release
    damage = releases.look(entry, host, release)["damage"]
    if damage:
        raise HostFailedError(
            f"{entry.name}: release {release[:12]} is not as it was installed: {'; '.join(damage[:5])}",
            f"`orch push {entry.name}` of that version repairs it",
            damage=list(damage),
        )
    return release
