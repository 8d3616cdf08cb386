"""Figures of drafters: each by itself and against others, shape by shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.compare.stats import Estimate

__all__ = ["Block", "ContextFigures", "DatasetFigures", "Entry", "PromptPair", "Versus"]


@dataclass(frozen=True)
class PromptPair:
    """One prompt (or conversation) in a paired comparison: the figure of either side on it alone."""

    prompt_id: str
    dataset: str
    reference: float
    candidate: float
    rounds: int
    """The candidate's rounds: how much the prompt weighs."""


@dataclass(frozen=True)
class Versus:
    """An entry against another. `verdict` is better, worse, or `~` exactly when `p_adjusted` >= 0.05.

    `pairs` holds every common prompt if they were asked for (`Wanted.details`), else nothing.
    """

    against: str
    change: Estimate
    difference: Estimate
    p: float
    p_adjusted: float
    verdict: str
    clusters: int
    needed: int | None
    detectable: float | None
    pairs: tuple[PromptPair, ...] = ()


@dataclass(frozen=True)
class DatasetFigures:
    """One dataset of an entry."""

    name: str
    figure: Estimate
    clusters: int
    rounds: int


@dataclass(frozen=True)
class ContextFigures:
    """The rounds of an entry whose anchor had `low` <= context tokens < `high` before it."""

    low: int
    high: int
    figure: Estimate
    clusters: int
    rounds: int


@dataclass(frozen=True)
class Entry:
    """One drafter under one shape.

    `figure` is the headline in the comparison's metric and dialect, `dataset_mean` the mean of tau over
    datasets, `left_out` the number of outputs of one token, which dialects with truncated rounds leave out,
    `short_output_bias` the share by which short outputs move each dialect. `survival` is the share of all
    rounds that accepted at least 1, 2, ... drafts, `conditional` the share of those that came so far.
    `training` and `step` are what the name or the job tells of where in a training the checkpoint stands;
    None if neither tells any. `contexts` is empty unless it was asked for (`Wanted.details`).
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
    training: str | None
    step: int | None
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
    conditional: tuple[float, ...]
    histogram: tuple[int, ...]
    datasets: tuple[DatasetFigures, ...]
    contexts: tuple[ContextFigures, ...] = ()
    versus_baseline: Versus | None = None
    versus_previous: Versus | None = None


@dataclass(frozen=True)
class Block:
    """All drafters under one shape (and one temperature, where temperature is a dimension, else None).

    `kind` is chain, tree or ceiling, `size` its N or K. `everyone` holds, if it was asked for, each entry
    against each other one as its baseline: (candidate's name, comparison).
    """

    shape: str
    kind: str
    size: int
    temperature: float | None
    entries: tuple[Entry, ...]
    everyone: tuple[tuple[str, Versus], ...] = ()

    @property
    def title(self) -> str:
        """What the shape is and how far it can reach, in words."""
        bounds = sorted({entry.bound for entry in self.entries})
        deep = max(len(entry.survival) for entry in self.entries)
        reach = " or ".join(str(bound) for bound in bounds)
        at = "" if self.temperature is None else f" · temperature {self.temperature:g}"
        if self.kind == "tree":
            nodes = "1 node" if self.size == 1 else f"{self.size} nodes"
            deep = min(deep, self.size)
            return f"{self.shape} · tree of {nodes}, width ≤ {self.size}, depth ≤ {deep} · τ ≤ {reach}{at}"
        if self.kind == "ceiling":
            return (
                f"{self.shape} · ORACLE CEILING, no verifier runs it: width {self.size}, "
                f"depth ≤ {deep}, up to {self.size}^{deep} leaves · τ ≤ {reach}{at}"
            )
        return f"{self.shape} · one draft, depth ≤ {deep} · τ ≤ {reach}{at}"
