"""The faults on the way between a person and a host, each as something that strikes at a random moment of a phase."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tests.faults.requests import PHASES
from tests.faults.site import Command, Site

__all__ = ["TRIPS", "Outage", "Trip"]

_BRIEF_S, _LONG_S = (0.3, 8.0), (15.5, 19.0)
"""Outages that a session survives, and those that are longer than the silence that ends one (15 s)."""


class Outage(NamedTuple):
    """What was struck, for how long, and what ends it."""

    what: str
    seconds: float
    mend: Callable[[], None]


@dataclass(frozen=True)
class Trip:
    """One kind of fault. `strike` does it, and returns None where there was nothing to strike; its last argument
    counts the scenarios of a phase. With `everywhere` it is let loose as often in each phase as others are in all.
    """

    name: str
    strike: Callable[[Site, Command, random.Random, int], Outage | None]
    everywhere: bool = False
    phases: tuple[str, ...] = PHASES


def _nothing() -> None:
    """It is over at once."""


def _cut(site: Site, _command: Command, rng: random.Random, index: int) -> Outage:
    kind = index % 4
    if kind == 1:
        site.reset_connections()
        return Outage("connections reset", 0.0, _nothing)
    if kind == 2:
        site.set_interface("down")
        return Outage("interface down", rng.uniform(*_BRIEF_S), lambda: site.set_interface("up"))
    site.cut_wire()
    seconds = rng.uniform(*(_LONG_S if kind == 3 else _BRIEF_S))
    return Outage("black hole", seconds, site.heal_wire)


def _kill(_site: Site, command: Command, _rng: random.Random, _index: int) -> Outage | None:
    return Outage("client killed", 0.0, _nothing) if command.kill() else None


def _restart(site: Site, _command: Command, rng: random.Random, _index: int) -> Outage:
    site.stop_server()
    return Outage("sshd stopped", rng.uniform(0.1, 3.0), site.start_server)


TRIPS = {
    trip.name: trip
    for trip in (
        Trip("link cut", _cut, everywhere=True),
        Trip("client killed", _kill, everywhere=True),
        Trip("sshd restarted", _restart),
    )
}
