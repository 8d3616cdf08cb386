"""SpecForge's raw checkpoint: `<run>-step<N>/training_state.pt`, the drafter inside a trainer's state.

What always holds: the file is opened with `weights_only=True` (nothing in it can run) and memory-mapped, so
that of the optimizer beside the drafter only the bookkeeping is read. Its identity is that of the drafter
alone: of the config and of the safetensors file that `converted_entry` describes, so that a raw checkpoint
has one hash here, on the training host, and where it was staged without its optimizer.

The converted file: header keys sorted, offsets in order of (element size descending, name), the header
padded with spaces to a multiple of eight, tensors contiguous, little-endian. `checkpoint_origin.py` of
`orch` writes the same bytes with the standard library only.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
import sys
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from remote_payload.drafters.layouts.base import StoredTensor
from remote_payload.durable import ProtocolError, file_sha256, read_json
from remote_payload.errors import CheckpointError

__all__ = ["CONFIG_NAMES", "STATE", "TrainingStateSource", "converted_entry", "training_state_source"]

STATE = "training_state.pt"
DRAFT = "draft_state_dict"
CONFIG_NAMES = ("config.json", "draft_config.json", "draft_model_config.json")
"""Where the drafter's config is looked for: in the step's folder first, then in the one above."""

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True)
class TrainingStateSource:
    """A folder with `training_state.pt`, and the config that describes its drafter."""

    folder: Path
    config: Path
    declared: Path | None

    @property
    def files(self) -> tuple[Path, ...]:
        """The config, orch.json if there is one, the state."""
        return (self.config, *([self.declared] if self.declared else []), self.folder / STATE)

    def tensors(self) -> Iterator[StoredTensor]:
        """Yields the drafter's tensors; see `Source.tensors`. `load` copies out of the mapped file."""
        for name, tensor in _draft_state(self.folder / STATE).items():
            # The copy outlives the file, which a running trainer may rotate away.
            yield StoredTensor(name, tuple(tensor.shape), tensor.detach().clone)

    def entries(self) -> list[tuple[str, int, str]]:
        """Returns the files that staging makes of it; see `Source.entries`."""
        found = [("config.json", self.config.stat().st_size, file_sha256(self.config))]
        if self.declared:
            found.append(("orch.json", self.declared.stat().st_size, file_sha256(self.declared)))
        found.append(converted_entry(_draft_state(self.folder / STATE), self.folder / STATE))
        return found


def training_state_source(folder: Path, draft_config: Path | None = None) -> TrainingStateSource:
    """Finds the config of a raw checkpoint: the one that is given, else the first that lies beside it.

    Raises:
        CheckpointError: none is there; the message lists where it was looked for.
    """
    declared = folder / "orch.json"
    config = draft_config or _config_beside(folder)
    return TrainingStateSource(folder, config, declared if declared.is_file() else None)


def _config_beside(folder: Path) -> Path:
    for parent in (folder, folder.resolve().parent):
        for name in CONFIG_NAMES:
            if _describes_a_model(parent / name):
                return parent / name
    raise CheckpointError(
        f"{folder}: {STATE} holds a drafter's tensors, but no config of the drafter is there or in the folder "
        f"above ({', '.join(CONFIG_NAMES)} with hidden_size and num_hidden_layers). Name the one that training "
        "used with --draft-config FILE"
    )


def _describes_a_model(path: Path) -> bool:
    """Whether a file is a model's config: the trainer's own config may have the same name."""
    if not path.is_file():
        return False
    try:
        record = read_json(path)
    except ProtocolError as error:
        raise CheckpointError(f"{error}; is it still being written?") from error
    return isinstance(record, dict) and "hidden_size" in record and "num_hidden_layers" in record


def _draft_state(path: Path) -> dict[str, torch.Tensor]:
    """Maps a training state and returns the drafter's part of it."""
    if not zipfile.is_zipfile(path):
        raise CheckpointError(
            f"{path}: truncated, still being written, or not a file of torch.save (version 1.6 or newer)"
        )
    try:
        with warnings.catch_warnings():
            # A note about pickle protocols; what cannot be read raises.
            warnings.filterwarnings("ignore", message="Detected pickle protocol", category=UserWarning)
            state: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, KeyError, EOFError, OSError) as error:
        # torch's own text recommends unpickling it in full; what it was met with stands in the context.
        reason = str(error.__context__ or error).split("\n", 1)[0][:300]
        raise CheckpointError(
            f"{path}: refused: it is damaged, or holds more than tensors and plain values, which is never "
            f"executed ({reason}). Export the drafter as safetensors"
        ) from error
    if not isinstance(state, Mapping) or not isinstance(state.get(DRAFT), Mapping):
        keys = ", ".join(map(str, list(state)[:12])) if isinstance(state, Mapping) else type(state).__name__
        raise CheckpointError(
            f"{path}: it has no {DRAFT} (it has: {keys}); it is not a drafter's training state"
        )
    odd = [str(name) for name, value in state[DRAFT].items() if not isinstance(value, torch.Tensor)]
    if odd:
        raise CheckpointError(f"{path}: {DRAFT} holds what is no tensor: {', '.join(odd)}")
    return {str(name): tensor for name, tensor in state[DRAFT].items()}


def converted_entry(tensors: Mapping[str, torch.Tensor], where: Path) -> tuple[str, int, str]:
    """Returns (name, size, SHA-256) of the safetensors file that these tensors make (see the module)."""
    if sys.byteorder != "little":
        raise CheckpointError(f"{where}: a raw checkpoint can only be read on a little-endian machine")
    unknown = [f"{n} of type {t.dtype}" for n, t in tensors.items() if t.dtype not in _DTYPES]
    if unknown:
        raise CheckpointError(f"{where}: tensors of a type that is not read: {', '.join(unknown)}")
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header, at = {}, 0
    for name in order:
        size = tensors[name].numel() * tensors[name].element_size()
        header[name] = {
            "dtype": _DTYPES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256(struct.pack("<Q", len(text)) + text)
    for name in order:
        flat = tensors[name].detach().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return "model.safetensors", 8 + len(text) + at, digest.hexdigest()
