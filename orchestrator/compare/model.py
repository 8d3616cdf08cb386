"""A comparison as data: what the tables, the CSV and the JSON show.

Nothing here computes. Undefined figures are NaN, missing ones None; an `Estimate` without an interval has
None for both ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.compare.stats import Estimate

__all__ = ["Block", "Comparison", "DatasetFigures", "Entry", "Sample", "SampleDraft", "Versus"]


@dataclass(frozen=True)
class Versus:
    """An entry against another. `verdict` is better, worse, or `~` exactly when `p_adjusted` >= 0.05."""

    against: str
    change: Estimate
    difference: Estimate
    p: float
    p_adjusted: float
    verdict: str
    clusters: int
    needed: int | None
    detectable: float | None


@dataclass(frozen=True)
class DatasetFigures:
    """One dataset of an entry."""

    name: str
    figure: Estimate
    clusters: int
    rounds: int


@dataclass(frozen=True)
class Entry:
    """One drafter under one shape.

    `figure` is the headline in the comparison's dialect, `dataset_mean` the mean of tau over datasets,
    `left_out` the number of outputs of one token, which dialects with truncated rounds leave out,
    `short_output_bias` the share by which short outputs move each dialect.
    """

    name: str
    aliases: tuple[str, ...]
    drafter_hash: str
    is_baseline: bool
    engine: str
    block_size: int
    convention: dict[str, Any]
    settings: dict[str, Any]
    runs: tuple[str, ...]
    figure: Estimate
    dialects: dict[str, float]
    dataset_mean: float
    clusters: int
    rows: int
    rounds: int
    accepted: int
    left_out: int
    short_output_bias: dict[str, float]
    bound: int
    survival: tuple[float, ...]
    histogram: tuple[int, ...]
    datasets: tuple[DatasetFigures, ...]
    versus_baseline: Versus | None = None
    versus_previous: Versus | None = None


@dataclass(frozen=True)
class Block:
    """All drafters under one shape; `kind` is chain, tree or ceiling, `size` its N or K."""

    shape: str
    kind: str
    size: int
    entries: tuple[Entry, ...]

    @property
    def title(self) -> str:
        """What the shape is and how far it can reach, in words."""
        bounds = sorted({entry.bound for entry in self.entries})
        deep = max(len(entry.survival) for entry in self.entries)
        reach = " or ".join(str(bound) for bound in bounds)
        if self.kind == "tree":
            nodes = "1 node" if self.size == 1 else f"{self.size} nodes"
            deep = min(deep, self.size)
            return f"{self.shape} · tree of {nodes}, width ≤ {self.size}, depth ≤ {deep} · τ ≤ {reach}"
        if self.kind == "ceiling":
            return (
                f"{self.shape} · ORACLE CEILING, no verifier runs it: width {self.size}, "
                f"depth ≤ {deep}, up to {self.size}^{deep} leaves · τ ≤ {reach}"
            )
        return f"{self.shape} · one draft, depth ≤ {deep} · τ ≤ {reach}"


@dataclass(frozen=True)
class SampleDraft:
    """One drafter's draft at an anchor; `accepted` drafts of `ids` equal the target's own tokens."""

    name: str
    accepted: int
    ids: tuple[int, ...]
    accepted_text: str | None
    rest_text: str | None
    repeats: int


@dataclass(frozen=True)
class Sample:
    """The drafts of several drafters at one anchor, beside the target's own continuation."""

    prompt_id: str
    dataset: str
    turn: int
    sample: int
    anchor: int
    context: str
    truth: str
    drafts: tuple[SampleDraft, ...]


@dataclass(frozen=True)
class Comparison:
    """A whole comparison. `allowed` describes the differences that it was told to overlook."""

    baseline: str | None
    dialect: str
    dialect_words: str
    blocks: tuple[Block, ...]
    runs: tuple[str, ...]
    target: str
    suite: str
    allowed: tuple[str, ...]
    footnotes: tuple[str, ...]
    warnings: tuple[str, ...]
    samples: tuple[Sample, ...] = ()
