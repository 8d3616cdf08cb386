"""What came of one scenario."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Report"]


@dataclass
class Report:
    """What one scenario came to. `phase` is where the fault hit; empty if it came too late to count.

    `said` are the messages of what failed on the way, for whoever has to find out why.
    """

    fault: str
    index: int
    phase: str = ""
    lost_results: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    wrong_verdicts: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not (self.lost_results or self.orphans or self.wrong_verdicts)
