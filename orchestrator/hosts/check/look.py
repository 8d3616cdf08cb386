"""The preflight of hosts: one connection a host and, where its interpreter works, one exec request.

What always holds: hosts are asked at the same time (`fanout`), and one that does not answer costs the others
nothing; every fault comes back as a Finding with its remedy, none is raised; nothing that is made there stays.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orchestrator.errors import HostFailedError, LinkError
from orchestrator.hosts import remote
from orchestrator.hosts.across import AT_ONCE, across
from orchestrator.hosts.check.channels import count_channels
from orchestrator.hosts.check.cuda import judge_gpus
from orchestrator.hosts.check.findings import Finding, Report
from orchestrator.hosts.check.judge import judge_clock, judge_host, judge_sessions
from orchestrator.hosts.check.way import no_answer, no_way, shell_noise
from orchestrator.hosts.needs import payload_needs
from orchestrator.hosts.ssh import SshHost

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.hosts.base import Host
    from orchestrator.inventory import HostEntry, Inventory

__all__ = ["check_host", "check_hosts"]

_IMPORT_S = 90.0
_ASK_S = 150.0
_DEADLINE_S = 240.0
_CHANNELS = 4
"""As many programs as orch ever runs at once on one connection."""


def check_hosts(inventory: Inventory, names: Sequence[str], *, at_once: int = AT_ONCE) -> Iterator[Report]:
    """Looks at hosts, at the same time, and yields what was found as it comes.

    Raises:
        ConfigError: a name is not in the inventory.
    """

    def look(entry: HostEntry, host: Host) -> Report:
        return check_host(host, entry)

    for verdict in across(inventory, names, look, deadline_s=_DEADLINE_S, at_once=at_once):
        error = verdict.error
        if verdict.result is not None:
            yield replace(verdict.result, seconds=verdict.seconds)
        elif error is not None:
            yield Report(
                verdict.host,
                verdict.seconds,
                (no_way(verdict.host, error),),
                exit_code=error.exit_code,
                stage=str(error.details.get("stage", "")),
                unreachable=isinstance(error, LinkError),
            )


def check_host(host: Host, entry: HostEntry) -> Report:
    """Looks at one host that is connected.

    Raises:
        LinkError: the link broke.
    """
    started = time.monotonic()
    needs = payload_needs()
    arguments = {
        "env": dict(entry.env),
        "workdir": entry.workdir,
        "lock_dir": entry.lock_dir,
        "gpus": None if entry.gpus is None else [str(name) for name in entry.gpus],
        "gpu_free": entry.gpu_free,
        "packages": [need.name for need in needs],
        "import_s": _IMPORT_S,
    }
    sent, ticks = time.time(), time.monotonic()
    try:
        facts, noise = remote.ask(host, "check", arguments, python=entry.python, timeout=_ASK_S)
    except HostFailedError as error:
        findings = _silent(host, entry, error)
        return Report(entry.name, time.monotonic() - started, tuple(findings), exit_code=error.exit_code)
    waited = time.monotonic() - ticks
    found, clock = judge_clock(facts["clock"], sent, waited)
    findings = [
        *filter(None, (shell_noise(entry, noise, facts["shell"]),)),
        *judge_host(entry, facts, needs),
        *judge_gpus(entry, facts),
        found,
        *judge_sessions(_channels(host), facts["startups"]),
    ]
    return _report(entry, tuple(findings), facts, clock, time.monotonic() - started)


def _silent(host: Host, entry: HostEntry, error: HostFailedError) -> list[Finding]:
    if error.details.get("kind") in (None, "python"):
        return no_answer(host, entry, error)
    return [Finding("interpreter", "error", error.message, error.hint)]


def _channels(host: Host) -> int | None:
    """How many programs at once the host takes on a connection, up to as many as orch runs."""
    return count_channels(host, _CHANNELS) if isinstance(host, SshHost) else None


def _report(
    entry: HostEntry,
    findings: tuple[Finding, ...],
    facts: dict[str, Any],
    clock: dict[str, float],
    seconds: float,
) -> Report:
    packages, folder = facts["packages"], facts["folder"]
    torch = packages.get("torch") or {}
    bad = any(finding.severity == "error" for finding in findings)
    return Report(
        entry.name,
        seconds,
        findings,
        exit_code=HostFailedError.exit_code if bad else 0,
        python_version=".".join(map(str, facts["python"])),
        executable=str(facts["executable"]),
        folder=str(folder.get("folder", "")),
        free_bytes=int(folder.get("disk", {}).get("free", 0)),
        torch=str((packages.get("versions") or {}).get("torch") or ""),
        cuda=str(torch.get("cuda") or ""),
        driver=str(facts["driver"].get("version", "")),
        packages=dict(packages.get("versions") or {}),
        gpus=tuple(facts["gpus"].get("gpus") or ()),
        clock=clock,
    )
