"""Numbers for what rows are about, shared by all runs of a comparison.

What always holds: equal numbers mean the same thing in every run; once settled, a number is its name's place
among the sorted names, so that no order of reading changes any figure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from orchestrator.compare.columns import Ints

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestrator.compare.table import Item

__all__ = ["Numbering", "PromptName"]


class PromptName(NamedTuple):
    """A prompt as its file names it, with one of its turns and samples."""

    dataset: str
    prompt_id: str
    turn: int
    sample: int


class _Names(dict[Any, int]):
    """Numbers for names, in the order of their first use."""

    def number(self, name: Any) -> int:
        """Returns a name's number."""
        return self.setdefault(name, len(self))

    def ranks(self) -> Ints:
        """Where each number's name stands among the sorted names."""
        order = sorted(self)
        return np.argsort(np.array([self[name] for name in order], dtype=np.int64))


class Numbering:
    """Units, prompts, conversations and datasets, numbered as they come; `settle` ends that."""

    def __init__(self) -> None:
        self._units, self._named, self._prompts = _Names(), _Names(), _Names()
        self._conversations, self._datasets = _Names(), _Names()
        self._several_turns: set[int] = set()
        self._places: dict[tuple[Item, ...], int] = {}
        self._tables: list[Ints] = []

    def add(self, items: tuple[Item, ...]) -> int:
        """Numbers a run's items; returns by what `units` and `numbers` find them."""
        place = self._places.setdefault(items, len(self._tables))
        if place == len(self._tables):
            self._tables.append(self._number(items))
        return place

    def units(self, place: int) -> Ints:
        """Returns the number of each item's unit (prompt, turn, sample)."""
        units: Ints = self._tables[place][0]
        return units

    def _number(self, items: Iterable[Item]) -> Ints:
        table = []
        for prompt_hash, turn, sample, dataset, prompt_id in items:
            conversation = self._conversations.number((dataset, prompt_id))
            if turn:
                self._several_turns.add(conversation)
            table.append(
                (
                    self._units.number((prompt_hash, turn, sample)),
                    self._named.number((dataset, prompt_id, turn, sample)),
                    self._prompts.number(prompt_hash),
                    conversation,
                    self._datasets.number(dataset),
                )
            )
        columns: Ints = np.array(table, dtype=np.int64).reshape(-1, 5).T
        return columns

    def settle(self) -> None:
        """Ends the numbering: every run has been seen."""
        several = np.zeros(len(self._conversations), dtype=bool)
        several[list(self._several_turns)] = True
        ranks = [
            names.ranks()
            for names in (self._units, self._named, self._prompts, self._conversations, self._datasets)
        ]
        for place, table in enumerate(self._tables):
            unit, named, prompt, conversation, dataset = (
                rank[column] for rank, column in zip(ranks, table, strict=True)
            )
            cluster = np.where(several[table[3]], len(ranks[2]) + conversation, prompt)
            self._tables[place] = np.stack([unit, named, cluster, dataset])

    def numbers(self, place: int) -> Ints:
        """Returns of each item: unit, named unit, cluster, dataset; after `settle`."""
        numbers: Ints = self._tables[place]
        return numbers

    @property
    def datasets(self) -> tuple[str, ...]:
        """The names of the datasets, in the order of their numbers."""
        return tuple(sorted(self._datasets))

    @property
    def prompts(self) -> tuple[PromptName, ...]:
        """The names of the named units, in the order of their numbers."""
        return tuple(PromptName(*name) for name in sorted(self._named))
