"""Checkpoint references: from what a person types to a verified drafter in a host's store.

What always holds:

* `resolve` turns references into folders without reading them, `inspect` looks at one and hashes exactly
  the files that the payload's reader takes, `stage` makes those files exist on another host under that hash.
  Of a trainer's raw state only the drafter's tensors are read and sent, as safetensors; no pickle is ever run.
* A checkpoint's identity is `durable.tree_hash` over those files; where it lies and what it is called is
  not part of it. Staging never sends what is there, and no part of something is ever under its final name.
* A name of the inventory wins over a path of the same spelling (`./name` is the path). Relative paths start
  in the current folder when typed, beside the inventory when written there, in the home folder on a host.
"""

from __future__ import annotations

from orchestrator.checkpoints.adopt import adopt
from orchestrator.checkpoints.look import Checkpoint, CheckpointFile, Patience, inspect
from orchestrator.checkpoints.references import CheckpointRef, Opener, resolve, step_of
from orchestrator.checkpoints.staging import Progress, fetch, stage, stage_current

__all__ = [
    "Checkpoint",
    "CheckpointFile",
    "CheckpointRef",
    "Opener",
    "Patience",
    "Progress",
    "adopt",
    "fetch",
    "inspect",
    "resolve",
    "stage",
    "stage_current",
    "step_of",
]
