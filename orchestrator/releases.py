"""Releases on a host: look, check, install, activate, roll back, list.

What always holds:

* A release is a folder named by its content. `current` is a link to one and changes by one rename, after
  the release was verified file by file, compiled, and self-checked by the interpreter that will run it.
  Whatever fails before that leaves `current` as it was and the staged folder gone.
* An unchanged payload costs one exec request, which writes nothing. It is called unchanged only if the
  installed files are those that were verified: the list of files and the stamp (size, mtime, ctime) of each
  are compared, and where a stamp differs the content is hashed. An edit in place is thus found at the next
  push (which repairs it); a rollback always hashes everything.
* A self-check counts for the interpreter (version and path) under which it passed; when the inventory names
  another one, it runs again.
* A link that breaks during the last request leaves an outcome that only the host knows; asking again
  settles it, because installing a release twice is the same as installing it once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.errors import LinkError, UsageError
from orchestrator.hosts import remote
from orchestrator.payload import Tree, archive, check
from orchestrator.text import human_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from orchestrator.hosts.base import Host
    from orchestrator.inventory import HostEntry

__all__ = [
    "PlannedFile",
    "PushResult",
    "Release",
    "RollbackResult",
    "list_releases",
    "look",
    "prune",
    "push",
    "rollback",
]

KEEP = 5
"""How many releases stay on a host, by the time of their last activation, besides those that are needed."""

_SELF_CHECK_S = 180.0
_PROBE_TIMEOUT_S = 60.0
_INSTALL_TIMEOUT_S = 600.0
_PIECE = 256 * 1024


class PlannedFile(NamedTuple):
    """A line of a dry run: a file, its size, and why it is (or is not) sent."""

    path: str
    size: int
    reason: str


@dataclass(frozen=True)
class PushResult:
    """What a push did, or (dry run) would do.

    `status` is "unchanged", "activated" (it was installed), "installed", or "repaired" (its files there had
    been changed). `before` is what was current. `requests` counts exec requests.
    """

    host: str
    status: str
    release: str
    before: str | None
    files: int
    bytes: int
    sent: int
    seconds: float
    requests: int
    python: str
    workdir: str
    selfcheck: dict[str, Any] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()
    dry_run: bool = False
    plan: tuple[PlannedFile, ...] = ()


@dataclass(frozen=True)
class RollbackResult:
    """What a rollback did: `before` was current, `release` is now."""

    host: str
    release: str
    before: str | None
    seconds: float
    selfcheck: dict[str, Any] = field(default_factory=dict)


class Release(NamedTuple):
    """An installed release. `activated` is the last time it became current, by the host's clock."""

    release: str
    activated: float | None
    current: bool
    pinned: bool
    files: int
    bytes: int


def push(
    entry: HostEntry,
    host: Host,
    tree: Tree,
    *,
    dry_run: bool = False,
    report: Callable[[str], None] | None = None,
) -> PushResult:
    """Makes a payload the current release of a host.

    Args:
        entry: the host in the inventory.
        host: the way to it.
        tree: the payload.
        dry_run: look and check, but write nothing.
        report: told each step before it is taken.

    Raises:
        LinkError: the host cannot be reached, or the link broke; asking again settles what became of it.
        PayloadRejectedError: syntax, undefined names, self-check, or bytes that did not arrive as sent.
        HostFailedError: disk, permission, interpreter.
    """
    started = time.monotonic()
    say = report or _silent
    seen = look(entry, host, tree.hash, manifest=dry_run)
    status = _needed(seen, tree.hash)
    requests, sent = 1, 0
    did: dict[str, Any] = {"selfcheck": (seen["checked"] or {}).get("selfcheck", {})}
    if status in ("installed", "repaired"):
        major, minor = seen["python"][:2]
        say(f"checking {len(tree.files)} files for Python {major}.{minor}")
        check(tree, (major, minor), entry.name)
    if not dry_run and status == "activated":
        say(f"verifying release {tree.hash[:12]}, which is installed")
        did, requests = _activate(entry, host, tree.hash, f"push {entry.name}"), 2
    elif not dry_run and status != "unchanged":
        stream = archive(tree)
        did, requests, sent = _install(entry, host, tree, stream, say), 2, len(stream)
        # Somebody else may have installed it meanwhile; then ours was discarded and theirs activated.
        status = "activated" if did["outcome"] == "present" else did["outcome"]
    return PushResult(
        host=entry.name,
        status=status,
        release=tree.hash,
        before=seen["current"],
        files=len(tree.files),
        bytes=tree.bytes,
        sent=sent,
        seconds=time.monotonic() - started,
        requests=requests,
        python=f"{'.'.join(map(str, seen['python']))} {seen['executable']}",
        workdir=seen["workdir"],
        selfcheck=did["selfcheck"],
        removed=tuple(did.get("removed", ())),
        damage=tuple(seen["damage"]),
        dry_run=dry_run,
        plan=_plan(tree, seen.get("manifest") or {}) if dry_run else (),
    )


def look(entry: HostEntry, host: Host, release: str, *, manifest: bool = False) -> dict[str, Any]:
    """Looks at a host before anything is changed: interpreter, disk, `current`, and how one release is.

    Returns:
        The answer of `hosts/scripts/release_probe.py`; with `manifest` also the files of the current release.
    """
    args = {"workdir": entry.workdir, "release": release, "manifest": manifest}
    return remote.call(
        host, "release_probe", args, python=entry.python, timeout=_PROBE_TIMEOUT_S, in_sight=True
    )


def _silent(_: str) -> None:
    """Tells nobody."""


def _needed(seen: Mapping[str, Any], release: str) -> str:
    if not seen["installed"]:
        return "installed"
    if seen["damage"]:
        return "repaired"
    return "unchanged" if seen["current"] == release and seen["checked"] else "activated"


def _install(
    entry: HostEntry, host: Host, tree: Tree, stream: bytes, say: Callable[[str], None]
) -> dict[str, Any]:
    args = {
        "workdir": entry.workdir,
        "release": tree.hash,
        "files": tree.manifest(),
        "env": dict(entry.env),
        "limit": _SELF_CHECK_S,
        "keep": KEEP,
    }
    try:
        return remote.call(
            host,
            "release_install",
            args,
            python=entry.python,
            stdin=_pieces(stream, say),
            timeout=_INSTALL_TIMEOUT_S,
        )
    except LinkError as error:
        raise _unknown_outcome(error, entry.name, "installed", f"push {entry.name}") from error


def _pieces(stream: bytes, say: Callable[[str], None]) -> Iterator[bytes]:
    say(f"sending {human_bytes(len(stream))}")
    for at in range(0, len(stream), _PIECE):
        yield stream[at : at + _PIECE]
    say("verifying and self-checking there (about 10 s)")


def _activate(entry: HostEntry, host: Host, release: str, command: str) -> dict[str, Any]:
    args = {
        "workdir": entry.workdir,
        "release": release,
        "env": dict(entry.env),
        "limit": _SELF_CHECK_S,
        "keep": KEEP,
    }
    try:
        return remote.call(host, "release_activate", args, python=entry.python, timeout=_INSTALL_TIMEOUT_S)
    except LinkError as error:
        raise _unknown_outcome(error, entry.name, "made current", command) from error


def _unknown_outcome(error: LinkError, name: str, what: str, command: str) -> LinkError:
    advice = f"{error.hint}; then " if error.hint else ""
    return LinkError(
        f"{error.message}. Whether the release was {what} on {name} before that is not known; `current` is "
        "either the old release or the new one, never a part of it",
        f"{advice}run `orch {command}`: it settles it",
        **error.details,
    )


def _plan(tree: Tree, theirs: Mapping[str, Mapping[str, Any]]) -> tuple[PlannedFile, ...]:
    lines = []
    for file in tree.files:
        there = theirs.get(file.path)
        reason = "new" if there is None else "unchanged" if there.get("sha256") == file.sha256 else "changed"
        lines.append(PlannedFile(file.path, file.size, reason))
    ours = {file.path for file in tree.files}
    lines += [
        PlannedFile(path, int(theirs[path]["size"]), "no longer there") for path in sorted(set(theirs) - ours)
    ]
    lines += [PlannedFile(item.path, 0, f"excluded: {item.rule}") for item in tree.excluded]
    return tuple(lines)


def rollback(entry: HostEntry, host: Host, release: str | None = None) -> RollbackResult:
    """Makes an installed release current again.

    Args:
        entry: the host in the inventory.
        host: the way to it.
        release: the start of its hash; None for the one that was current before this one.

    Raises:
        UsageError: there is no such release, or none to go back to.
        HostFailedError: its files are not those that were installed, or disk, permission, interpreter.
        PayloadRejectedError: its self-check fails under the interpreter that the inventory names now.
        LinkError: as for `push`.
    """
    started = time.monotonic()
    # Going back twice is not going back once: the release is named before anything changes, so that the
    # same request can be made again after a broken link.
    wanted = release or _earlier(entry, host)
    did = _activate(entry, host, wanted, f"rollback {entry.name} {wanted[:12]}")
    return RollbackResult(
        entry.name, did["release"], did["before"], time.monotonic() - started, did["selfcheck"]
    )


def _earlier(entry: HostEntry, host: Host) -> str:
    past = [item for item in list_releases(entry, host) if item.activated is not None and not item.current]
    if not past:
        raise UsageError(
            f"{entry.name}: there is no earlier release to go back to",
            f"push the version you want: orch push {entry.name}",
        )
    return past[-1].release


def list_releases(entry: HostEntry, host: Host) -> list[Release]:
    """Returns the releases installed on a host, the one activated last at the end."""
    return _rows(entry, host, None)[0]


def prune(entry: HostEntry, host: Host, keep: int = KEEP) -> tuple[str, ...]:
    """Removes all but the last `keep` releases, the current one and those that live jobs pin.

    Every push does this by itself. Returns the hashes of what was removed.
    """
    return _rows(entry, host, keep)[1]


def _rows(entry: HostEntry, host: Host, keep: int | None) -> tuple[list[Release], tuple[str, ...]]:
    args = {"workdir": entry.workdir, "keep": keep}
    answer = remote.call(host, "release_list", args, python=entry.python, timeout=_PROBE_TIMEOUT_S)
    return [Release(**row) for row in answer["releases"]], tuple(answer["removed"])
