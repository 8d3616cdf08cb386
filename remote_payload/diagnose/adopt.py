"""Writes a convention that was found into `orch.json` beside a checkpoint, where every later run reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remote_payload.drafters.checkpoint import read_declared
from remote_payload.durable import read_json, write_json

__all__ = ["adopt"]


def adopt(folder: Path, found: Mapping[str, Any]) -> str:
    """Adds the settings of a convention verdict to the checkpoint's record, and says what was done.

    Args:
        folder: the checkpoint's.
        found: the document.
    """
    mends = found.get("mends") or {}
    settings = mends.get("convention")
    if found["verdict"] != "convention" or not settings:
        return f"nothing to adopt: the verdict is {found['verdict']}" + (
            "; no setting of the convention makes this the declared way" if mends else ""
        )
    path = folder / "orch.json"
    record = dict(read_json(path)) if path.is_file() else {}
    record["convention"] = {**read_declared(folder), **settings}
    write_json(path, record)
    said = ", ".join(f"{name}={value}" for name, value in settings.items())
    return f"{path}: convention {said}; every later evaluation of this checkpoint reads it"
