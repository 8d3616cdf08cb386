"""Staging: a checkpoint's files exist on a host under their hash, sent at most once, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orchestrator.errors import CheckpointRejectedError, HostFailedError, LinkError, OrchError
from orchestrator.hosts import remote
from orchestrator.hosts.local import LocalHost
from orchestrator.text import human_bytes

if TYPE_CHECKING:
    from orchestrator.checkpoints.look import Checkpoint
    from orchestrator.checkpoints.references import CheckpointRef
    from orchestrator.hosts.base import Host
    from orchestrator.inventory import HostEntry

__all__ = ["Progress", "stage", "stage_current"]

Progress = Callable[[int, int], None]

_SILENCE_S = 60.0
_SLOWEST = 256 * 1024  # bytes a second: a transfer that is slower than this is taken for hung
_MARGIN = 32 << 20


def stage(
    checkpoint: Checkpoint,
    source: Host | None,
    source_python: str,
    destination: Host,
    entry: HostEntry,
    progress: Progress | None = None,
) -> str:
    """Makes a checkpoint exist in a host's store and returns its folder there.

    Args:
        checkpoint: as `inspect` found it.
        source: the way to the host it lies on; None for this machine.
        source_python: the interpreter there.
        destination: the way to the host that needs it.
        entry: that host in the inventory.
        progress: told (bytes sent, bytes in all) as they pass; not called when nothing is sent.

    Raises:
        HostFailedError: no room, no permission.
        CheckpointRejectedError: the files changed since they were looked at (`changed` in its details); of a
            training state that could not be read, too.
        LinkError: a link broke; nothing half-done is left, and the same call can be made again.
    """
    args: dict[str, Any] = {"workdir": entry.workdir, "hash": checkpoint.hash}
    seen = remote.call(destination, "checkpoint_have", args, python=entry.python)
    if seen["there"]:
        return str(seen["path"])
    _need_room(checkpoint, entry.name, seen["disk"])
    args["files"] = {
        file.name: {"size": file.size, "sha256": file.sha256, "origin": dict(file.origin)}
        for file in checkpoint.files
    }
    limit = 300 + checkpoint.size / _SLOWEST
    if checkpoint.host == entry.name:
        args["local"] = True
        done = remote.call(destination, "checkpoint_receive", args, python=entry.python, timeout=limit)
        return str(done["path"])
    sender = _Sender(checkpoint, source if source is not None else LocalHost(), source_python, progress)
    try:
        done = remote.call(
            destination, "checkpoint_receive", args, python=entry.python, stdin=sender.pieces(), timeout=limit
        )
    except OrchError:
        sender.raise_own()
        raise
    return str(done["path"])


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


def _need_room(checkpoint: Checkpoint, name: str, disk: Mapping[str, Any]) -> None:
    needed = checkpoint.size + max(_MARGIN, checkpoint.size // 50)
    if disk["free"] < needed:
        raise HostFailedError(
            f"{name}: {checkpoint.label} needs {human_bytes(needed)} at {disk['path']}, where "
            f"{human_bytes(disk['free'])} of {human_bytes(disk['total'])} are free",
            f"free space on {name}, or set another `workdir:` in the inventory; nothing was sent",
            host=name,
            disk=dict(disk),
        )


class _Sender:
    """The stream from the source, with its failure kept: the receiver only sees an early end."""

    def __init__(self, checkpoint: Checkpoint, host: Host, python: str, progress: Progress | None) -> None:
        self._checkpoint, self._host, self._python, self._progress = checkpoint, host, python, progress
        self._failure: OrchError | None = None

    def pieces(self) -> Iterator[bytes]:
        args = {"files": [[file.name, file.size, dict(file.origin)] for file in self._checkpoint.files]}
        sent, total = 0, self._checkpoint.size
        try:
            for piece in remote.stream(
                self._host, "checkpoint_send", args, python=self._python, timeout=_SILENCE_S
            ):
                yield piece
                sent += len(piece)
                if self._progress:
                    self._progress(
                        min(sent, total), total
                    )  # the archive's own headers are not the checkpoint's
        except OrchError as error:
            self._failure = error

    def raise_own(self) -> None:
        """Raises what went wrong at the source, if something did."""
        where = self._checkpoint.ref.where
        if isinstance(self._failure, LinkError):
            raise self._failure
        if self._failure is not None:
            raise CheckpointRejectedError(
                f"{where} could not be read to its end: {self._failure.message}",
                "if training is still writing it, wait until it has finished; then run this again",
                host=self._checkpoint.host,
                path=self._checkpoint.path,
                changed=True,
            ) from self._failure
