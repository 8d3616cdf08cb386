"""Batches of sequences that go on with a cache: left-padded together where that is sound, else one by one.

A lane is a batch with one cache. Padding on the left is hidden from attention by the mask and has to be
zeroed by recurrent layers; finished sequences leave by `reorder_cache`, the one operation that every cache of
transformers 4.57 to 5.24 has for all its states (`batch_select_indices` is missing from recurrent layers, and
leaves their states behind in layers that have both kinds). Whether a model does both right is not taken from
its name: `batches_soundly` compares a padded batch with the sequence alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import torch

from remote_payload.errors import TargetError
from remote_payload.target.anatomy import Anatomy
from remote_payload.target.passes import spans

__all__ = ["Step", "batches_soundly", "cache_argument", "continue_lanes", "divides_soundly", "padded"]

_LONG, _SHORT = 66, 3  # the long one is longer than a chunk (64) of the chunked linear-attention kernels


class _Bounds(NamedTuple):
    """Largest relative differences (L2, of logits) that rounding explains: see `batches_soundly`."""

    batch_or_alone: float
    other_padding: float


_BOUNDS = {
    torch.float32: _Bounds(1e-3, 1e-4),
    torch.bfloat16: _Bounds(0.15, 1e-2),
    torch.float16: _Bounds(0.15, 1e-2),
}


class Step(NamedTuple):
    """What a decoding batch goes on with: a token for each sequence that stays.

    `keep` lists the indices, into the present batch, of the sequences that stay; None keeps all.
    """

    tokens: list[int]
    keep: list[int] | None = None


def cache_argument(decoder: Any) -> str:
    """Returns what a decoder calls its cache: transformers renamed it in 5.2x and warns at the old name."""
    return "cache" if "cache" in inspect.signature(decoder.forward).parameters else "past_key_values"


def padded(
    sequences: Sequence[Sequence[int]], device: torch.device, *, left: bool, fill: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns token ids and mask of a batch, both [N, T] int64, padded with a token on one side."""
    longest = max(len(s) for s in sequences)
    ids = torch.full((len(sequences), longest), fill, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        span = slice(longest - len(sequence), longest) if left else slice(0, len(sequence))
        ids[row, span] = torch.tensor(list(sequence))
        mask[row, span] = 1
    return ids.to(device), mask.to(device)


class _Lane:
    """One batch with one cache. `states` are its last hidden states, [N, H], `places` who its rows are.

    Prompts go in by passes of `size` positions, or by one; of a pass nothing is kept but its last states and the
    cache.
    """

    def __init__(
        self,
        parts: Anatomy,
        sequences: Sequence[Sequence[int]],
        places: Sequence[int],
        device: torch.device,
        fill: int,
        size: int | None,
    ) -> None:
        self._parts, self._device = parts, device
        self._cache: Any = None
        self._argument = cache_argument(parts.decoder)
        self.places = list(places)
        ids, self._mask = padded(sequences, device, left=True, fill=fill)
        positions = (self._mask.cumsum(-1) - 1).clamp(min=0)
        for span in spans(ids.shape[1], size):
            self.states = self._forward(ids[:, span], self._mask[:, : span.stop], positions[:, span])
        self._positions = positions[:, -1:]

    def advance(self, tokens: Sequence[int], keep: Sequence[int] | None) -> None:
        """Appends a token to every row that stays; `keep` are their indices, None if all stay."""
        if keep is not None:
            index = torch.tensor(list(keep), device=self._device)
            self._cache.reorder_cache(index)
            self._mask, self._positions = self._mask[index], self._positions[index]
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(self._mask), 1)], dim=-1)
        self._positions = self._positions + 1
        ids = torch.tensor(list(tokens), device=self._device)[:, None]
        self.states = self._forward(ids, self._mask, self._positions)

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        # The model makes the kind of cache that it needs; it is asked for, never built here.
        cache: dict[str, Any] = {} if self._cache is None else {self._argument: self._cache}
        output = self._parts.decoder(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, **cache
        )
        self._cache = output.get(self._argument)
        if self._cache is None:
            raise TargetError(
                f"{type(self._parts.decoder).__name__} returns no cache to go on with; such a target is not supported"
            )
        states: torch.Tensor = output.last_hidden_state[:, -1]
        return states


def continue_lanes(
    parts: Anatomy,
    sequences: Sequence[Sequence[int]],
    device: torch.device,
    *,
    together: bool,
    fill: int = 0,
    size: int | None = None,
) -> Generator[torch.Tensor, Step, None]:
    """Continues sequences without end: yields last hidden states [N, H], takes the tokens chosen after them.

    Args:
        parts: the model.
        sequences: token ids of each; at least one token.
        device: where the model is.
        together: whether all share one lane; else each has its own.
        fill: the token that pads; it has no influence where `batches_soundly`.
        size: positions of the passes that prompts go in by, sound where `divides_soundly`; None for one pass.
    """
    groups = [list(range(len(sequences)))] if together else [[i] for i in range(len(sequences))]
    lanes = [_Lane(parts, [sequences[i] for i in group], group, device, fill, size) for group in groups]
    while True:
        rows = [place for lane in lanes for place in lane.places]
        order = sorted(range(len(rows)), key=rows.__getitem__)
        states = torch.cat([lane.states for lane in lanes])
        step = yield states if order == list(range(len(rows))) else states[order]
        keep = range(len(rows)) if step.keep is None else step.keep
        new_place = {old: new for new, old in enumerate(keep)}
        for lane in lanes:
            staying = [row for row, place in enumerate(lane.places) if place in new_place]
            everyone = len(staying) == len(lane.places)
            lane.places = [new_place[lane.places[row]] for row in staying]
            if staying:
                lane.advance([step.tokens[place] for place in lane.places], None if everyone else staying)
        lanes = [lane for lane in lanes if lane.places]


@torch.no_grad()
def batches_soundly(parts: Anatomy, device: torch.device) -> bool:
    """Whether a batch of several lengths gives each sequence what it gets alone.

    A long and a short sequence run right-padded in one pass, and left-padded with a cache: first step, a step
    more, and a step after the long one has left. The short one is held against itself alone, which shows
    gross faults in any precision; and against the same batch padded with another token, which has the same
    shapes and so hardly any rounding of its own: there, a trace of padding in a recurrent state shows.
    """
    vocabulary = parts.embedding.weight.shape[0]
    tokens = [(7 + 37 * i) % vocabulary for i in range(_LONG + _SHORT + 2)]
    batch, going_on = [tokens[:_LONG], tokens[_LONG:-2]], tokens[-2:]
    try:
        alone = _short_one(parts, batch[1:], going_on, device, 0)
        together = _short_one(parts, batch, going_on, device, 0)
        repadded = _short_one(parts, batch, going_on, device, tokens[1])
    except AttributeError as error:
        if "reorder_cache" in str(error):  # this model's cache lets no sequence leave
            return False
        raise
    bounds = _BOUNDS[alone[0].dtype]
    return all(
        _apart(found, wanted) <= bounds.batch_or_alone and _apart(found, other) <= bounds.other_padding
        for found, wanted, other in zip(together, alone, repadded, strict=True)
    )


@torch.no_grad()
def divides_soundly(parts: Anatomy, device: torch.device, *, together: bool) -> bool:
    """Whether prompts that go in by several passes end where one pass ends, and go on alike.

    In several versions of transformers some recurrent layers forget their state when several tokens follow it.

    Args:
        together: whether batches are padded (`batches_soundly`): a short sequence then runs beside the long one.
    """
    vocabulary = parts.embedding.weight.shape[0]
    tokens = [(7 + 37 * i) % vocabulary for i in range(2 * _LONG + _SHORT + 1)]
    batch = [tokens[:-1], tokens[:_SHORT]] if together else [tokens[:-1]]
    found = []
    for size in (None, _LONG):
        lane = continue_lanes(parts, batch, device, together=together, size=size)
        found.append([next(lane), lane.send(Step(tokens[-1:] * len(batch)))])
    bound = _BOUNDS[found[0][0].dtype].batch_or_alone
    return all(
        _apart(parts.head(in_passes[row]), parts.head(whole[row])) <= bound
        for whole, in_passes in zip(*found, strict=True)
        for row in range(len(batch))
    )


def _short_one(
    parts: Anatomy, batch: Sequence[Sequence[int]], going_on: Sequence[int], device: torch.device, fill: int
) -> list[torch.Tensor]:
    """Returns the logits of a batch's last sequence: all of one pass, then of three steps with a cache."""
    ids, mask = padded(batch, device, left=False, fill=fill)
    whole = parts.decoder(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    states = [whole[-1, :_SHORT]]
    lane = continue_lanes(parts, batch, device, together=True, fill=fill)
    states.append(next(lane)[-1])
    states.append(lane.send(Step([going_on[0]] * len(batch)))[-1])
    states.append(lane.send(Step([going_on[1]], [len(batch) - 1]))[-1])
    return [parts.head(state) for state in states]


def _apart(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Returns the relative L2 distance; NaN, which is never small enough, where either has one."""
    return float((found - wanted).float().norm() / wanted.float().norm().clamp(min=1e-12))
