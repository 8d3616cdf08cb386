"""Features on disk: one safetensors file per hidden state and item, memory-mapped when it is read.

    cache/features/<key>/<hidden state>/<item>.safetensors     states [T, H], ids [T] int32

The key covers what the path depends on (target, dtype, attention, device kind, sampling), the dtype and the
layout's version; the item's name its prompt and sample. Hidden states have files of their own, so that
drafters that read different layers share what they have in common.

What always holds: a file is written whole, synced, and then renamed, so a name means complete content. Before
a job uses a file it checks the header (safetensors compares it with the file's length), the token ids one by
one, and a SHA-256 over 64 evenly spaced windows of 4 KiB of the states: that tells a wrong, replaced or
truncated file without reading tens of gigabytes. A file that fails is made again, never used.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from remote_payload.durable import canonical_json, sha256_hex, sync_directory
from remote_payload.errors import InputError
from remote_payload.memory import shown_bytes

if TYPE_CHECKING:
    from remote_payload.items import Item

__all__ = ["FeatureStore"]

LAYOUT = 1
_WINDOWS, _WINDOW = 64, 4096
_HEADER = 512
"""Bytes of a file besides its tensors: header, padding, metadata."""


class FeatureStore:
    """The features of one path of a target.

    Args:
        folder: `cache/features` of the host.
        identity: what the path depends on, as of the trajectories.
        hidden_size: H.
        dtype: of the states.
    """

    def __init__(
        self, folder: Path, identity: dict[str, object], *, hidden_size: int, dtype: torch.dtype
    ) -> None:
        key = {"path": identity, "states": str(dtype), "layout": LAYOUT}
        self.folder = folder / sha256_hex(canonical_json(key))[:24]
        self._hidden, self._dtype = hidden_size, dtype
        self._sound: dict[tuple[Path, int], list[int]] = {}
        self._broken: list[str] = []
        self._touched: set[Path] = set()

    def _file(self, item: Item, index: int) -> Path:
        name = sha256_hex(canonical_json([list(item.trajectory.prompt), item.trajectory.sample]))[:32]
        return self.folder / str(index) / f"{name}.safetensors"

    # ------------------------------------------------------------------ before

    def estimate(self, items: Iterable[Item], indices: Sequence[int]) -> int:
        """Returns the bytes that the features of items take on disk, within a tenth."""
        each = self._hidden * self._dtype.itemsize + 4
        return sum(len(indices) * (item.length * each + _HEADER) for item in items)

    def check_space(self, items: Sequence[Item], indices: Sequence[int]) -> None:
        """Raises InputError if the features of items would not fit, with both figures."""
        if not items:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        needed, free = self.estimate(items, indices), shutil.disk_usage(self.folder).free
        if needed > free:
            raise InputError(
                f"{self.folder}: the features of {len(items)} sequences take about {shown_bytes(needed)} on disk, "
                f"{shown_bytes(free)} are free there. Free some space, put the cache elsewhere (--cache), use "
                "fewer prompts or tokens, or --features recompute (slower per drafter, no disk)"
            )

    # ------------------------------------------------------------------ files

    def save(
        self, item: Item, indices: Sequence[int], features: torch.Tensor, disagreeing: list[int]
    ) -> None:
        """Writes an item's features, [T, len(indices)*H] on the CPU; `sync` makes the names durable."""
        ids = torch.tensor(item.ids, dtype=torch.int32)
        for place, index in enumerate(indices):
            path = self._file(item, index)
            path.parent.mkdir(parents=True, exist_ok=True)
            states = features[:, place * self._hidden : (place + 1) * self._hidden].contiguous()
            about = {"layout": str(LAYOUT), "check": _check(states), "disagreeing": json.dumps(disagreeing)}
            temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            try:
                save_file({"states": states, "ids": ids}, temporary, metadata=about)
                with temporary.open("rb") as stream:
                    os.fsync(stream.fileno())
                temporary.replace(path)
            except OSError as error:
                raise InputError(
                    f"{path}: the features cannot be written ({error.strerror or error}). Free some space, put the "
                    "cache elsewhere (--cache), or use --features recompute"
                ) from error
            finally:
                temporary.unlink(missing_ok=True)
            self._touched.add(path.parent)
            self._sound[path, item.length] = disagreeing

    def sync(self) -> None:
        """Makes the names of what was saved durable."""
        for folder in sorted(self._touched):
            sync_directory(folder)
        self._touched.clear()

    def disagreeing(self, item: Item, indices: Sequence[int]) -> list[int] | None:
        """Returns the generated indices at which a whole pass disagrees; None if a file is missing or wrong."""
        found: list[int] = []
        for index in indices:
            known = self._verified(item, self._file(item, index))
            if known is None:
                return None
            found = known
        return [place for place in found if place < len(item.trajectory.tokens)]

    def load(self, item: Item, wanted: Sequence[int]) -> torch.Tensor:
        """Returns an item's features, [T, len(wanted)*H] on the CPU, read through the mapping."""
        parts = []
        for index in wanted:
            with safe_open(str(self._file(item, index)), framework="pt", device="cpu") as reader:
                parts.append(reader.get_slice("states")[: item.length])
        return torch.cat(parts, dim=-1)

    def take_broken(self) -> list[str]:
        """Returns the files that failed their check since the last call."""
        broken, self._broken = self._broken, []
        return broken

    def _verified(self, item: Item, path: Path) -> list[int] | None:
        known = self._sound.get((path, item.length))
        if known is not None or not path.is_file():
            return known
        try:
            with safe_open(str(path), framework="pt", device="cpu") as reader:
                about = reader.metadata() or {}
                states, ids = reader.get_tensor("states"), reader.get_tensor("ids")
            fits = states.shape == (len(ids), self._hidden) and states.dtype == self._dtype
            sound = fits and about.get("layout") == str(LAYOUT) and about.get("check") == _check(states)
            found = [int(place) for place in json.loads(about.get("disagreeing", "null"))] if sound else []
        except (SafetensorError, OSError, ValueError, TypeError):
            sound, found, ids = False, [], torch.empty(0, dtype=torch.int32)
        if not sound:
            self._broken.append(str(path))
            return None
        if ids[: item.length].tolist() != item.ids:
            return None  # of a shorter continuation: replaced by the longer one
        self._sound[path, item.length] = found
        return found


def _check(states: torch.Tensor) -> str:
    """The SHA-256 of evenly spaced windows of a tensor's bytes, the first and the last among them."""
    data = states.flatten().view(torch.uint8)
    steps = torch.linspace(0, max(len(data) - _WINDOW, 0), _WINDOWS, dtype=torch.float64).long().tolist()
    windows = [data[at : at + _WINDOW].numpy().tobytes() for at in dict.fromkeys(steps)]
    return sha256_hex(b"".join([str((tuple(states.shape), str(states.dtype))).encode(), *windows]))
