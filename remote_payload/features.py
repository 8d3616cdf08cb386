"""The target's features of every item, for all drafters: kept in memory, on disk, or made again per batch.

What always holds: `of` gives the same features whichever way they are kept; the recorded path is checked
against a whole pass once for every item whose features are made (`disagreements`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from remote_payload.items import Item, batches
from remote_payload.memory import Room
from remote_payload.prefill import states
from remote_payload.sampling import Spot

if TYPE_CHECKING:
    from remote_payload.feature_store import FeatureStore
    from remote_payload.results import Reporter
    from remote_payload.sampling import Sampling
    from remote_payload.target import Target

__all__ = ["Captured", "DiskFeatures", "Features", "Recomputed", "capture_features"]


PADDING = 0.2
"""Share of padding in the target's passes."""


class Features(Protocol):
    """Where a drafter's features come from."""

    @property
    def disagreements(self) -> int:
        """Continuation tokens that one whole forward pass would not have chosen, so far (near ties)."""

    def of(self, items: Sequence[Item], wanted: Sequence[int]) -> list[torch.Tensor]:
        """Returns the hidden states `wanted` of each item side by side, in that order: [T, len(wanted)*H]."""


class Made(NamedTuple):
    """One item's fresh features [T, K*H], and the generated indices at which a whole pass disagrees."""

    item: Item
    features: torch.Tensor
    disagreeing: list[int]


@dataclass(frozen=True)
class Captured:
    """Features in memory: which hidden states the items hold, side by side, and how the check came out."""

    indices: tuple[int, ...]
    width: int
    disagreements: int

    def columns(self, item: Item, wanted: Sequence[int]) -> torch.Tensor:
        """Returns an item's features for the hidden states `wanted`, in that order: [T, len(wanted)*H]."""
        if item.features is None:
            raise RuntimeError("features are captured before any drafter runs")
        parts = [self.indices.index(index) * self.width for index in wanted]
        return torch.cat([item.features[:, start : start + self.width] for start in parts], dim=-1)

    def of(self, items: Sequence[Item], wanted: Sequence[int]) -> list[torch.Tensor]:
        """As `Features.of`."""
        return [self.columns(item, wanted) for item in items]


def capture_features(
    target: Target,
    items: Sequence[Item],
    indices: Iterable[int],
    sampling: Sampling,
    *,
    batch_tokens: int,
    progress: Reporter,
    room: Room | None = None,
) -> Captured:
    """Fills every item's features (in host memory) by one forward pass per batch."""
    wanted = tuple(sorted(set(indices)))
    done = disagreements = 0
    progress.step("features", 0, len(items))
    for batch in batches(items, batch_tokens, padding=PADDING):
        for made in make(target, batch, wanted, sampling, room):
            made.item.features = made.features.cpu()
            disagreements += len(made.disagreeing)
        done += len(batch)
        progress.step("features", done, len(items))
    return Captured(wanted, target.hidden_size, disagreements)


def make(
    target: Target, batch: Sequence[Item], wanted: Sequence[int], sampling: Sampling, room: Room | None = None
) -> Iterator[Made]:
    """Runs a batch (halved where it does not fit) and checks the recorded path on the way."""
    room = room or Room(target.device)

    def run(start: int, stop: int) -> list[Made]:
        some = batch[start:stop]
        features, last = states(target, [item.ids for item in some], wanted)
        return [
            Made(
                item,
                features[row, : item.length].clone(),
                _disagreeing(target, item, last[row], sampling, room),
            )
            for row, item in enumerate(some)
        ]

    for piece in room.pieces("sequences read", len(batch), len(batch), run):
        yield from piece


def _disagreeing(target: Target, item: Item, last: torch.Tensor, sampling: Sampling, room: Room) -> list[int]:
    trajectory = item.trajectory
    start, truth = len(trajectory.prompt) - 1, trajectory.tokens

    def compare(begin: int, end: int) -> list[int]:
        logits = target.head(last[start + begin : start + end])
        spots = [Spot(item.prompt.hash, trajectory.sample, index) for index in range(begin, end)]
        chosen = sampling.choose(logits, spots).tokens
        return [begin + i for i, token in enumerate(chosen) if token != truth[begin + i]]

    size = min(256, room.rows(4 * target.vocab_size))
    pieces = room.pieces("logits checked", len(truth), size, compare)
    return [index for piece in pieces for index in piece]


@dataclass
class Recomputed:
    """Features that are made for a batch when a drafter asks, and dropped after it."""

    target: Target
    sampling: Sampling
    room: Room
    _checked: dict[int, int] = field(default_factory=dict)

    @property
    def disagreements(self) -> int:
        """As `Features.disagreements`, of the items that were asked for."""
        return sum(self._checked.values())

    def of(self, items: Sequence[Item], wanted: Sequence[int]) -> list[torch.Tensor]:
        """As `Features.of`."""
        made = list(make(self.target, items, wanted, self.sampling, self.room))
        self._checked |= {id(one.item): len(one.disagreeing) for one in made}
        return [one.features for one in made]


class DiskFeatures:
    """Features in the store, memory-mapped; what it lacks is made by `fill`.

    Args:
        store: the files.
        target: makes what is missing. It is not touched if nothing is.
        sampling: how the target chooses.
        room: what fits.
    """

    def __init__(self, store: FeatureStore, target: Target, sampling: Sampling, room: Room) -> None:
        self._store, self._target, self._sampling, self._room = store, target, sampling, room
        self.disagreements = 0

    def fill(
        self, items: Sequence[Item], indices: Iterable[int], *, batch_tokens: int, progress: Reporter
    ) -> None:
        """Makes what is missing or fails its check.

        Raises:
            InputError: it would not fit on the disk; nothing was made.
        """
        wanted = tuple(sorted(set(indices)))
        missing = [item for item in items if self._store.disagreeing(item, wanted) is None]
        broken = self._store.take_broken()
        if broken:
            progress.say(f"{len(broken)} feature files fail their check and are made again: {broken[0]} ...")
        self._store.check_space(missing, wanted)
        done = len(items) - len(missing)
        progress.step("features", done, len(items), message=f"{done} of {len(items)} are on disk")
        for batch in batches(missing, batch_tokens, padding=PADDING):
            for made in make(self._target, batch, wanted, self._sampling, self._room):
                self._store.save(made.item, wanted, made.features.cpu(), made.disagreeing)
            self._store.sync()
            done += len(batch)
            progress.step("features", done, len(items))
        self.disagreements = sum(len(self._store.disagreeing(item, wanted) or []) for item in items)

    def of(self, items: Sequence[Item], wanted: Sequence[int]) -> list[torch.Tensor]:
        """As `Features.of`."""
        return [self._store.load(item, wanted) for item in items]
