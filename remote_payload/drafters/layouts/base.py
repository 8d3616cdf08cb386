"""What every layout offers: a config, tensors that are read one by one, and an identity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

__all__ = ["Source", "StoredTensor"]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as it is stored: its name there and its shape; `load` reads it."""

    name: str
    shape: tuple[int, ...]
    load: Callable[[], torch.Tensor]


class Source(Protocol):
    """A drafter on disk. Implementations: `SafetensorsSource`, `TrainingStateSource`."""

    @property
    def folder(self) -> Path:
        """The checkpoint's folder."""

    @property
    def config(self) -> Path:
        """The JSON file that describes the drafter."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that it is read from; the config comes first."""

    def tensors(self) -> Iterator[StoredTensor]:
        """Yields the drafter's tensors under their stored names; no data is read before `load`.

        Raises:
            CheckpointError: a file is truncated, broken, or holds something else; the message names it.
        """

    def entries(self) -> list[tuple[str, int, str]]:
        """Returns (name, size, SHA-256) of the files that the drafter is made of once it is staged."""
