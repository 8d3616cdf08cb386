"""What the target alone determines: token ids, continuations, features. Computed once for all drafters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from remote_payload.sampling import Sampling, Spot
from remote_payload.trajectories import Need, Start, Store, Trajectory, extend

if TYPE_CHECKING:
    from remote_payload.prompts import Prompt, Tokenized, Tokenizing
    from remote_payload.results import Reporter
    from remote_payload.target import Target

__all__ = ["Captured", "Item", "batches", "capture_features", "continue_prompts"]


@dataclass
class Item:
    """A prompt (or one turn of it) with the target's continuation and, once captured, its features."""

    prompt: Tokenized
    trajectory: Trajectory
    features: torch.Tensor | None = None

    @property
    def length(self) -> int:
        """Tokens of prompt and continuation."""
        return len(self.trajectory.prompt) + len(self.trajectory.tokens)


@dataclass(frozen=True)
class Captured:
    """Which hidden states the items' features hold, side by side, and how the check of the path came out."""

    indices: tuple[int, ...]
    width: int
    disagreements: int

    def columns(self, item: Item, wanted: Sequence[int]) -> torch.Tensor:
        """Returns an item's features for the hidden states `wanted`, in that order: [T, len(wanted)*H]."""
        if item.features is None:
            raise RuntimeError("features are captured before any drafter runs")
        parts = [self.indices.index(index) * self.width for index in wanted]
        return torch.cat([item.features[:, start : start + self.width] for start in parts], dim=-1)


def continue_prompts(
    target: Target,
    tokenizing: Tokenizing,
    prompts: Sequence[Prompt],
    need: Need,
    sampling: Sampling,
    *,
    samples: int,
    store: Store | None,
    batch_tokens: int,
    progress: Reporter,
) -> list[Item]:
    """Continues every prompt `samples` times; a later turn follows the target's own earlier answers."""
    first = zip(prompts, tokenizing.first_turns(prompts), strict=True)
    wave = [(prompt, tokenized, sample) for prompt, tokenized in first for sample in range(samples)]
    answers: dict[tuple[str, int], list[list[int]]] = {(p.id, s): [] for p, _, s in wave}
    items: list[Item] = []

    def report(done: int, total: int, made: int) -> None:
        progress.step("trajectories", done, total, message=f"{made} tokens generated")

    while wave:
        progress.step("trajectories", 0, len(wave))
        starts = [Start(tokenized.ids, sample) for _, tokenized, sample in wave]
        continued = extend(
            target, starts, need, sampling, store=store, batch_tokens=batch_tokens, progress=report
        )
        following = []
        for (prompt, tokenized, sample), trajectory in zip(wave, continued, strict=True):
            items.append(Item(tokenized, trajectory))
            output = list(trajectory.tokens[: need.output_length(trajectory.tokens)])
            said = answers[prompt.id, sample]
            said.append(output[:-1] if output[-1] in need.stop_ids else output)
            if tokenized.turn + 1 < len(prompt.turns):
                following.append((prompt, tokenizing.next_turn(prompt, tokenized.turn + 1, said), sample))
        wave = following
    return items


def batches(items: Iterable[Item], budget: int) -> Iterator[list[Item]]:
    """Packs items of similar length together; the longest of a batch times its size stays in the budget."""
    batch: list[Item] = []
    for item in sorted(items, key=lambda item: (item.length, item.prompt.id, item.prompt.turn)):
        if batch and item.length * (len(batch) + 1) > budget:
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


def capture_features(
    target: Target,
    items: Sequence[Item],
    indices: Iterable[int],
    sampling: Sampling,
    *,
    batch_tokens: int,
    progress: Reporter,
) -> Captured:
    """Fills every item's features by one forward pass per batch, and checks the recorded path on the way."""
    wanted = tuple(sorted(set(indices)))
    done = disagreements = 0
    progress.step("features", 0, len(items))
    for batch in batches(items, batch_tokens):
        sequences = [[*item.trajectory.prompt, *item.trajectory.tokens] for item in batch]
        features, last = target.hidden_states(sequences, wanted)
        for row, item in enumerate(batch):
            item.features = features[row, : item.length].clone()
            disagreements += _disagreements(target, item, last[row], sampling)
        done += len(batch)
        progress.step("features", done, len(items))
    return Captured(wanted, target.hidden_size, disagreements)


def _disagreements(target: Target, item: Item, last: torch.Tensor, sampling: Sampling) -> int:
    """Counts continuation tokens that one whole forward pass would not have chosen (near ties)."""
    trajectory = item.trajectory
    start, truth = len(trajectory.prompt) - 1, list(trajectory.tokens)
    count = 0
    for piece in range(0, len(truth), 256):
        expected = truth[piece : piece + 256]
        logits = target.head(last[start + piece : start + piece + len(expected)])
        spots = [Spot(item.prompt.hash, trajectory.sample, piece + i) for i in range(len(expected))]
        chosen = sampling.choose(logits, spots).tokens
        count += sum(a != b for a, b in zip(chosen, expected, strict=True))
    return count
