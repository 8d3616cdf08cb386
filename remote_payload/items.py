"""What the target alone determines of a prompt: its token ids and continuation; and how prompts are packed.

An item is as long as the job needs it, not as the cache has it or the limit allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote_payload.trajectories import Need, Start, Store, Trajectory, extend

if TYPE_CHECKING:
    import torch

    from remote_payload.memory import Room
    from remote_payload.prompts import Prompt, Tokenized, Tokenizing
    from remote_payload.results import Reporter
    from remote_payload.sampling import Sampling
    from remote_payload.target import Target

__all__ = ["Item", "batches", "continue_prompts"]


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

    @property
    def ids(self) -> list[int]:
        """Token ids of prompt and continuation."""
        return [*self.trajectory.prompt, *self.trajectory.tokens]


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
    room: Room | None = None,
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
            target,
            starts,
            need,
            sampling,
            store=store,
            batch_tokens=batch_tokens,
            progress=report,
            room=room,
        )
        following = []
        for (prompt, tokenized, sample), trajectory in zip(wave, continued, strict=True):
            items.append(Item(tokenized, need.cut(trajectory)))
            output = list(trajectory.tokens[: need.output_length(trajectory.tokens)])
            said = answers[prompt.id, sample]
            said.append(output[:-1] if output[-1] in need.stop_ids else output)
            if tokenized.turn + 1 < len(prompt.turns):
                following.append((prompt, tokenizing.next_turn(prompt, tokenized.turn + 1, said), sample))
        wave = following
    return items


def batches(items: Iterable[Item], budget: int, *, padding: float = 0.5) -> Iterator[list[Item]]:
    """Packs items of similar length together.

    What always holds: the longest of a batch times its size stays in the budget (one item may be longer than
    the budget: it is alone); a batch's padding is at most a share `padding` of it, or an eighth of the budget.

    Args:
        items: in any order.
        budget: tokens, padding counted.
        padding: small where padding costs as much as tokens do (the target's passes); replay computes nothing
            but context keys and values for it.
    """
    batch: list[Item] = []
    held = 0
    for item in sorted(items, key=lambda item: (item.length, item.prompt.id, item.prompt.turn)):
        padded = item.length * (len(batch) + 1)
        waste = padded - held - item.length
        wasteful = waste > padding * padded and waste * 8 > budget
        if batch and (padded > budget or wasteful):
            yield batch
            batch, held = [], 0
        batch.append(item)
        held += item.length
    if batch:
        yield batch
