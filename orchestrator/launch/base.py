"""How a job is started, watched and ended, whatever runs it: one contract for every launcher.

What always holds:

* Submitting the same job twice starts it once: the job's id, made by the client, decides.
* A submit that returns means: running (or in line) and recorded. One that raises HostFailedError means:
  nothing is left running. One that raises LinkError says nothing: submit again, it settles the matter.
* The job's own record is the truth; a broken link says nothing about the job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_payload.protocol import Event, Job, State

__all__ = [
    "ENDED",
    "RESUMABLE",
    "START",
    "Cancelled",
    "Cursor",
    "Handle",
    "Launcher",
    "LogPiece",
    "Observation",
]

ENDED = frozenset({"done", "failed", "cancelled", "timeout", "preempted", "lost"})
"""Verdicts after which nothing more will come from a job by itself."""
RESUMABLE = frozenset({"failed", "cancelled", "timeout", "preempted", "lost"})


@dataclass(frozen=True)
class Handle:
    """A submitted job: enough to find it again from a client that knows nothing else.

    `native_id` is the id that a scheduler gave it, if one did.
    """

    host: str
    job_id: str
    payload_hash: str
    launcher: str = "process"
    native_id: str = ""


class Cursor(NamedTuple):
    """How far a job's files have been read, in bytes. A negative `log` counts from the log's end."""

    events: int = 0
    log: int = 0
    rows: int = 0


START = Cursor()


@dataclass(frozen=True)
class Observation:
    """One look at a job.

    `verdict` is the state that its own record names, or `unstarted`, `absent`, `broken` (its record cannot
    be read: see `fault`), or `lost` (its supervisor is gone and wrote no end; `left` are its processes that
    live on, `fault` says whether the disk is full). `now` is the host's clock.
    """

    handle: Handle
    verdict: str
    state: State | None = None
    events: tuple[Event, ...] = ()
    log: bytes = b""
    new_rows: int = 0
    cursor: Cursor = START
    more: bool = False
    left: tuple[int, ...] = ()
    fault: str = ""
    now: float = 0.0


@dataclass(frozen=True)
class Cancelled:
    """What a cancel found and what it left: no process of the job, by the launcher's proof.

    `still` has a sentence for each process that computes on a GPU which the job had.
    """

    was: str
    state: State
    still: tuple[str, ...] = ()


class LogPiece(NamedTuple):
    """Bytes of a job's log and the offset after them."""

    data: bytes
    next_offset: int
    more: bool


class Launcher(Protocol):
    """Starts, watches and ends jobs on one host or cluster."""

    def submit(self, job: Job, files: Mapping[str, bytes]) -> tuple[Handle, State]:
        """Starts a job with its files, or returns where it stands if it was started before."""

    def poll(
        self,
        handles: Sequence[Handle],
        cursors: Mapping[str, Cursor] | None = None,
        *,
        max_bytes: int = 1 << 20,
    ) -> list[Observation]:
        """Looks at jobs, all in one request. `cursors` is by job id; what is missing starts at 0."""

    def cancel(self, handle: Handle, *, grace: float = 10.0) -> Cancelled:
        """Ends a job: TERM, grace, KILL, and proof that nothing of it is left."""

    def read_log(self, handle: Handle, offset: int = 0, limit: int = 1 << 20) -> LogPiece:
        """Reads a job's log; a negative offset counts from its end."""

    def resume(self, handle: Handle) -> State:
        """Starts a job again that ended early; finished rows stay."""
