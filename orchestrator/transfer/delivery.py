"""One parcel to one place: what is lacking there, by the quickest way, and once more if what was kept proves wrong."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orchestrator.errors import LinkError
from orchestrator.hosts import remote
from orchestrator.hosts.bulk import bulk_host
from orchestrator.transfer.meter import Meter
from orchestrator.transfer.parcel import (
    Delivery,
    Need,
    NoDirectWayError,
    Parcel,
    Place,
    Progress,
    Site,
    SourceError,
    Trip,
)
from orchestrator.transfer.room import need_room
from orchestrator.transfer.streamed import receive_args, stream_through

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.transfer.direct import Direct

__all__ = ["deliver", "plan"]

_LARGE = 32 << 20
"""From so many bytes on a session of its own, or a direct way, is worth its price (half a second or so)."""
_LANES = 4
_FAR_S = 0.075
"""A program that does nothing takes two or three round trips; so long, and one channel's window is too small."""
_ROUNDS = 3
_PLAN_S = 3600.0  # what was kept is read there


def deliver(
    parcel: Parcel,
    source: Site,
    destination: Site,
    place: Place,
    *,
    remedy: str,
    direct: Direct | None = None,
    progress: Progress | None = None,
    report: Callable[[str], None] | None = None,
) -> Delivery:
    """Makes a parcel exist at a place, sending only what is not there.

    Args:
        parcel: what.
        source: the machine it lies on.
        destination: the machine that is to have it.
        place: where there.
        remedy: what else to do than to free space, if there is too little, for a message.
        direct: how the source may reach the destination by itself; None: not at all.
        progress: told (bytes there, bytes in all) as they pass; not called when nothing is sent.
        report: told, in a sentence, why a direct way could not be taken.

    Raises:
        SourceError: the source could not be read, or its files are not what the parcel says.
        HostFailedError: no room, no permission, something is in the way.
        LinkError: a link broke; what has arrived is kept, and the same call goes on from there.
    """
    need = plan(parcel, destination, place)
    for _ in range(_ROUNDS):
        if need.there:
            return Delivery(need.path, 0, "")
        need_room(parcel, need, destination.host.name, remedy)
        meter = Meter(parcel.size - need.bytes_to_send(parcel), parcel.size, progress)
        try:
            trip = Trip(parcel, source, destination, place, need, meter)
            answer, way = _carry(trip, direct, report)
        except LinkError as error:
            raise _resumable(error, need, meter) from error
        if "again" not in answer:
            return Delivery(str(answer["path"]), meter.sent, way)
        again = answer["again"][0]
        if answer["wrong"] and not (need.kept or need.twins):
            raise SourceError(
                f"{destination.host.name}: {again} did not arrive as it was sent (its SHA-256 differs)"
            )
        # What was kept from before was not sound, or somebody else has taken a part away that we counted on.
        need = plan(parcel, destination, place, afresh=answer["wrong"])
    raise LinkError(
        f"{destination.host.name}: {again} did not come to stay in {_ROUNDS} tries",
        f"see that nothing else removes files from {need.path} and the folder above it, then run this again",
    )


def plan(parcel: Parcel, destination: Site, place: Place, *, afresh: bool = False) -> Need:
    """Returns what a place lacks of a parcel; `afresh` throws away what was kept half-way."""
    args = receive_args(parcel, place, Need(""), finish=False) | {"afresh": afresh}
    seen = remote.call(destination.host, "transfer_plan", args, python=destination.python, timeout=_PLAN_S)
    if seen["there"]:
        return Need(seen["path"], there=True)
    return Need(seen["path"], seen["missing"], seen["twins"], seen["kept"], disk=seen["disk"])


def _carry(
    trip: Trip, direct: Direct | None, report: Callable[[str], None] | None
) -> tuple[dict[str, Any], str]:
    """Returns the receiver's answer and the way that was taken."""
    if trip.need.bytes_to_send(trip.parcel) < _LARGE:
        return stream_through(trip, 1), "through here"
    if direct is not None and direct.may_be_open(trip.source, trip.destination):
        try:
            return direct.carry(trip), "direct"
        except NoDirectWayError as error:
            if report:
                report(f"{trip.parcel.label} goes through this machine: {error}")
    ends = [replace(site, host=bulk_host(site.host)) for site in (trip.source, trip.destination)]
    lanes = max(_lanes(site) for site in ends)
    return stream_through(replace(trip, source=ends[0], destination=ends[1]), lanes), "through here"


def _lanes(site: Site) -> int:
    """Returns on how many channels bytes should go to or from a machine, by how far it is."""
    for _ in range(2):  # a busy machine may be slow to answer once
        started = time.monotonic()
        site.host.run(["true"], timeout=60)
        if time.monotonic() - started <= _FAR_S:
            return 1
    return _LANES


def _resumable(error: LinkError, need: Need, meter: Meter) -> LinkError:
    if not (meter.sent or need.kept):
        return error
    return LinkError(
        error.message,
        "; ".join(
            filter(None, (error.hint, "what has arrived is kept, the same command goes on from there"))
        ),
        **error.details,
    )
