"""How figures look: the same words in every table.

Every text from a run (labels, dataset names, hosts) becomes a cell through `cell`, which lets no control
character through.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from rich.cells import cell_len

from orchestrator.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.compare.model import Comparison, Versus
    from orchestrator.compare.stats import Estimate

__all__ = [
    "LEGEND",
    "STYLES",
    "Cell",
    "Detail",
    "align",
    "bar",
    "cell",
    "change",
    "clip",
    "context_unit",
    "figure",
    "heading",
    "p_value",
    "shorten",
    "sparkline",
    "subheadings",
    "unit",
    "versus",
    "wrap",
]

LEGEND = "95 % CI: bootstrap over prompts. p: swaps within prompts, Holm-adjusted per table. ~: p ≥ 0.05."
STYLES = {"better": "green", "worse": "red", "~": "dim"}
_BARS = "▁▂▃▄▅▆▇█"
_SPARKS = 16


Detail = Literal["interval", "p", "change"]
"""How much is said of a difference."""


class Cell(NamedTuple):
    """A piece of a line and its style (a rich style, empty for none)."""

    text: str
    style: str = ""


def cell(text: str, style: str = "") -> Cell:
    """Makes a cell of any text: what could act on a terminal is shown, not obeyed."""
    return Cell(printable(text), style)


def heading(comparison: Comparison) -> str:
    """What was measured: target, suite, number of prompts."""
    facts = [f"target {comparison.target}"] if comparison.target else []
    facts += [f"suite {comparison.suite}"] if comparison.suite else []
    counts = [entry.clusters for block in comparison.blocks for entry in block.entries]
    few, many = min(counts), max(counts)
    number = str(many) if few == many else f"{few} to {many}"
    facts.append(f"{number} prompt{'' if many == 1 else 's'}")
    return " · ".join(facts)


def subheadings(comparison: Comparison) -> list[str]:
    """What is measured if it is not tau, and on what part of the rows; often nothing."""
    lines = [f"{comparison.metric}: {comparison.metric_words}"] if comparison.metric != "tau" else []
    if comparison.dialect != "tau":
        lines.append(f"dialect {comparison.dialect}: {comparison.dialect_words}")
    return lines + ([f"only rows with {' and '.join(comparison.filters)}"] if comparison.filters else [])


def unit(comparison: Comparison) -> str:
    """What a column of the headline figure is called."""
    if comparison.metric != "tau":
        return comparison.metric
    return "τ" if comparison.dialect == "tau" else comparison.dialect


def context_unit(comparison: Comparison) -> str:
    """What figures by context are called: single rounds have no figure of a dialect that speaks of whole outputs."""
    of_rounds = comparison.dialect in ("tau", "vllm", "no_bonus")
    return unit(comparison) if of_rounds or comparison.metric != "tau" else "τ"


def figure(estimate: Estimate) -> str:
    """`4.51 [4.31, 4.72]`."""
    if not math.isfinite(estimate.value):
        return "-"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def change(estimate: Estimate) -> str:
    """`+12.3 %`."""
    return f"{100 * estimate.value:+.1f} %" if math.isfinite(estimate.value) else "-"


def _span(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f"[{100 * estimate.low:+.1f}, {100 * estimate.high:+.1f}]"


def p_value(chance: float) -> str:
    """`p=0.012`, `p<0.001`."""
    return "p<0.001" if chance < 0.0005 else f"p={chance:.3f}"


def versus(result: Versus | None, detail: Detail = "interval") -> str:
    """`+12.3 % [+10.1, +14.9] p<0.001`, or `~ [-1.0, +2.5] p=0.230`; less of it on request."""
    if result is None:
        return ""
    head = "~" if result.verdict == "~" else change(result.change)
    span = _span(result.change) if detail == "interval" else ""
    chance = p_value(result.p_adjusted) if detail != "change" else ""
    return " ".join(part for part in (head, span, chance) if part)


@lru_cache(maxsize=4096)
def sparkline(shares: tuple[float, ...]) -> str:
    """One bar a position, at most 16 of them, spread over all."""
    count = min(len(shares), _SPARKS)
    picked = [shares[round(i * (len(shares) - 1) / max(count - 1, 1))] for i in range(count)]
    return "".join(_BARS[min(7, int(share * 8))] if math.isfinite(share) else " " for share in picked)


def bar(share: float) -> str:
    """A line of blocks as long as a share of 16 columns."""
    eighths = round(min(max(share, 0.0), 1.0) * _SPARKS * 8) if math.isfinite(share) else 0
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]


def shorten(text: str, width: int) -> str:
    """Cuts the middle out of a long name: its beginning and its end tell it apart."""
    text = printable(text)
    if cell_len(text) <= width:
        return text
    head, tail = text[: (width - 1) // 3], text
    while cell_len(head) + cell_len(tail) + 1 > width:
        tail = tail[1:]
    return head + "…" + tail


def clip(text: str, width: int, *, end: bool = False) -> str:
    """Makes a text harmless and cuts it to a width; with `end` its beginning is cut off."""
    text = printable(text)
    if cell_len(text) <= width:
        return text
    kept: list[str] = []
    room = width - 1
    for char in reversed(text) if end else text:
        room -= cell_len(char)
        if room < 0:
            break
        kept.append(char)
    return "…" + "".join(reversed(kept)) if end else "".join(kept) + "…"


def wrap(text: str, width: int) -> list[str]:
    """Makes a text harmless and breaks it at its spaces into lines of a width; a longer word is cut."""
    lines = [""]
    for word in printable(text).split(" "):
        if lines[-1] and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
            continue
        lines.append("")
        for char in word if cell_len(word) > width else [word]:
            if cell_len(lines[-1]) + cell_len(char) > width:
                lines.append("")
            lines[-1] += char
    return [kept for line in lines if (kept := line.rstrip(" "))]


def align(rows: Sequence[Sequence[Cell]], right: frozenset[int] = frozenset()) -> list[list[Cell]]:
    """Pads the cells of all rows to common widths, two spaces between columns, nothing at the line's end."""
    columns = max((len(row) for row in rows), default=0)
    widths = [max((cell_len(row[c].text) for row in rows if c < len(row)), default=0) for c in range(columns)]
    used = [c for c in range(columns) if widths[c]]
    lines = []
    for row in rows:
        line: list[Cell] = []
        for place, column in enumerate(used):
            item = row[column] if column < len(row) else Cell("")
            space = " " * (widths[column] - cell_len(item.text))
            gap = "  " if place else ""
            before, after = (gap + space, "") if column in right else (gap, space)
            line += [Cell(before), item, Cell(after)]
        lines.append(_strip(line))
    return lines


def _strip(line: list[Cell]) -> list[Cell]:
    while line and not line[-1].text.strip():
        line.pop()
    return line
