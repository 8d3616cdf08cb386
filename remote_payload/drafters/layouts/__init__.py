"""The on-disk layouts of a drafter, one file each; `docs/checkpoints.md` lists them with their tests.

What always holds: `find_source` decides by the files that are there, safetensors before pickles, and never
by a folder's name; a layout hands out tensors under their stored names, and `names` alone knows what those
mean.
"""

from __future__ import annotations

from pathlib import Path

from remote_payload.drafters.layouts.base import Source, StoredTensor
from remote_payload.drafters.layouts.safetensors_files import INDEX, WHOLE, safetensors_source
from remote_payload.drafters.layouts.training_state import STATE, training_state_source
from remote_payload.errors import CheckpointError

__all__ = ["Source", "StoredTensor", "find_source"]


def find_source(folder: Path, draft_config: Path | None = None) -> Source:
    """Returns how a folder is to be read.

    Args:
        folder: the checkpoint's folder; a link to one is followed.
        draft_config: the config of a raw checkpoint that has none beside it; one that brings its own
            safetensors and config.json keeps its own.

    Raises:
        CheckpointError: it is not a drafter in any known layout; the message says what is missing.
    """
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is not a folder: a drafter is a folder with config.json and safetensors, or a raw "
            f"checkpoint with {STATE}"
        )
    if (folder / INDEX).is_file() or (folder / WHOLE).is_file() or not (folder / STATE).is_file():
        return safetensors_source(folder)
    return training_state_source(folder, draft_config)
