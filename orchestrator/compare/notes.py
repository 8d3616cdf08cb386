"""The footnotes of a comparison: what a reader has to know before believing a number.

What always holds: however many drafters there are, a table has a few lines of notes: many of a kind become one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.compare.coverage import ENOUGH, coverage_of
from orchestrator.compare.stats import MIN_CLUSTERS
from remote_payload.tau import BIAS_WORTH_A_WARNING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orchestrator.compare.load import Measurements
    from orchestrator.compare.metrics import Metric
    from orchestrator.compare.model import Block, Entry, Versus

__all__ = ["footnotes"]

_FEW = 3
"""Comparisons up to which each has a note of its own, and names up to which a note lists all."""


def footnotes(blocks: Sequence[Block], measurements: Measurements, metric: Metric) -> tuple[str, ...]:
    """Returns every footnote that applies, each once, the most important first."""
    notes: dict[str, None] = {}
    for source in (_few_prompts, _coverage, _partial_pairs, _rules_differ, _undecided, _leaks, _aliases):
        notes.update(dict.fromkeys(source(blocks)))
    if metric.name == "tau":
        notes.update(dict.fromkeys(_short_outputs(blocks, metric.dialect)))
    notes.update(dict.fromkeys(_provenance(measurements)))
    return tuple(notes)


def _few_prompts(blocks: Sequence[Block]) -> Iterable[str]:
    small = [entry for block in blocks for entry in block.entries if entry.clusters < MIN_CLUSTERS]
    if small:
        everybody = len({entry.name for entry in small}) == len({e.name for b in blocks for e in b.entries})
        yield f"need ≥ {MIN_CLUSTERS} prompts for an interval and a verdict: {_counts(small, everybody)}"
        return
    parts = [part for block in blocks for entry in block.entries for part in entry.datasets]
    scarce = dict.fromkeys(
        f"{part.name} has {part.clusters}" for part in parts if part.clusters < MIN_CLUSTERS
    )
    if scarce:
        yield f"need ≥ {MIN_CLUSTERS} prompts for an interval: {', '.join(scarce)}"


def _coverage(blocks: Sequence[Block]) -> Iterable[str]:
    """What the intervals of few prompts are worth."""
    counts = sorted({e.clusters for b in blocks for e in b.entries if MIN_CLUSTERS <= e.clusters < ENOUGH})
    if counts:
        shares = coverage_of(counts[0])
        yield (
            f"{counts[0]} prompts: 95 % intervals of so few covered {100 * shares.figure:.0f} % (τ) and "
            f"{100 * shares.change:.0f} % (change) in simulations"
        )


def _counts(small: Sequence[Entry], everybody: bool) -> str:
    """`a, b have 5; c has 4`, or `there are 5`."""
    by_count: dict[int, dict[str, None]] = {}
    for entry in small:
        by_count.setdefault(entry.clusters, {})[entry.name] = None
    if everybody and len(by_count) == 1:
        return f"there {'is' if 1 in by_count else 'are'} {next(iter(by_count))}"
    groups = by_count.items()
    return "; ".join(f"{', '.join(n)} {'has' if len(n) == 1 else 'have'} {count}" for count, n in groups)


def _rules_differ(blocks: Sequence[Block]) -> Iterable[str]:
    """Rows in which the interval and the verdict seem to contradict each other."""
    for block in blocks:
        undecided: list[str] = []
        decided: list[str] = []
        for entry in block.entries:
            for versus in (entry.versus_baseline, entry.versus_previous):
                if versus is None or versus.change.low is None or versus.change.high is None:
                    continue
                outside = versus.change.low > 0 or versus.change.high < 0
                if outside == (versus.verdict == "~"):
                    who = f"{entry.name} against {versus.against}"
                    (undecided if versus.verdict == "~" else decided).append(who)
        why = "the verdict goes by p, which is adjusted for all comparisons of the table; the interval is of one alone"
        if undecided:
            yield f"~ {block.shape}: undecided although the interval leaves out 0 ({_some(undecided)}): {why}"
        if decided:
            yield f"{block.shape}: decided although the interval holds 0 ({_some(decided)}): {why}"


def _partial_pairs(blocks: Sequence[Block]) -> Iterable[str]:
    for block in blocks:
        sizes = {entry.name: entry.clusters for entry in block.entries}
        partial = [
            (entry, versus)
            for entry in block.entries
            for versus in (entry.versus_baseline, entry.versus_previous)
            if versus and versus.clusters < max(entry.clusters, sizes[versus.against])
        ]
        if len(partial) > _FEW:
            common = _span([versus.clusters for _, versus in partial])
            yield f"{block.shape}: {len(partial)} comparisons are on the {common} prompts that both sides have"
        else:
            for entry, versus in partial:
                yield (
                    f"{entry.name} and {versus.against}: compared on {versus.clusters} common prompts "
                    f"({entry.name} has {entry.clusters}, {versus.against} {sizes[versus.against]})"
                )
        lacking = [e.name for e in block.entries if not _was_compared(e, block)]
        if lacking:
            yield f"{block.shape}: no prompt in common, so not compared: {_some(lacking)}"


def _was_compared(entry: Entry, block: Block) -> bool:
    """Whether an entry met the baseline, if the block has one that is another drafter."""
    has_baseline = any(other.is_baseline for other in block.entries)
    return entry.is_baseline or not has_baseline or entry.versus_baseline is not None


def _undecided(blocks: Sequence[Block]) -> Iterable[str]:
    for block in blocks:
        undecided = [
            (entry, versus)
            for entry in block.entries
            for versus in (entry.versus_baseline, entry.versus_previous)
            if versus
            and versus.verdict == "~"
            and versus.needed is not None
            and versus.detectable is not None
        ]
        if len(undecided) > _FEW:
            shares = sorted(versus.detectable or 0.0 for _, versus in undecided)
            yield (
                f"~ {block.shape}: {len(undecided)} comparisons are undecided; "
                f"{_advice_for_many([versus for _, versus in undecided])} "
                f"(these show {_percent(shares[0])} to {_percent(shares[-1])})"
            )
        else:
            for entry, versus in undecided:
                pair = (
                    f"{entry.name} against {versus.against}; these show {_percent(versus.detectable or 0.0)}"
                )
                yield f"~ {block.shape}: {_advice(versus)} ({pair})"


def _missing(versus: Versus) -> int:
    """How many prompts more than there are would show 2 %."""
    return max((versus.needed or 0) - versus.clusters, 0)


def _advice(versus: Versus) -> str:
    if missing := _missing(versus):
        return f"about {_round_up(missing)} more prompts would show a 2 % difference"
    return f"a 2 % difference would show with these {versus.clusters} prompts"


def _advice_for_many(versuses: Sequence[Versus]) -> str:
    counts = [_round_up(_missing(versus)) for versus in versuses]
    if not max(counts):
        return "a 2 % difference would show with the prompts that there are"
    more = f"about {_span(counts)}" if min(counts) else f"up to about {max(counts)}"
    return f"{more} more prompts would show a 2 % difference"


def _span(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"


def _some(names: Sequence[str]) -> str:
    left_out = len(names) - _FEW
    return ", ".join(names[:_FEW]) + (f" and {left_out} more" if left_out > 0 else "")


def _percent(share: float) -> str:
    """Two significant digits: `0.36 %`, `12 %`."""
    return f"{float(format(100 * share, '.2g')):g} %"


def _round_up(count: int) -> int:
    """Two significant digits: the number is a forecast."""
    step = int(10 ** max(0, len(str(count)) - 2))
    return -(-count // step) * step


def _short_outputs(blocks: Sequence[Block], dialect: str) -> Iterable[str]:
    for block in blocks:
        moved = [
            f"{entry.name} {100 * entry.short_output_bias[dialect]:+.1f} %"
            for entry in block.entries
            if abs(entry.short_output_bias[dialect]) > BIAS_WORTH_A_WARNING
        ]
        if moved:
            yield f"{block.shape}: short outputs move `{dialect}` by about {_some(moved)} (`tau` is not moved)"


def _leaks(blocks: Sequence[Block]) -> Iterable[str]:
    for block in blocks:
        for entry in block.entries:
            if entry.convention.get("context") == "through_anchor":
                yield (
                    f"{entry.name} sees its anchor's own feature (context=through_anchor): "
                    "a leak that live decoding cannot have, good for diagnosis only"
                )


def _aliases(blocks: Sequence[Block]) -> Iterable[str]:
    for block in blocks:
        for entry in block.entries:
            if entry.aliases:
                others = ", ".join(entry.aliases)
                yield f"{others}: the same drafter as {entry.name} (hash {entry.drafter_hash[:12]})"


def _provenance(measurements: Measurements) -> Iterable[str]:
    used = {run for series in measurements.series for run in series.runs}
    payloads = {run.job.payload_hash[:12] for run in measurements.runs if run.name in used}
    if len(payloads) > 1:
        yield f"the runs come from {len(payloads)} payloads: {', '.join(sorted(payloads))}"
    if measurements.repeats:
        agree = (
            f", {measurements.conflicts} of them with other acceptance lengths"
            if measurements.conflicts
            else ""
        )
        yield f"{measurements.repeats} measurements are in several runs{agree}; the first of each was counted"
    if measurements.doubles:
        yield f"{measurements.doubles} rows are in their run twice, the same both times; each was counted once"
