"""The verdict that a script acts on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.compare.stats import Estimate

__all__ = ["Gate", "GateVerdict"]


@dataclass(frozen=True)
class GateVerdict:
    """One candidate under the gate's rule. `why` says it in words."""

    shape: str
    temperature: float | None
    name: str
    against: str
    passed: bool
    change: Estimate
    why: str


@dataclass(frozen=True)
class Gate:
    """A rule for scripts: "fail-if-worse" or "require-not-worse" by `margin` (0.02 is 2 %)."""

    rule: str
    margin: float
    passed: bool
    verdicts: tuple[GateVerdict, ...]
