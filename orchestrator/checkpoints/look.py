"""A look at a checkpoint where it lies: is it whole and still, what belongs to it, what is its hash.

What always holds: a link is followed on the host, once, and the checkpoint that comes back is the folder it
led to, under a label that names it; a folder that a running trainer is still writing is waited for, with a
message, as long as it moves, and never longer than the patience allows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from orchestrator.checkpoints.references import CheckpointRef, interpreter, step_of
from orchestrator.errors import CheckpointRejectedError
from orchestrator.hosts import remote
from orchestrator.hosts.local import LocalHost

if TYPE_CHECKING:
    from orchestrator.hosts.base import Host
    from orchestrator.inventory import Inventory

__all__ = ["Checkpoint", "CheckpointFile", "Patience", "inspect"]

_INSPECT_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class CheckpointFile:
    """One file of a drafter as it is staged, and where its bytes come from on the host it lies on.

    `origin` is {"file": path}, {"text": text} (a config that was given), or {"torch": path} (the drafter's
    part of a training state, which is sent as safetensors).
    """

    name: str
    size: int
    sha256: str
    origin: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """A drafter that was looked at: whole, hashed, its config readable.

    `path` is its folder with links followed. `convention` is what its orch.json declares, overridden by what
    the inventory says of it. `step` is the training step by its folder's name, None if that does not tell.
    `used_draft_config` tells whether the config that was given is its own.
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
    used_draft_config: bool = False

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def where(self) -> str:
        """host:path, or the path here, links followed."""
        return f"{self.host}:{self.path}" if self.host else self.path


@dataclass(frozen=True)
class Patience:
    """How long an unfinished checkpoint is waited for, in seconds.

    limit_s: in all; quiet_s: since anything in its folder last changed, by the host's clock; pause_s: between
    two looks.
    """

    limit_s: float = 120.0
    quiet_s: float = 15.0
    pause_s: float = 2.0


def inspect(
    inventory: Inventory,
    ref: CheckpointRef,
    host: Host | None,
    *,
    draft_config: str | None = None,
    patience: Patience | None = None,
    report: Callable[[str], None] | None = None,
) -> Checkpoint:
    """Looks at a checkpoint where it lies.

    Args:
        inventory: for the host's interpreter.
        ref: the folder, or a link to one.
        host: the way to `ref.host`; None for this machine.
        draft_config: text of a config, for a raw training state.
        patience: how long a checkpoint that is still being written is waited for.
        report: told, once, that it is waited for, and why.

    Raises:
        CheckpointRejectedError: not there, not whole, still being written, or its config lacks what an eval
            needs; the message names the place and the next step.
    """
    at: Host = host if host is not None else LocalHost()
    args = {"path": ref.path, "draft_config": draft_config}
    answer = _patient_look(at, args, interpreter(inventory, ref.host), ref, patience or Patience(), report)
    files = tuple(
        CheckpointFile(name, item["size"], item["sha256"], item["origin"])
        for name, item in answer["files"].items()
    )
    step = step_of(answer["real_path"])
    return Checkpoint(
        label=_label(ref, answer["path"], answer["real_path"]),
        ref=ref,
        host=ref.host,
        path=answer["real_path"],
        files=files,
        hash=answer["hash"],
        config=answer["config"],
        convention={**answer["convention"], **ref.convention},
        step=step_of(answer["path"]) if step is None else step,
        used_draft_config=answer["used_draft_config"],
    )


def _patient_look(
    host: Host,
    args: Mapping[str, Any],
    python: str,
    ref: CheckpointRef,
    patience: Patience,
    report: Callable[[str], None] | None,
) -> dict[str, Any]:
    end = time.monotonic() + patience.limit_s
    told = False
    while True:
        try:
            return remote.call(host, "checkpoint_inspect", args, python=python, timeout=_INSPECT_TIMEOUT_S)
        except CheckpointRejectedError as error:
            moving = error.details.get("unfinished") and error.details["age_s"] < patience.quiet_s
            if not moving or time.monotonic() + patience.pause_s > end:
                raise
            if report and not told:
                report(f"waiting for {ref.where}, which is still being written: {error.message}")
            told = True
        time.sleep(patience.pause_s)


def _label(ref: CheckpointRef, path: str, real_path: str) -> str:
    """Returns the reference's label; for a link the name of the folder that it leads to."""
    asked, found = PurePosixPath(path), PurePosixPath(real_path)
    if ref.name or asked.name == found.name:
        return ref.label
    # speculators calls its folders by the epoch alone
    return f"{found.parent.name}/{found.name}" if found.name.isdecimal() else found.name
