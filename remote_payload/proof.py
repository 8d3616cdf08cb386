"""Did a run prove itself? What its summary says about its engines, as sentences. Standard library only.

The run's command, its supervisor and the control side judge by the same words. What always holds: only real
differences fail a run, near ties never do; a run of one engine has less to prove, and a run by replay alone
nothing; a summary that is not as it should be proves nothing, and fails nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["EXIT_DIFFERS", "fault", "headlines"]

EXIT_DIFFERS = 1
"""Exit code of a run whose figures are all there, and whose engines really differ: the answer is no."""


def headlines(summary: Mapping[str, Any]) -> dict[str, str]:
    """Returns one line for each report (`parity`, `lossless`) that a summary has."""
    lines = {}
    if parity := _report(summary, "parity", ("equal_rounds", "rounds", "equal_walks", "walks", "near_ties")):
        lines["parity"] = (
            f"parity: {parity['equal_rounds']} of {parity['rounds']} rounds equal, live against replay "
            f"({parity['equal_walks']} of {parity['walks']} walks; {parity['near_ties']} part at a near tie, "
            f"{parity['real']} for another reason)"
        )
    if lossless := _report(summary, "lossless", ("equal", "outputs", "near_ties")):
        lines["lossless"] = (
            f"losslessness: {lossless['equal']} of {lossless['outputs']} live outputs are plain decoding's "
            f"({lossless['near_ties']} leave it at a near tie, {lossless['real']} for another reason)"
        )
    return lines


def fault(summary: Mapping[str, Any]) -> str:
    """Returns what a summary's reports found against its run, in one sentence; empty if nothing."""
    said = []
    parity, lossless = _report(summary, "parity", ("walks",)), _report(summary, "lossless", ("outputs",))
    if parity and parity["real"]:
        said.append(
            f"live decoding and replay part in {parity['real']} of {parity['walks']} walks where no near tie explains it"
        )
    if lossless and lossless["real"]:
        said.append(
            f"{lossless['real']} of {lossless['outputs']} live outputs are not plain decoding's, and no near tie "
            "explains it"
        )
    return "; ".join(said)


def _report(summary: Mapping[str, Any], name: str, counts: tuple[str, ...]) -> dict[str, int] | None:
    """Returns the counts of a report; None if the summary has no such report, or one of another form."""
    found = summary.get(name)
    if not isinstance(found, Mapping):
        return None
    numbers = {key: found.get(key) for key in (*counts, "real")}
    whole = {key: value for key, value in numbers.items() if isinstance(value, int)}
    return whole if whole.keys() == numbers.keys() else None
