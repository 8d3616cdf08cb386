"""From what a host says of itself to findings: interpreter, packages, disk, work folder, locks, clock, sessions.

What always holds: pure functions; each subject gives one finding, `ok` if all is well, so that nothing that was looked
at goes unsaid.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from orchestrator.hosts.check.findings import Finding
from orchestrator.hosts.needs import lacking
from orchestrator.inventory.interpreter import Interpreter
from orchestrator.text import human_bytes, human_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from packaging.requirements import Requirement

    from orchestrator.hosts.check.findings import Severity
    from orchestrator.inventory import HostEntry

__all__ = ["judge_clock", "judge_host", "judge_sessions", "setup_hint"]

_LEAST_BYTES = 256 << 20
_FEW_BYTES = 5 << 30
_LEAST_INODES, _FEW_INODES = 1000, 20_000
_SKEW_S, _BIG_SKEW_S = 1.0, 300.0
_USUAL_CHANNELS = 4
_NETWORK = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "lustre",
    "gpfs",
    "ceph",
    "beegfs",
    "9p",
    "fuse.sshfs",
    "glusterfs",
)


def judge_host(entry: HostEntry, facts: Mapping[str, Any], needs: Sequence[Requirement]) -> list[Finding]:
    """Judges everything but GPUs, clock and sessions."""
    return [
        Finding("interpreter", "ok", f"Python {'.'.join(map(str, facts['python']))} ({facts['executable']})"),
        _packages(entry, facts, needs),
        *_folder(entry, facts),
        _locks(entry, facts["locks"], facts["gpus"]),
    ]


def setup_hint(entry: HostEntry, executable: str) -> str:
    """What to do about packages: an environment of our own, or the one that the inventory names."""
    pip = shlex.join([executable, "-m", "pip", "install"])
    if not isinstance(entry.python, Interpreter):
        return (
            f"`orch hosts setup {entry.name}` makes an environment that has them (then take `python:` out of "
            f"hosts.{entry.name}); or install them into this one: `{pip} …` there"
        )
    return f"`orch hosts setup {entry.name}` makes an environment that has them"


def _packages(entry: HostEntry, facts: Mapping[str, Any], needs: Sequence[Requirement]) -> Finding:
    found = facts["packages"]
    versions = found.get("versions") or {}
    if not versions:
        return Finding(
            "packages", "error", f"the packages could not be asked for: {found.get('fault')}", "run it again"
        )
    missing = lacking(needs, versions, facts["python"])
    listed = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    if missing:
        seen = ", ".join(f"{need} ({version or 'not there'})" for need, version in missing)
        trains = tuple(entry.roles) == ("training",)
        because = "; it only trains, by its roles: nothing of ours computes there" if trains else ""
        severity: Severity = "note" if trains else "error"
        return Finding(
            "packages",
            severity,
            f"the payload needs {seen}{because}",
            setup_hint(entry, facts["executable"]),
        )
    torch = found.get("torch") or {}
    fault = torch.get("fault") or found.get("fault")
    if fault:
        return Finding(
            "packages",
            "error",
            f"torch {versions['torch']} is there and does not work: {fault}",
            setup_hint(entry, facts["executable"]),
        )
    return Finding("packages", "ok", listed)


# --------------------------------------------------------------------------- disk and work folder


def _folder(entry: HostEntry, facts: Mapping[str, Any]) -> list[Finding]:
    folder = facts["folder"]
    if folder.get("fault"):
        return [Finding("folder", "error", f"{entry.workdir}: {folder['fault']}", _elsewhere(entry))]
    return [_disk(entry, folder), _trial(entry, folder, facts["user"])]


def _elsewhere(entry: HostEntry) -> str:
    return f"set `workdir:` of hosts.{entry.name} to another folder"


def _disk(entry: HostEntry, folder: Mapping[str, Any]) -> Finding:
    disk = folder["disk"]
    free, inodes = disk["free"], disk["inodes_free"]
    seen = f"{human_bytes(free)} free of {human_bytes(disk['total'])} at {folder['folder']}"
    if inodes is not None:
        seen += f", {inodes} inodes free"
    fix = f"free space under {folder['folder']}, or {_elsewhere(entry)}"
    if free < _LEAST_BYTES or (inodes is not None and inodes < _LEAST_INODES):
        what = "no room for a push or a job" if free < _LEAST_BYTES else "no inodes left for a push or a job"
        return Finding("disk", "error", f"{what}: {seen}", fix)
    if free < _FEW_BYTES or (inodes is not None and inodes < _FEW_INODES):
        return Finding("disk", "warning", f"little room for checkpoints and caches: {seen}", fix)
    return Finding("disk", "ok", seen)


_STEP_WORDS = {
    "make": "no folder can be made in {folder}",
    "write": "a file cannot be written and synced in {folder}",
    "rename": "a file cannot be renamed in {folder}",
    "link": "a symbolic link cannot be made and renamed in {folder}",
    "exec": "no program can be run from {folder}",
    "lock": "files cannot be locked in {folder}",
}


def _trial(entry: HostEntry, folder: Mapping[str, Any], user: Mapping[str, Any]) -> Finding:
    trial, place = folder["trial"], folder["folder"]
    mount = folder["mount"] or {"point": place, "type": "?", "options": []}
    if trial["failed"]:
        seen = _STEP_WORDS[trial["failed"]].format(folder=place) + f": {trial['message']}"
        return Finding("folder", "error", seen, _trial_fix(entry, trial, mount, place, user))
    owner = trial["owner"]
    if owner != user["uid"]:
        seen = (
            f"files that uid {user['uid']} makes in {place} belong to uid {owner}: {mount['point']} ({mount['type']}) maps "
            "users (root squash)"
        )
        return Finding(
            "folder",
            "warning",
            seen,
            f"log in as the user that owns {place} (`user:`), or {_elsewhere(entry)} on a local disk: what runs there later "
            "may not read, change or remove these files",
        )
    there = "" if place == folder["workdir"] else f" ({folder['workdir']} is not there yet)"
    return Finding("folder", "ok", f"write, sync, rename, link, run and lock work in {place}{there}")


def _trial_fix(
    entry: HostEntry,
    trial: Mapping[str, Any],
    mount: Mapping[str, Any],
    place: str,
    user: Mapping[str, Any],
) -> str:
    options, point = mount["options"], shlex.quote(mount["point"])
    if trial["failed"] == "exec" and "noexec" in options:
        return (
            f"{mount['point']} is mounted noexec: `mount -o remount,exec {point}` as root there (and in /etc/fstab), "
            f"or {_elsewhere(entry)}"
        )
    if trial["errno"] == "EROFS" or "ro" in options:
        return (
            f"{mount['point']} ({mount['type']}) is mounted read-only (the kernel does so after disk errors too: `dmesg`): "
            f"`mount -o remount,rw {point}` as root there, or {_elsewhere(entry)}"
        )
    if trial["errno"] in ("EACCES", "EPERM"):
        squash = (
            " (root is nobody there: root squash)" if user["uid"] == 0 and mount["type"] in _NETWORK else ""
        )
        return f"`chown {user['name']} {shlex.quote(place)}` as its owner{squash}, or {_elsewhere(entry)} that {user['name']} owns"
    if trial["errno"] in ("ENOSPC", "EDQUOT"):
        return f"free space or quota under {place}, or {_elsewhere(entry)}"
    if trial["failed"] == "lock":
        return f"mount {mount['point']} ({mount['type']}) with locks, or {_elsewhere(entry)} on a local disk"
    return _elsewhere(entry)


def _locks(entry: HostEntry, locks: Mapping[str, Any], gpus: Mapping[str, Any]) -> Finding:
    path, place = locks.get("path", ""), locks.get("folder", "")
    elsewhere = (
        f"set `lock_dir:` of hosts.{entry.name} to a folder on a local disk that all its users may write"
    )
    if gpus.get("fault_of") == "locks":
        return Finding("locks", "error", gpus["fault"], elsewhere)
    if locks.get("fault"):
        where = path if place in ("", path) else f"{path} (it would be made in {place})"
        return Finding("locks", "error", f"GPUs cannot be locked in {where}: {locks['fault']}", elsewhere)
    if not locks["excludes"]:
        return Finding(
            "locks", "error", f"a lock in {place} keeps nobody out: two jobs would get one GPU", elsewhere
        )
    mount = locks["mount"] or {"type": ""}
    if mount["type"] in _NETWORK:
        return Finding(
            "locks",
            "warning",
            f"{path} is on a network file system ({mount['type']}): locks there depend on its server",
            elsewhere,
        )
    made = "" if locks["exists"] else " (made by the first job)"
    return Finding("locks", "ok", f"locks exclude in {path}{made}")


# --------------------------------------------------------------------------- clock and sessions


def judge_clock(clock: Mapping[str, float], sent: float, waited: float) -> tuple[Finding, dict[str, float]]:
    """Compares the host's clock with ours.

    Its second reading was taken between (sent + the seconds between its readings) and the answer's arrival, so half of
    what is left of that time is how far the offset can be wrong.

    Args:
        clock: the host's two readings (`first`, `last`) and the seconds between (`elapsed`).
        sent: our clock when the request was sent.
        waited: seconds until the answer was there.
    """
    play = max(0.0, waited - clock["elapsed"])
    uncertainty = play / 2
    offset = clock["last"] - (sent + clock["elapsed"] + uncertainty)
    record = {"offset_s": round(offset, 3), "uncertainty_s": round(uncertainty, 3)}
    jumped = abs(clock["last"] - clock["first"] - clock["elapsed"])
    if jumped > _SKEW_S:
        seen = f"the host's clock jumped by {human_seconds(jumped)} while it was looked at"
        return Finding("clock", "warning", seen, _CLOCK_FIX), record
    if abs(offset) <= max(_SKEW_S, uncertainty):
        return Finding("clock", "ok", f"agrees with ours within {max(_SKEW_S, uncertainty):.1f} s"), record
    ahead = "ahead of" if offset > 0 else "behind"
    seen = f"the host's clock is {human_seconds(abs(offset))} {ahead} ours (± {human_seconds(uncertainty)})"
    if abs(offset) > _BIG_SKEW_S:
        return Finding(
            "clock", "warning", f"{seen}: certificates and times in records may be wrong", _CLOCK_FIX
        ), record
    return Finding("clock", "note", seen, _CLOCK_FIX), record


_CLOCK_FIX = (
    "`timedatectl` on both machines says which one is not synchronized; `sudo timedatectl set-ntp true` there"
)


def judge_sessions(channels: int | None, startups: Mapping[str, int] | None) -> list[Finding]:
    """Judges how many programs at once sshd takes on a connection, and how many connections at once (if known)."""
    found = []
    if channels is None:
        found.append(
            Finding("sessions", "ok", "MaxSessions was not tried: the ssh program has the connection")
        )
    elif channels < _USUAL_CHANNELS:
        found.append(
            Finding(
                "sessions",
                "warning" if channels < 2 else "note",
                f"sshd takes {channels} program{'s' * (channels != 1)} at a time on a connection (MaxSessions); orch wants up "
                f"to {_USUAL_CHANNELS}, and waits for one to end",
                "`MaxSessions 10` (its default) in /etc/ssh/sshd_config there, then `systemctl reload ssh`",
            )
        )
    else:
        found.append(Finding("sessions", "ok", f"at least {channels} programs at a time on a connection"))
    if startups is not None and startups["begin"] < _USUAL_CHANNELS:
        found.append(
            Finding(
                "startups",
                "note",
                f"sshd drops connections when more than {startups['begin']} come at a time (MaxStartups)",
                "`MaxStartups 10:30:100` (its default) in /etc/ssh/sshd_config there, then `systemctl reload ssh`",
            )
        )
    return found
