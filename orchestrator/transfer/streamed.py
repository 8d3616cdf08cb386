"""The way through this machine: from the source's stream into the destination, on one lane or a few.

What always holds: of two failures the first cause is told: a source that fails is a SourceError (its LinkError
stays one), whatever the receiver, which only sees an early end, says of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from orchestrator.errors import LinkError, OrchError
from orchestrator.hosts import remote
from orchestrator.hosts.bulk import takes_pipes
from orchestrator.transfer.parcel import SourceError

if TYPE_CHECKING:
    from orchestrator.hosts.programs import PipeEnd
    from orchestrator.transfer.parcel import Need, Parcel, Place, Site, Trip

__all__ = ["END", "receive", "receive_args", "send_args", "stream_through"]

END = b"\xff" * 4 + b"\0" * 12
"""The end of a stream of chunks; see `hosts/scripts/chunks.py`."""

_SILENCE_S = 60.0
_WORTH_A_PIPE = 32 << 20
_SLOWEST = 256 * 1024  # bytes a second: a transfer that is slower than this is taken for hung


def receive_args(parcel: Parcel, place: Place, need: Need, *, finish: bool) -> dict[str, Any]:
    """Returns what the receiving script is told."""
    return {
        "workdir": place.workdir,
        "under": place.under,
        "plain": place.plain,
        "name": parcel.name,
        "files": {name: {"size": f.size, "sha256": f.sha256} for name, f in parcel.files.items()},
        "session": need.session,
        "twins": dict(need.twins),
        "finish": finish,
        "greet": False,
    }


def send_args(parcel: Parcel, need: Need, lane: int = 0, lanes: int = 1) -> dict[str, Any]:
    """Returns what the sending script is told."""
    return {
        "files": [[name, file.size, dict(file.origin)] for name, file in parcel.contents()],
        "spans": need.spans(parcel, lane, lanes),
    }


def receive(trip: Trip, stdin: Iterator[bytes | PipeEnd], *, finish: bool) -> dict[str, Any]:
    """Feeds the receiving script and returns its answer."""
    return remote.call(
        trip.destination.host,
        "transfer_receive",
        receive_args(trip.parcel, trip.place, trip.need, finish=finish),
        python=trip.destination.python,
        stdin=stdin,
        timeout=300 + trip.parcel.size / _SLOWEST,
    )


def stream_through(trip: Trip, lanes: int) -> dict[str, Any]:
    """Sends what is missing and makes the folder. Returns the receiver's answer.

    Raises:
        SourceError: the source failed. LinkError, HostFailedError: as `remote.call` does.
    """
    if not trip.need.missing:
        return receive(trip, iter([END]), finish=True)
    job = _Job(trip, lanes)
    if lanes == 1:
        return job.run(0)
    with ThreadPoolExecutor(lanes) as pool:
        running = [pool.submit(job.run, lane) for lane in range(lanes)]
    failures = [failure for done in running if (failure := done.exception()) is not None]
    if failures:
        raise next((f for f in failures if isinstance(f, SourceError)), failures[0])
    return receive(trip, iter([END]), finish=True)


class _Job:
    """What the lanes of one transfer share. One that fails stops the others."""

    def __init__(self, trip: Trip, lanes: int) -> None:
        self._trip, self._lanes = trip, lanes
        self._over = threading.Event()
        large = trip.need.bytes_to_send(trip.parcel) >= _WORTH_A_PIPE
        self._piped = large and takes_pipes(trip.destination.host)

    def run(self, lane: int) -> dict[str, Any]:
        """Sends one lane's share; the only lane makes the folder too."""
        trip = self._trip
        args = send_args(trip.parcel, trip.need, lane, self._lanes)
        sender = _Sender(trip.source, args, self._piped)
        try:
            return receive(trip, trip.meter.count(sender.pieces(), self._over), finish=self._lanes == 1)
        except OrchError:
            self._over.set()
            sender.raise_own()
            raise


class _Sender:
    """The stream from the source, with its failure kept: the receiver only sees an early end."""

    def __init__(self, source: Site, args: dict[str, Any], piped: bool) -> None:
        self._source, self._args = source, args
        self._open = remote.pipe if piped else remote.stream
        self._failure: OrchError | None = None

    def pieces(self) -> Iterator[bytes | PipeEnd]:
        try:
            yield from self._open(
                self._source.host, "transfer_send", self._args, python=self._source.python, timeout=_SILENCE_S
            )
        except OrchError as error:
            self._failure = error

    def raise_own(self) -> None:
        """Raises what went wrong at the source, if something did."""
        if isinstance(self._failure, LinkError):
            raise self._failure
        if self._failure is not None:
            raise SourceError(self._failure.message, self._failure.hint) from self._failure
