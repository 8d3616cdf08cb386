"""Checkpoint references: from what a person types to folders with labels. Nothing is read from them here."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from orchestrator.errors import UsageError
from orchestrator.hosts import remote, resolve_entry
from orchestrator.hosts.local import LocalHost
from orchestrator.inventory import nearest

if TYPE_CHECKING:
    from orchestrator.hosts.base import Host
    from orchestrator.inventory import CheckpointEntry, Inventory

__all__ = ["CheckpointRef", "Opener", "interpreter", "resolve", "step_of"]

Opener = Callable[[str], "Host"]

_GLOB = re.compile(r"[*?\[]")


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
        host, "checkpoint_find", {"patterns": [ref.path]}, python=interpreter(inventory, ref.host)
    )
    found = answer["found"][ref.path]
    if not found["folders"]:
        others = f" ({found['others']} matches are no folders)" if found["others"] else ""
        raise UsageError(
            f"{ref.where}: no checkpoint folder matches{others}",
            "check the pattern; quote it, so that your own shell does not expand it",
        )
    return [replace(ref, path=path) for path in sorted(found["folders"], key=_natural)]


def interpreter(inventory: Inventory, host: str | None) -> str:
    """Returns the Python that looks at files on a host, or on this machine (None)."""
    return sys.executable if host is None else resolve_entry(inventory, host).python


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
