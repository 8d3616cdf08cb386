"""What is sent, from where, to where, and what became of it: the words that the ways have in common."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.errors import OrchError

if TYPE_CHECKING:
    from orchestrator.hosts.base import Host
    from orchestrator.transfer.meter import Meter

__all__ = [
    "CHUNK",
    "Delivery",
    "File",
    "Need",
    "NoDirectWayError",
    "Parcel",
    "Place",
    "Progress",
    "Site",
    "SourceError",
    "Span",
    "Trip",
]

CHUNK = 1 << 20
"""Bytes of a chunk; the same in `hosts/scripts/chunks.py`."""

Progress = Callable[[int, int], None]
"""Told (bytes that are there, bytes in all)."""

Span = tuple[int, int, int, int]
"""Number of a file (by content), first chunk, one past the last, step."""


class SourceError(OrchError):
    """The source did not send what was promised; `__cause__` says why. Whoever asked gives it its meaning."""


class NoDirectWayError(Exception):
    """The source cannot send to the destination by itself; the text says why. Nothing was left behind."""


@dataclass(frozen=True)
class File:
    """A file by content, and where its bytes come from at the source (see `hosts/scripts/checkpoint_origin.py`)."""

    size: int
    sha256: str
    origin: Mapping[str, str]


@dataclass(frozen=True)
class Parcel:
    """Files by the name that they will have. `name` is what all of it will be called; `label`, for messages."""

    name: str
    label: str
    files: Mapping[str, File]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())

    def contents(self) -> list[tuple[str, File]]:
        """Returns the files by content, each once, in the order in which the stream numbers them."""
        by_content = {file.sha256: (name, file) for name, file in self.files.items()}
        return [by_content[digest] for digest in sorted(by_content)]


@dataclass(frozen=True)
class Place:
    """Where it goes: a host's store of checked folders, or (`plain`) a folder of the user's.

    `under` is relative to `workdir`; the folder is `workdir`/`under`/`Parcel.name`.
    """

    workdir: str
    under: str = ""
    plain: bool = False


@dataclass(frozen=True)
class Site:
    """A machine, and the interpreter that runs our scripts there."""

    host: Host
    python: str


class Delivery(NamedTuple):
    """What became of it: the folder, how many bytes travelled, and by which way ("" if none had to)."""

    path: str
    sent: int
    way: str


@dataclass(frozen=True)
class Need:
    """What the receiving machine lacks: chunks by content; `kept` bytes of the rest were found half-way there."""

    path: str
    missing: Mapping[str, list[list[int]]] = field(default_factory=dict)
    twins: Mapping[str, str] = field(default_factory=dict)
    kept: int = 0
    there: bool = False
    disk: Mapping[str, Any] = field(default_factory=dict)
    session: str = field(default_factory=lambda: secrets.token_hex(8))

    def spans(self, parcel: Parcel, lane: int = 0, lanes: int = 1) -> list[Span]:
        """Returns what is to be sent on one of several lanes, which share the chunks out in turn."""
        return [
            (number, first + lane, past, lanes)
            for number, (_, file) in enumerate(parcel.contents())
            for first, past in self.missing.get(file.sha256, ())
            if first + lane < past
        ]

    def bytes_to_send(self, parcel: Parcel) -> int:
        """Returns the bytes that have to travel."""
        sizes = {file.sha256: file.size for file in parcel.files.values()}
        return sum(
            min(past * CHUNK, sizes[digest]) - first * CHUNK
            for digest, gaps in self.missing.items()
            for first, past in gaps
        )

    def bytes_to_copy(self, parcel: Parcel) -> int:
        """Returns the bytes that are copied there."""
        return sum(file.size for _, file in parcel.contents() if file.sha256 in self.twins)


@dataclass(frozen=True)
class Trip:
    """One transfer: what, from where, to which place of which machine, what of it has to travel, and who counts."""

    parcel: Parcel
    source: Site
    destination: Site
    place: Place
    need: Need
    meter: Meter
