"""A look at a checkpoint where it lies: is it whole, what belongs to it, what is its hash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.checkpoints.references import CheckpointRef, interpreter, step_of
from orchestrator.hosts import remote
from orchestrator.hosts.local import LocalHost

if TYPE_CHECKING:
    from orchestrator.hosts.base import Host
    from orchestrator.inventory import Inventory

__all__ = ["Checkpoint", "CheckpointFile", "inspect"]

_INSPECT_TIMEOUT_S = 3600.0


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
    python = interpreter(inventory, ref.host)
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
