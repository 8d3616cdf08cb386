"""What all variants of a sweep are measured on: continuations, and features of every layer that one may read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from remote_payload.engines.replay import walk_end
from remote_payload.errors import InputError
from remote_payload.features import Captured, capture_features
from remote_payload.items import Item, batches
from remote_payload.memory import shown_bytes
from remote_payload.sampling import Sampling
from remote_payload.target.size import device_room

if TYPE_CHECKING:
    from remote_payload.memory import Room
    from remote_payload.results import Reporter
    from remote_payload.target import Target
    from remote_payload.trajectories import Need

__all__ = ["Batch", "Material", "gather"]

SHARE = 0.7
"""Share of the machine's memory that features may take."""


@dataclass(frozen=True)
class Batch:
    """Some items together: `rows` and `anchors` name every place where a round could start.

    Attributes:
        numbers: the items' numbers in the material.
        rows: of each anchor, which of the batch's items, [N].
        indices: of each anchor, its generated index, [N].
    """

    items: list[Item]
    numbers: list[int]
    rows: list[int]
    indices: list[int]

    def anchors(self) -> list[int]:
        """Returns the positions of the anchors, [N]."""
        return [
            len(self.items[row].trajectory.prompt) + index
            for row, index in zip(self.rows, self.indices, strict=True)
        ]

    def tokens(self) -> list[int]:
        """Returns the anchors' token ids, [N]."""
        places = zip(self.rows, self.indices, strict=True)
        return [self.items[row].trajectory.tokens[index] for row, index in places]

    def truths(self, depth: int) -> torch.Tensor:
        """Returns the target's tokens after each anchor, [N, depth]."""
        places = zip(self.rows, self.indices, strict=True)
        return torch.tensor(
            [self.items[row].trajectory.tokens[index + 1 : index + 1 + depth] for row, index in places]
        )


@dataclass(frozen=True)
class Material:
    """Continued prompts with features.

    Attributes:
        items: in the order of the prompts.
        batches: all items, packed.
        need: limit and stops of the outputs; `overrun` is how far truths reach past an anchor.
        captured: the features.
        ends: per item, the generated index from which on no round starts.
    """

    items: list[Item]
    batches: list[Batch]
    need: Need
    captured: Captured
    ends: list[int]

    @property
    def anchors(self) -> int:
        """How many places there are where a round could start."""
        return sum(self.ends)

    def features(self, batch: Batch, indices: Sequence[int]) -> torch.Tensor:
        """Returns the hidden states `indices` side by side, [P, T, K*H], right-padded."""
        return torch.nn.utils.rnn.pad_sequence(
            [self.captured.columns(item, indices) for item in batch.items], batch_first=True
        )


def gather(
    target: Target,
    items: Sequence[Item],
    need: Need,
    indices: Iterable[int],
    *,
    batch_tokens: int,
    progress: Reporter,
    room: Room,
) -> Material:
    """Captures what the sweep reads.

    Args:
        target: the model.
        items: continued prompts.
        need: what they were continued to.
        indices: entries of `hidden_states`.
        batch_tokens, progress, room: as of `features.capture_features`.

    Raises:
        InputError: the features of all variants would not fit into this machine's memory.
    """
    items, indices = list(items), sorted(set(indices))
    _check_room(target, items, len(indices))
    captured = capture_features(
        target, items, indices, Sampling(), batch_tokens=batch_tokens, progress=progress, room=room
    )
    ends = [walk_end(item.trajectory.tokens, need) for item in items]
    place = {id(item): number for number, item in enumerate(items)}
    packed = []
    for group in batches(items, batch_tokens):
        numbers = [place[id(item)] for item in group]
        spots = [(row, i) for row, number in enumerate(numbers) for i in range(ends[number])]
        packed.append(Batch(list(group), numbers, [row for row, _ in spots], [i for _, i in spots]))
    return Material(items, packed, need, captured, ends)


def _check_room(target: Target, items: Sequence[Item], count: int) -> None:
    """Refuses features that would not fit, before any is made: every layer that some variant reads is kept."""
    needed = sum(item.length for item in items) * count * target.hidden_size * target.dtype.itemsize
    _, memory = device_room(torch.device("cpu"))
    if needed > SHARE * memory:
        raise InputError(
            f"the target's features for {len(items)} prompts take {shown_bytes(needed)} ({count} hidden states), this "
            f"machine has {shown_bytes(memory)} of memory: fewer or shorter prompts, or fewer new tokens"
        )
