"""Staging: a checkpoint's files exist on a host under their hash, sent at most once, whole or not at all."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orchestrator.errors import CheckpointRejectedError
from orchestrator.hosts import remote
from orchestrator.hosts.introduce import may_lend_agent
from orchestrator.hosts.local import LocalHost
from orchestrator.transfer import (
    Delivery,
    Direct,
    File,
    Parcel,
    Place,
    Progress,
    Site,
    SourceError,
    deliver,
    need_room,
    plan,
)

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.checkpoints.look import Checkpoint
    from orchestrator.checkpoints.references import CheckpointRef
    from orchestrator.hosts.base import Host
    from orchestrator.inventory import HostEntry

__all__ = ["Progress", "fetch", "stage", "stage_current"]

STORE = "checkpoints"
"""The folder of a host's work folder in which checkpoints are kept, each under its hash."""

_REMEDY = "set another `workdir:` in the inventory"
_SLOWEST = 256 * 1024  # bytes a second: a copy that is slower than this is taken for hung


def stage(
    checkpoint: Checkpoint,
    source: Host | None,
    source_python: str,
    destination: Host,
    entry: HostEntry,
    progress: Progress | None = None,
    *,
    report: Callable[[str], None] | None = None,
) -> str:
    """Makes a checkpoint exist in a host's store and returns its folder there.

    Args:
        checkpoint: as `inspect` found it.
        source: the way to the host it lies on; None for this machine.
        source_python: the interpreter there.
        destination: the way to the host that needs it.
        entry: that host in the inventory.
        progress: told (bytes there, bytes in all) as they pass; not called when nothing is sent.
        report: told, in a sentence, what became of the direct way if it could not be taken.

    Raises:
        HostFailedError: no room, no permission.
        CheckpointRejectedError: the files changed since they were looked at (`changed` in its details); of a
            training state that could not be read, too.
        LinkError: a link broke; what arrived is kept, and the same call goes on from there.
    """
    if checkpoint.host == entry.name:
        return _copy_there(checkpoint, destination, entry)
    try:
        return deliver(
            _parcel(checkpoint),
            Site(source if source is not None else LocalHost(), source_python),
            Site(destination, entry.python),
            Place(entry.workdir, STORE),
            remedy=_REMEDY,
            direct=None if source is None else Direct(entry.one_off_key, may_lend_agent(source)),
            progress=progress,
            report=report,
        ).path
    except SourceError as error:
        raise _changed(checkpoint, error) from error


def fetch(
    checkpoint: Checkpoint,
    source: Host | None,
    source_python: str,
    folder: Path,
    progress: Progress | None = None,
) -> Delivery:
    """Makes a checkpoint exist in a folder of this machine, as plain files that are the user's to change.

    Args:
        checkpoint: as `inspect` found it.
        source: the way to the host it lies on; None for this machine.
        source_python: the interpreter there.
        folder: where it is to be: a new folder, an empty one, or one that holds just this already.
        progress: told (bytes there, bytes in all) as they pass; not called when nothing is sent.

    Raises:
        HostFailedError: no room, no permission, something else is in the folder.
        CheckpointRejectedError, LinkError: as `stage` does.
    """
    try:
        return deliver(
            _parcel(checkpoint, folder.name),
            Site(source if source is not None else LocalHost(), source_python),
            Site(LocalHost(), sys.executable),
            Place(str(folder.parent), plain=True),
            remedy="name a folder on another disk",
            progress=progress,
        )
    except SourceError as error:
        raise _changed(checkpoint, error) from error


def _copy_there(checkpoint: Checkpoint, host: Host, entry: HostEntry) -> str:
    """Stages a checkpoint on the host that it lies on."""
    parcel = _parcel(checkpoint)
    need = plan(parcel, Site(host, entry.python), Place(entry.workdir, STORE))
    if need.there:
        return need.path
    need_room(parcel, need, entry.name, _REMEDY)
    args: dict[str, Any] = {"workdir": entry.workdir, "hash": checkpoint.hash}
    args["files"] = {
        file.name: {"size": file.size, "sha256": file.sha256, "origin": dict(file.origin)}
        for file in checkpoint.files
    }
    limit = 300 + checkpoint.size / _SLOWEST
    done = remote.call(host, "checkpoint_copy", args, python=entry.python, timeout=limit)
    return str(done["path"])


def _parcel(checkpoint: Checkpoint, name: str = "") -> Parcel:
    files = {file.name: File(file.size, file.sha256, file.origin) for file in checkpoint.files}
    return Parcel(name or checkpoint.hash, checkpoint.label, files)


def _changed(checkpoint: Checkpoint, error: SourceError) -> CheckpointRejectedError:
    """Says of a source that failed what it means for a checkpoint: most likely training writes it still."""
    return CheckpointRejectedError(
        f"{checkpoint.ref.where} did not come as it was looked at: {error.message}",
        "it changed while it was sent: wait until it is finished, then run this again",
        host=checkpoint.host,
        path=checkpoint.path,
        changed=True,
    )


def stage_current(
    checkpoint: Checkpoint,
    send: Callable[[Checkpoint], str],
    look: Callable[[CheckpointRef], Checkpoint],
    report: Callable[[str], None],
) -> tuple[Checkpoint, str]:
    """Stages a checkpoint of a running trainer: one that changed since the look is looked at and sent once more.

    Args:
        checkpoint: as it was looked at.
        send: stages it and returns its folder there.
        look: looks at a reference again.
        report: told that it changed.

    Returns:
        What was staged (another step, if a link leads elsewhere by now), and its folder.

    Raises:
        CheckpointRejectedError: it changed again, or is gone.
    """
    try:
        return checkpoint, send(checkpoint)
    except CheckpointRejectedError as error:
        if not error.details.get("changed"):
            raise
        report(f"{checkpoint.where} changed while it was sent; looking at it again")
    again = look(checkpoint.ref)
    if again.path == checkpoint.path:
        again = replace(again, label=checkpoint.label)
    return again, send(again)
