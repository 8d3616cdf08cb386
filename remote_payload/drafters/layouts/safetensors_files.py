"""Layouts whose tensors lie in safetensors: z-lab, SpecForge exports, `epoch_E_step_N`, speculators.

What always holds: the files are those that an index names, or `model.safetensors`; whatever else a trainer
leaves in the folder (`training_state.pt`, optimizer shards) is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from remote_payload.drafters.layouts.base import StoredTensor
from remote_payload.durable import ProtocolError, file_sha256, read_json
from remote_payload.errors import CheckpointError

__all__ = ["INDEX", "WHOLE", "SafetensorsSource", "safetensors_source"]

INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"


@dataclass(frozen=True)
class SafetensorsSource:
    """A folder with config.json and safetensors, in one file or in shards with an index."""

    folder: Path
    files: tuple[Path, ...]

    @property
    def config(self) -> Path:
        """config.json."""
        return self.files[0]

    def tensors(self) -> Iterator[StoredTensor]:
        """Yields every stored tensor; see `Source.tensors`."""
        for file in self.files:
            if file.suffix != ".safetensors":
                continue
            try:
                # Held open by the tensors that are still to be read.
                reader: Any = safe_open(str(file), framework="pt", device="cpu")
                stored = {name: tuple(reader.get_slice(name).get_shape()) for name in list(reader.keys())}
            except (SafetensorError, OSError, ValueError) as error:
                raise CheckpointError(
                    f"{file}: cannot be read ({error}); it is truncated or still written"
                ) from error
            for name, shape in stored.items():
                yield StoredTensor(name, shape, partial(reader.get_tensor, name))

    def entries(self) -> list[tuple[str, int, str]]:
        """Returns the files as they are; see `Source.entries`."""
        return [(file.name, file.stat().st_size, file_sha256(file)) for file in self.files]


def safetensors_source(folder: Path) -> SafetensorsSource:
    """Finds the files of a folder with safetensors.

    Raises:
        CheckpointError: the config or tensors are not there, or the index names a missing or foreign file.
    """
    files = [folder / "config.json"]
    if (folder / "orch.json").is_file():
        files.append(folder / "orch.json")
    index = folder / INDEX
    if index.is_file():
        files += [index, *(folder / shard for shard in _shards(index))]
    elif (folder / WHOLE).is_file():
        files.append(folder / WHOLE)
    else:
        raise CheckpointError(f"{folder} has no model.safetensors (and no index of shards)")
    absent = [file.name for file in files if not file.is_file()]
    if absent:
        raise CheckpointError(
            f"{folder}: {', '.join(absent)} not there; is the checkpoint still being written?"
        )
    return SafetensorsSource(folder, tuple(files))


def _shards(index: Path) -> list[str]:
    try:
        shards = sorted(set(read_json(index)["weight_map"].values()))
    except (ProtocolError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{index}: not an index of safetensors ({error})") from error
    if not shards or any(not isinstance(shard, str) or Path(shard).name != shard for shard in shards):
        raise CheckpointError(f"{index}: names a file outside its folder, or none")
    return shards
