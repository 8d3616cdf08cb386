"""Large sets of files from one machine to another: checked, resumed, by the quickest way that there is.

What always holds:

* Nothing is under its final name before the SHA-256 of every file was right on the machine that received it.
* A transfer that is cut, or whose client is killed, goes on from where it stopped when it is asked for again, by
  whoever asks. What is there already, in part or within another set, is not sent again.
* The way (`Delivery.way`) is a matter of speed alone; the bytes and the checks are the same on each.
"""

from __future__ import annotations

from orchestrator.transfer.delivery import deliver, plan
from orchestrator.transfer.direct import Direct
from orchestrator.transfer.parcel import Delivery, File, Parcel, Place, Progress, Site, SourceError
from orchestrator.transfer.room import need_room

__all__ = [
    "Delivery",
    "Direct",
    "File",
    "Parcel",
    "Place",
    "Progress",
    "Site",
    "SourceError",
    "deliver",
    "need_room",
    "plan",
]
