"""Declares a convention beside a checkpoint, where it lies: `orch.json`, which every later eval reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.checkpoints.references import interpreter, resolve
from orchestrator.hosts import remote
from orchestrator.hosts.local import LocalHost

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.checkpoints.references import Opener
    from orchestrator.hosts.base import Host
    from orchestrator.inventory import Inventory

__all__ = ["adopt"]


def adopt(inventory: Inventory, where: str, settings: Mapping[str, Any], opener: Opener) -> str:
    """Adds settings to the convention that is declared beside a checkpoint.

    Args:
        inventory: knows the hosts.
        where: the checkpoint, HOST:PATH or a path here, links followed.
        settings: of a convention.
        opener: opens a host by name.

    Returns:
        Where the record is.

    Raises:
        OrchError: the place cannot be written, or holds a file of that name that is no such record.
    """
    (ref,) = resolve(inventory, [where], opener)
    host: Host = LocalHost() if ref.host is None else opener(ref.host)
    answer = remote.call(
        host,
        "checkpoint_adopt",
        {"path": ref.path, "settings": dict(settings)},
        python=interpreter(inventory, ref.host),
    )
    return f"{ref.host}:{answer['path']}" if ref.host else str(answer["path"])
