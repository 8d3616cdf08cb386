"""The plain data of an inventory's text, and what is wrong with it, line by line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["Document", "Location", "Problem"]

Location = tuple[str | int, ...]


class Problem(NamedTuple):
    """Something wrong with the file: where (1-based) and what, with what is allowed."""

    line: int
    text: str


@dataclass
class Document:
    """The plain data of a file, the line of every key and item, and what is wrong with its form."""

    data: Any = None
    lines: dict[Location, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line(self, location: Location) -> int:
        """Returns the line of a location, or of the nearest thing around it."""
        for length in range(len(location), -1, -1):
            if location[:length] in self.lines:
                return self.lines[location[:length]]
        return 1
