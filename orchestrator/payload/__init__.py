"""The payload: its tree of files (`tree`) and what speaks against shipping it (`check`)."""

from __future__ import annotations

from orchestrator.payload.check import Finding, check
from orchestrator.payload.tree import OVERLAY_FOLDERS, PACKAGE, Excluded, Tree, TreeFile, archive, load_tree

__all__ = [
    "OVERLAY_FOLDERS",
    "PACKAGE",
    "Excluded",
    "Finding",
    "Tree",
    "TreeFile",
    "archive",
    "check",
    "load_tree",
]
