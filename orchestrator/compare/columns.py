"""Rows in columns: what the rows of one drafter and one shape say, as numpy arrays.

What always holds: a series has one drafter, one shape and one setting of everything that acceptance lengths
depend on (`SeriesKey`); each of its units (prompt, turn, sample) occurs once; `lengths` holds every round of
every row, in the order of the rows, and `offsets` says where a row's rounds begin. Numbers of units, clusters
and datasets are shared by all series that were loaded together, so that equal numbers mean the same thing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "DIALECT_TERMS",
    "Floats",
    "Ints",
    "Lengths",
    "Series",
    "SeriesKey",
    "Settings",
    "Shape",
    "Terms",
    "draft_slots",
    "grouped",
    "rounds_of",
]

_KEPT_VALUES = 1 << 17

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Settings(NamedTuple):
    """What must agree before two series may be compared, as the rows have it."""

    target_hash: str
    temperature: float
    top_p: float
    top_k: int
    seed: int
    acceptance: str
    dtype: str
    max_new_tokens: int
    stop_ids: tuple[int, ...]
    template_hash: str


class SeriesKey(NamedTuple):
    """What the rows of one series have in common. `convention` is its canonical JSON."""

    drafter_hash: str
    engine: str
    block_size: int
    convention: str
    settings: Settings
    shape: str


class Shape(NamedTuple):
    """A draft shape by its name: `kind` is chain, tree or ceiling; `size` is N or K, 0 for a chain."""

    name: str
    kind: str
    size: int

    @classmethod
    def parse(cls, name: str) -> Shape:
        """Reads `chain`, `ddtree:N` or `topk:K`; anything else raises ValueError."""
        if name == "chain":
            return cls(name, "chain", 0)
        family, _, size = name.partition(":")
        kind = {"ddtree": "tree", "topk": "ceiling"}.get(family)
        if kind is None or not size.isdecimal() or int(size) < 1:
            raise ValueError(f"unknown shape {name!r}")
        return cls(name, kind, int(size))

    def bound(self, slots: int) -> int:
        """Returns the longest round that is possible with this many draft slots."""
        return min(slots, self.size) + 1 if self.kind == "tree" else slots + 1

    @property
    def order(self) -> tuple[int, int]:
        """Chains first, trees by their budget, ceilings apart and last."""
        return ("chain", "tree", "ceiling").index(self.kind), self.size


def draft_slots(block_size: int, convention: Mapping[str, Any]) -> int:
    """Returns how many drafts a block yields: B - 1, and B where slot 0 predicts too."""
    return block_size - 1 + (1 if convention.get("label_offset") == 1 else 0)


Lengths = NDArray[np.unsignedinteger[Any]]


def rounds_of(lengths: Lengths, offsets: Ints, rows: Ints) -> tuple[Lengths, Ints]:
    """Returns the rounds of some rows, one row after the other, and the offsets at which each row's begin."""
    own = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum((offsets[1:] - offsets[:-1])[rows], out=own[1:])
    if len(rows) and (rows[1:] - rows[:-1] == 1).all():
        return lengths[offsets[rows[0]] : offsets[rows[-1] + 1]], own
    places = np.repeat(offsets[rows] - own[:-1], own[1:] - own[:-1]) + np.arange(own[-1])
    return lengths[places], own


def grouped(values: Ints) -> tuple[Ints, Ints]:
    """Returns the distinct values, in their order, and the place of each value among them; both for reading only.

    Most series of a comparison have the same rows, and so the same groups: they are found once.
    """
    if len(values) > _KEPT_VALUES:
        return np.unique(values, return_inverse=True)
    return _grouped(np.asarray(values, dtype=np.int64).tobytes())


@lru_cache(maxsize=16)
def _grouped(values: bytes) -> tuple[Ints, Ints]:
    distinct, where = np.unique(np.frombuffer(values, dtype=np.int64), return_inverse=True)
    distinct.flags.writeable = where.flags.writeable = False
    return distinct, where


class Terms(NamedTuple):
    """A figure as a ratio of sums: one numerator and one denominator a row (or cluster).

    With a second axis it is the mean, over that axis, of such ratios.
    """

    num: Floats
    den: Floats


@dataclass(frozen=True, eq=False)
class Series:
    """The rows of one drafter under one shape and one setting.

    `labels` are the names under which the drafter was met, `runs` the job ids its rows came from. `unit`
    numbers (prompt, turn, sample) by the prompt's tokens, `named` by (dataset, prompt id), `cluster` what
    varies independently: a prompt with its samples, a conversation with its turns.
    """

    key: SeriesKey
    labels: tuple[str, ...]
    runs: tuple[str, ...]
    slots: int
    unit: Ints
    named: Ints
    cluster: Ints
    dataset: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    lengths: Lengths
    offsets: Ints

    @cached_property
    def rounds(self) -> Ints:
        """Rounds of each row."""
        return np.diff(self.offsets)

    @cached_property
    def accepted(self) -> Ints:
        """Accepted and bonus tokens of each row."""
        running = np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])
        return np.diff(running[self.offsets])

    @cached_property
    def truncated_rounds(self) -> Ints:
        """Rounds that each row's output needs (`remote_payload.tau.truncate`)."""
        needed: Ints = self.rounds.copy()
        some = np.flatnonzero(needed)
        last = self.lengths[self.offsets[some + 1] - 1].astype(np.int64)
        # Nearly always the last round is needed and so are all; only the other rows are counted round by round.
        late = some[1 + self.accepted[some] - last >= self.output_tokens[some]]
        for row in late.tolist():
            own = self.lengths[self.offsets[row] : self.offsets[row + 1]]
            before = 1 + np.cumsum(own, dtype=np.int64) - own
            needed[row] = int((before < self.output_tokens[row]).sum())
        return needed

    def rounds_longer_than(self, length: int) -> Ints:
        """Rounds of each row that are longer than this."""
        running = np.concatenate([[0], np.cumsum(self.lengths > length, dtype=np.int64)])
        return np.diff(running[self.offsets])

    @cached_property
    def context(self) -> Ints:
        """Context tokens before the anchor of each round: the prompt, and what was committed before it."""
        running = np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])
        in_row = running[:-1] - np.repeat(running[self.offsets[:-1]], self.rounds)
        before: Ints = in_row + np.repeat(self.prompt_tokens, self.rounds)
        return before

    @cached_property
    def histogram(self) -> Ints:
        """Number of rounds with length 1 ... slots + 1."""
        return np.bincount(self.lengths, minlength=self.slots + 2)[1:]

    @cached_property
    def survival(self) -> Floats:
        """Share of rounds that accepted at least i drafts, i = 1 ... slots; NaN without rounds."""
        if not len(self.lengths):
            return np.full(self.slots, np.nan)
        at_least: Floats = np.cumsum(self.histogram[::-1])[::-1] / len(self.lengths)
        return at_least[1:]

    @cached_property
    def conditional(self) -> Floats:
        """Share of the rounds that came to draft i and accepted it too; NaN where none came."""
        before = np.concatenate([[1.0], self.survival[:-1]])
        shares: Floats = np.divide(self.survival, before, out=np.full(self.slots, np.nan), where=before > 0)
        return shares

    def rows(self, kept: Ints) -> Series:
        """Returns the series of some of its rows, in their order."""
        lengths, offsets = rounds_of(self.lengths, self.offsets, kept)
        columns = ("unit", "named", "cluster", "dataset", "prompt_tokens", "output_tokens")
        return replace(
            self,
            lengths=lengths,
            offsets=offsets,
            **{name: getattr(self, name)[kept] for name in columns},
        )

    def terms(self, dialect: str) -> Terms:
        """Returns a dialect's figure, row by row (`DIALECT_TERMS`)."""
        if dialect not in self._terms:
            self._terms[dialect] = DIALECT_TERMS[dialect](self)
        return self._terms[dialect]

    @cached_property
    def whole_terms(self) -> Terms:
        """Accepted and bonus tokens, and rounds, of each row: tau, and what most dialects are made of."""
        return Terms(self.accepted.astype(float), self.rounds.astype(float))

    @cached_property
    def _terms(self) -> dict[str, Terms]:
        return {}


def _tau(series: Series) -> Terms:
    return series.whole_terms


def _no_bonus(series: Series) -> Terms:
    accepted, rounds = series.whole_terms
    return Terms(accepted - rounds, rounds)


def _mean_of(num: Ints, den: Ints) -> Terms:
    counted = den > 0
    return Terms(np.divide(num, den, out=np.zeros(len(num)), where=counted), counted.astype(float))


def _zlab(series: Series) -> Terms:
    return _mean_of(series.accepted, series.rounds)


def _sglang(series: Series) -> Terms:
    return _mean_of(series.output_tokens, series.truncated_rounds)


def _sglang_decode(series: Series) -> Terms:
    return _mean_of(series.output_tokens - 1, series.truncated_rounds)


def _eagle(series: Series) -> Terms:
    return Terms(series.output_tokens.astype(float), series.truncated_rounds.astype(float))


DIALECT_TERMS = {
    "tau": _tau,
    "zlab": _zlab,
    "sglang": _sglang,
    "sglang_decode": _sglang_decode,
    "vllm": _tau,
    "eagle": _eagle,
    "no_bonus": _no_bonus,
}
"""The dialects of `remote_payload.tau`, each as a ratio of sums over rows: one bootstrap serves them all."""
