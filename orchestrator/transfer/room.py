"""Is there room for it: asked before a byte is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.errors import HostFailedError
from orchestrator.text import human_bytes

if TYPE_CHECKING:
    from orchestrator.transfer.parcel import Need, Parcel

__all__ = ["need_room"]

_MARGIN = 32 << 20


def need_room(parcel: Parcel, need: Need, name: str, remedy: str) -> None:
    """Returns if what is lacking fits on the receiving machine's disk with some room to spare.

    Raises:
        HostFailedError: it does not; says how much is needed and free, and where.
    """
    needed = need.bytes_to_send(parcel) + need.bytes_to_copy(parcel)
    needed += max(_MARGIN, needed // 50)
    disk = need.disk
    if disk["free"] < needed:
        raise HostFailedError(
            f"{name}: {parcel.label} needs {human_bytes(needed)} at {disk['path']}, where "
            f"{human_bytes(disk['free'])} of {human_bytes(disk['total'])} are free",
            f"free space on {name}, or {remedy}; nothing was sent",
            host=name,
            disk=dict(disk),
        )
