"""Checkpoint references: from what a person types to a verified drafter in a host's store.

What always holds:

* `resolve` turns references into folders without reading them, `inspect` looks at one and hashes exactly
  the files that the payload's reader takes, `stage` makes those files exist on another host under that hash.
* A checkpoint's identity is `protocol.tree_hash` over those files; where it lies and what it is called is
  not part of it. Staging never sends what is there, and never leaves a part of something.
* A name of the inventory wins over a path of the same spelling (`./name` is the path). Relative paths start
  in the current folder when typed, beside the inventory when written there, in the home folder on a host.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from orchestrator.errors import CheckpointRejectedError, HostFailedError, LinkError, OrchError, UsageError
from orchestrator.hosts import remote
from orchestrator.hosts.local import LocalHost
from orchestrator.inventory import nearest
from orchestrator.text import human_bytes

if TYPE_CHECKING:
    from orchestrator.hosts.base import Host
    from orchestrator.inventory import CheckpointEntry, HostEntry, Inventory

__all__ = ["Checkpoint", "CheckpointFile", "CheckpointRef", "inspect", "resolve", "stage"]

Opener = Callable[[str], "Host"]
Progress = Callable[[int, int], None]

_GLOB = re.compile(r"[*?\[]")
_INSPECT_TIMEOUT_S = 3600.0
_SILENCE_S = 60.0
_SLOWEST = 256 * 1024  # bytes a second: a transfer that is slower than this is taken for hung
_MARGIN = 32 << 20


@dataclass(frozen=True)
class CheckpointRef:
    """A reference, resolved to one folder. `host` None is this machine; `name` is the inventory's, if any."""

    text: str
    host: str | None
    path: str
    label: str
    name: str | None = None
    convention: Mapping[str, Any] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """host:path, or the path here."""
        return f"{self.host}:{self.path}" if self.host else self.path


@dataclass(frozen=True)
class CheckpointFile:
    """One file of a drafter."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Checkpoint:
    """A drafter that was looked at: whole, hashed, its config readable.

    `convention` is what its orch.json declares, overridden by what the inventory says of it. `step` is the
    training step by its folder's name, None if that does not tell.
    """

    label: str
    ref: CheckpointRef
    host: str | None
    path: str
    files: tuple[CheckpointFile, ...]
    hash: str
    config: Mapping[str, Any]
    convention: Mapping[str, Any]
    step: int | None

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


# --------------------------------------------------------------------------- references


def resolve(inventory: Inventory, refs: Sequence[str], opener: Opener) -> list[CheckpointRef]:
    """Turns references into folders, each once, in the order given (a glob's matches by step number).

    Args:
        inventory: hosts, and the names of baselines and drafters.
        refs: PATH, HOST:PATH, a name, or a glob in a path.
        opener: opens a host by name; asked only for globs on hosts.

    Raises:
        UsageError: a reference that names nothing, an unknown host, a glob without a match.
    """
    found: list[CheckpointRef] = []
    for text in refs:
        for ref in _expand(inventory, _parse(inventory, text), opener):
            if not any(_same(ref, other) for other in found):
                found.append(ref)
    return _with_labels(found)


def _same(one: CheckpointRef, other: CheckpointRef) -> bool:
    # The same files under another convention are another measurement.
    return (one.host, one.path, one.convention) == (other.host, other.path, other.convention)


def _parse(inventory: Inventory, text: str) -> CheckpointRef:
    entry = inventory.checkpoint(text)
    if entry is not None:
        return _parse_entry(inventory, entry)
    host, path = _split(inventory, text)
    if host is None:
        path = str(Path(path).expanduser().absolute())
    return CheckpointRef(text, host, path, "")


def _parse_entry(inventory: Inventory, entry: CheckpointEntry) -> CheckpointRef:
    host, path = _split(inventory, entry.ckpt)
    if host is None:
        path = str(inventory.resolve(path))
    return CheckpointRef(entry.ckpt, host, path, "", entry.name, dict(entry.convention))


def _split(inventory: Inventory, text: str) -> tuple[str | None, str]:
    head, colon, path = text.partition(":")
    if head == "hf" and colon:
        repository = path.partition("@")[0]
        there = f"~/ckpt/{PurePosixPath(repository).name}"
        raise UsageError(
            f"{text}: checkpoints from the Hugging Face hub are not fetched by orch yet",
            f"on the host: `hf download {repository} --local-dir {there}`, then --ckpt HOST:{there}",
        )
    if not text:
        raise UsageError(
            "an empty checkpoint reference", "pass --ckpt PATH, HOST:PATH or a name of the inventory"
        )
    if not colon or "/" in head:
        return None, text
    if head not in inventory.hosts:
        close = nearest(head, inventory.hosts)
        raise UsageError(
            f"{text}: there is no host {head!r} in {inventory.path}",
            (f"did you mean {close}:{path}? " if close else "")
            + f"hosts: {', '.join(inventory.hosts) or 'none'}; a path here with a colon is written ./{text}",
        )
    if not path:
        raise UsageError(f"{text}: no path after the host", f"write {head}:/path/to/checkpoint")
    return head, path


def _expand(inventory: Inventory, ref: CheckpointRef, opener: Opener) -> list[CheckpointRef]:
    if not _GLOB.search(ref.path):
        return [ref]
    host: Host = LocalHost() if ref.host is None else opener(ref.host)
    answer = remote.call(
        host, "checkpoint_find", {"patterns": [ref.path]}, python=_python(inventory, ref.host)
    )
    found = answer["found"][ref.path]
    if not found["folders"]:
        others = f" ({found['others']} matches are no folders)" if found["others"] else ""
        raise UsageError(
            f"{ref.where}: no checkpoint folder matches{others}",
            "check the pattern; quote it, so that your own shell does not expand it",
        )
    return [replace(ref, path=path) for path in sorted(found["folders"], key=_natural)]


def _python(inventory: Inventory, host: str | None) -> str:
    return sys.executable if host is None else inventory.host(host).python


def _natural(path: str) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", path)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]


def _with_labels(refs: Sequence[CheckpointRef]) -> list[CheckpointRef]:
    """Labels by the inventory's name or by folder; equal folders get more of their path, then their host."""
    depth = [1] * len(refs)
    while True:
        labels = [_label(ref, count) for ref, count in zip(refs, depth, strict=True)]
        clashing = [
            index
            for index, (ref, label) in enumerate(zip(refs, labels, strict=True))
            if labels.count(label) > 1 and not ref.name and depth[index] <= _depth(ref)
        ]
        if not clashing:
            return [replace(ref, label=label) for ref, label in zip(refs, labels, strict=True)]
        for index in clashing:
            depth[index] += 1


def _depth(ref: CheckpointRef) -> int:
    return len(PurePosixPath(ref.path).parts)


def _label(ref: CheckpointRef, count: int) -> str:
    if ref.name:
        return ref.name
    parts = [part for part in PurePosixPath(ref.path).parts if part not in ("/", "~")]
    label = "/".join(parts[-count:])
    return f"{ref.host or 'here'}:{label}" if count > _depth(ref) else label


def step_of(path: str) -> int | None:
    """Returns the training step that a checkpoint's folder (or the one above it) is named after."""
    for part in reversed(PurePosixPath(path).parts[-2:]):
        named = re.findall(r"step[-_=]?(\d+)", part, re.IGNORECASE)
        if named:
            return int(named[-1])
    last = re.search(r"(\d+)$", PurePosixPath(path).name)
    return int(last.group(1)) if last else None


# --------------------------------------------------------------------------- looking


def inspect(inventory: Inventory, ref: CheckpointRef, host: Host | None) -> Checkpoint:
    """Looks at a checkpoint where it lies.

    Args:
        inventory: for the host's interpreter.
        ref: the folder.
        host: the way to `ref.host`; None for this machine.

    Raises:
        CheckpointRejectedError: not there, not whole, still being written, or its config lacks what an eval
            needs; the message names the place and the next step.
    """
    at: Host = host if host is not None else LocalHost()
    python = _python(inventory, ref.host)
    answer = remote.call(
        at, "checkpoint_inspect", {"path": ref.path}, python=python, timeout=_INSPECT_TIMEOUT_S
    )
    files = tuple(
        CheckpointFile(name, item["size"], item["sha256"]) for name, item in answer["files"].items()
    )
    step = step_of(answer["path"])
    return Checkpoint(
        label=ref.label,
        ref=ref,
        host=ref.host,
        path=answer["path"],
        files=files,
        hash=answer["hash"],
        config=answer["config"],
        convention={**answer["convention"], **ref.convention},
        step=step_of(answer["real_path"]) if step is None else step,
    )


# --------------------------------------------------------------------------- staging


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
        CheckpointRejectedError: the files changed since they were looked at.
        LinkError: a link broke; nothing half-done is left, and the same call can be made again.
    """
    args: dict[str, Any] = {"workdir": entry.workdir, "hash": checkpoint.hash}
    seen = remote.call(destination, "checkpoint_have", args, python=entry.python)
    if seen["there"]:
        return str(seen["path"])
    _need_room(checkpoint, entry.name, seen["disk"])
    args["files"] = {file.name: {"size": file.size, "sha256": file.sha256} for file in checkpoint.files}
    limit = 300 + checkpoint.size / _SLOWEST
    if checkpoint.host == entry.name:
        args["local"] = checkpoint.path
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
        files = [[file.name, file.size] for file in self._checkpoint.files]
        args = {"path": self._checkpoint.path, "files": files}
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
            ) from self._failure
