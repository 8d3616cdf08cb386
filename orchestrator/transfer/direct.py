"""The way from host to host, without this machine between them: the source's ssh program sends to the destination.

What always holds: the source is told the destination's host keys from this machine's record and believes no others.
It logs in with a key that was made for this transfer, which stands in the destination's authorized_keys only
until it has (`one_off_key: true` there), is bound to receiving these very files, and is gone afterwards whatever
happens; or with the user's agent, if that may be lent to the source. Where neither may be, or the hosts do not
reach each other, that is a NoDirectWayError and nothing is left behind.
"""

from __future__ import annotations

import base64
import json
import secrets
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from orchestrator.errors import HostFailedError, LinkError, OrchError
from orchestrator.hosts import command_line, remote
from orchestrator.hosts.bulk import USUAL_CIPHERS
from orchestrator.hosts.introduce import Introduction, introduce, lend_agent, make_key
from orchestrator.transfer.parcel import NoDirectWayError, SourceError
from orchestrator.transfer.streamed import END, receive, receive_args

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from orchestrator.hosts.base import Host
    from orchestrator.transfer.parcel import Site, Trip

__all__ = ["Direct"]

_KEY_S = 60.0
"""How long a key may stand at most: for logging in, not for the transfer."""
_SILENCE_S = 900.0  # at the end the receiver may read all of it once more
_CLOSED: WeakKeyDictionary[Host, set[str]] = WeakKeyDictionary()
_LANES = 4
_FAR_S = 0.025


@dataclass(frozen=True)
class Direct:
    """What may be used for it: a one-off key at the destination, the user's agent at the source."""

    one_off_key: bool
    forward_agent: bool

    def may_be_open(self, source: Site, destination: Site) -> bool:
        """Says whether it is worth a try: a way that was found closed stays so for as long as the hosts are open."""
        return source.host.name not in _CLOSED.get(destination.host, ())

    def carry(self, trip: Trip) -> dict[str, Any]:
        """Sends what is missing and makes the folder. Returns the receiver's answer.

        Raises:
            NoDirectWayError: the source cannot reach the destination, or is not let in.
            SourceError: the source's files are not as promised.
            LinkError, HostFailedError: as `remote.call` does, of the destination too.
        """
        source, destination = trip.source, trip.destination
        try:
            visited = self._introduced(source, destination)
            if not self.one_off_key:
                trip = replace(trip, source=_with_agent(source))
            return _Sending(trip, visited, own_key=self.one_off_key).go()
        except NoDirectWayError:
            _CLOSED.setdefault(destination.host, set()).add(source.host.name)
            raise

    def _introduced(self, source: Site, destination: Site) -> Introduction:
        if not (self.one_off_key or self.forward_agent):
            raise NoDirectWayError(
                f"`one_off_key: true` of {destination.host.name} in the inventory would let "
                f"{source.host.name} send to it directly"
            )
        visited = introduce(destination.host)
        if visited is None:
            raise NoDirectWayError(f"no host key of {destination.host.name} is on record here")
        return visited


def _with_agent(source: Site) -> Site:
    host = lend_agent(source.host)
    if host is None:
        raise NoDirectWayError(f"the agent cannot be lent to {source.host.name} over its transport")
    return replace(source, host=host)


class _Sending:
    """One transfer from host to host."""

    def __init__(self, trip: Trip, visited: Introduction, *, own_key: bool) -> None:
        self._trip, self._visited = trip, visited
        self._source, self._destination = trip.source, trip.destination
        self._key = make_key() if own_key else None

    def go(self) -> dict[str, Any]:
        """Sends."""
        trip, reached = self._trip, self._reach()
        lanes = _LANES if reached["seconds"] > _FAR_S else 1
        args = receive_args(trip.parcel, trip.place, trip.need, finish=lanes == 1) | {"greet": True}
        packed = base64.b64encode(json.dumps(args).encode()).decode()
        command = command_line([*remote.script_argv("transfer_receive", self._destination.python), packed])
        words = self._push(reached["folder"], command, lanes)
        with closing(words):
            connected = False
            try:
                with self._key_stands(command) if self._key else nullcontext():
                    self._expect_connected(words)
                connected = True
            finally:
                if not connected:
                    words.close()
                    self._leave(reached["folder"])
            answers = self._follow(words)
        self._raise_refusals(answers)
        if lanes == 1:
            return dict(answers[-1]["answer"])
        return receive(trip, iter([END]), finish=True)

    def _reach(self) -> dict[str, Any]:
        args = {
            "address": self._visited.address,
            "port": self._visited.port,
            "known_hosts": self._visited.known_hosts,
            "key": self._key.private if self._key else "",
        }
        try:
            return remote.call(
                self._source.host, "transfer_reach", args, python=self._source.python, timeout=30
            )
        except HostFailedError as error:
            raise self._no_way(error) from error

    def _push(self, folder: str, command: str, lanes: int) -> Generator[str, None, None]:
        parcel, need = self._trip.parcel, self._trip.need
        args = {
            "folder": folder,
            "address": self._visited.address,
            "port": self._visited.port,
            "user": self._visited.user,
            "known_as": self._visited.known_as,
            "own_key": self._key is not None,
            "ciphers": ",".join(USUAL_CIPHERS),
            "command": command,
            "files": [[name, file.size, dict(file.origin)] for name, file in parcel.contents()],
            "lanes": [need.spans(parcel, lane, lanes) for lane in range(lanes)],
        }
        return _lines(
            remote.stream(
                self._source.host, "transfer_push", args, python=self._source.python, timeout=_SILENCE_S
            )
        )

    def _leave(self, folder: str) -> None:
        """Has the source's folder removed, whose user may not have come as far as that."""
        remote.call(self._source.host, "transfer_reach", {"leave": folder}, python=self._source.python)

    @contextmanager
    def _key_stands(self, command: str) -> Iterator[None]:
        """Has the key's line stand in the destination's authorized_keys while the block runs."""
        host, python = self._destination.host, self._destination.python
        mark = f"orch-transfer-{secrets.token_hex(8)}"
        public = self._key.public if self._key else ""
        args = {"public": public, "command": command, "mark": mark, "seconds": _KEY_S}
        holder = remote.stream(host, "transfer_key", args, python=python, timeout=_KEY_S)
        with closing(holder):
            try:
                _expect_ready(holder)
            except HostFailedError as error:
                raise NoDirectWayError(f"its key could not be laid down: {error.message}") from error
            try:
                yield
            finally:
                holder.close()
                # The holder takes it out too, within a second, but then nobody here would know that it has.
                remote.call(host, "transfer_key", {"remove": mark}, python=python, timeout=30)

    def _expect_connected(self, words: Iterator[str]) -> None:
        try:
            for line in words:
                if line == "connected":
                    return
        except HostFailedError as error:
            raise self._no_way(error) from error
        raise NoDirectWayError(f"{self._source.host.name} could not start its ssh program")

    def _no_way(self, error: HostFailedError) -> OrchError | NoDirectWayError:
        if error.details.get("kind") != "unreachable":
            return error
        return NoDirectWayError(error.message)

    def _follow(self, words: Iterator[str]) -> list[dict[str, Any]]:
        """Reads how far it is, to the end. Returns the receivers' answers."""
        answers = []
        try:
            for line in words:
                if line.startswith("sent "):
                    self._trip.meter.add(int(line.removeprefix("sent ")))
                elif line.startswith("{"):
                    answers.append(json.loads(line))
        except LinkError as error:
            self._raise_refusals(answers)
            if error.details.get("kind") == "cut":
                raise LinkError(
                    f"{self._source.host.name} → {self._destination.host.name}: {error.message}",
                    "see that the two reach each other, then run this again",
                    **error.details,
                ) from error
            raise
        except OrchError as error:
            raise SourceError(error.message, error.hint) from error
        if not answers:
            raise LinkError(
                f"{self._source.host.name} said nothing of what became of its sending", "run this again"
            )
        return answers

    def _raise_refusals(self, answers: list[dict[str, Any]]) -> None:
        for answer in answers:
            if "error" in answer:
                raise remote.error_from(answer["error"], self._destination.host.name)


def _lines(pieces: Generator[bytes, None, None]) -> Generator[str, None, None]:
    held = b""
    with closing(pieces):
        for piece in pieces:
            *whole, held = (held + piece).split(b"\n")
            yield from (line.decode("utf-8", "replace") for line in whole)


def _expect_ready(holder: Iterator[bytes]) -> None:
    held = b""
    for piece in holder:
        held += piece
        if b"ready\n" in held:
            return
    raise NoDirectWayError("the key could not be laid down at the destination")
