"""A run of the record together with the host that its job is on: everything one can do to it from here.

What always holds: what is learnt of the job is noted in the record at once, so that `orch runs ls` is right
without asking; only `cancel` ends a job, only `settle` and `resume` start one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.errors import HostFailedError, LinkError
from orchestrator.launch import (
    ENDED,
    RESUMABLE,
    START,
    Cancelled,
    Cursor,
    Handle,
    LogPiece,
    Observation,
    launcher_for,
)
from orchestrator.runs.follow import Unreachable, follow
from orchestrator.runs.pull import pull

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from orchestrator.hosts.base import Host
    from orchestrator.inventory import HostEntry
    from orchestrator.runs.store import Pulled, Run
    from remote_payload.protocol import State

__all__ = ["AttachedRun"]


class AttachedRun:
    """One run and the way to its host."""

    def __init__(self, run: Run, host: Host, entry: HostEntry) -> None:
        # The job is where it was submitted, whatever the inventory calls the host's work folder today.
        self.run = run
        self.launcher = launcher_for(host, replace(entry, workdir=run.where.workdir))
        self.handle = Handle(
            host.name, run.job_id, run.job.payload_hash, run.where.launcher, run.where.native_id
        )

    def submit(self) -> State:
        """Starts the job, or finds out where it stands if it was started before: asking again is safe.

        Raises:
            LinkError: not known whether it was started; submit again, or attach, which does.
        """
        try:
            _, state = self.launcher.submit(self.run.job, self.run.files())
        except LinkError as error:
            raise self._unsettled(error, "was started", "attach") from error
        self.run.saw(state.state, state)
        return state

    def _unsettled(self, error: LinkError, what: str, verb: str) -> LinkError:
        """Returns the error for a request whose answer was lost: what is not known, and the command that tells."""
        job_id = self.run.job_id
        return LinkError(
            f"{error.message}; it is not known whether job {job_id} {what}",
            f"when the host answers again: `orch runs {verb} {job_id}` settles it",
            **error.details,
        )

    def look(self, cursor: Cursor = START) -> Observation:
        """Looks at the job once and notes what was seen."""
        seen = self.launcher.poll([self.handle], {self.handle.job_id: cursor})[0]
        self.run.saw(seen.verdict, seen.state, seen.fault, seen.left)
        return seen

    def settle(self) -> Observation:
        """Looks at the job, and submits it if its launch was cut off before it came to be."""
        seen = self.look(Cursor(log=-1))
        if seen.verdict in ("absent", "unstarted") and not self._has_ended_before():
            self.submit()
            seen = self.look(Cursor(log=-1))
        if seen.verdict in ("absent", "broken"):
            raise self._no_folder(seen)
        return seen

    def _no_folder(self, seen: Observation) -> HostFailedError:
        job_id = self.run.job_id
        hint = f"what was pulled is in {self.run.path}; to run it again: `orch eval`"
        if seen.verdict == "broken":
            hint = f"`orch runs cancel {job_id}` ends what is left of it, then `orch runs resume {job_id}` goes on"
        return HostFailedError(
            f"{self.handle.host}: the folder of job {job_id} is {seen.verdict}"
            + (f" ({seen.fault})" if seen.fault else ""),
            hint,
        )

    def _has_ended_before(self) -> bool:
        seen = self.run.seen()
        return bool(self.run.pulled()) or (seen is not None and seen.state is not None)

    def follow(self, cursor: Cursor = START) -> Iterator[Observation | Unreachable]:
        """Watches the job to its end."""
        return follow(self.look, cursor)

    def pull(self, report: Callable[[str], object] = lambda _text: None) -> Pulled:
        """Brings the results home; see `pull`.

        Args:
            report: told, in a sentence, if somebody else who pulls this run is waited for.

        Raises:
            LinkError: the link broke; the files that had come whole are kept, and pulling again gets the others.
        """
        job_id = self.run.job_id
        try:
            return pull(
                self.run,
                lambda have: self.launcher.send(self.handle, have),
                host=self.handle.host,
                job_dir=self.launcher.job_dir(job_id),
                report=report,
            )
        except LinkError as error:
            raise LinkError(
                f"{error.message}; not all results of {job_id} are here",
                f"when the host answers again: `orch runs pull {job_id}` gets what is missing",
                **error.details,
            ) from error

    def cancel(self, grace: float) -> Cancelled:
        """Ends the job, with proof.

        Raises:
            LinkError: not known whether it was ended; cancelling again is safe and tells.
        """
        try:
            done = self.launcher.cancel(self.handle, grace=grace)
        except LinkError as error:
            raise self._unsettled(error, "was ended", "cancel") from error
        self.run.saw(done.state.state, done.state)
        return done

    def resume(self) -> State:
        """Starts the job again; rows that are there stay. A job.json that is broken there is sent again.

        Raises:
            LinkError: not known whether it was started again; attaching tells.
        """
        try:
            state = self.launcher.resume(self.handle)
        except LinkError as error:
            raise self._unsettled(error, "was started again", "attach") from error
        except HostFailedError as error:
            if error.details.get("reason") != "job":
                raise
            state = self.submit()
            if self.look(Cursor(log=-1)).verdict in RESUMABLE:
                state = self.launcher.resume(self.handle)
        self.run.saw(state.state, state)
        return state

    def log(self, offset: int, limit: int = 1 << 20) -> LogPiece:
        """Reads the worker's log from an offset."""
        return self.launcher.read_log(self.handle, offset, limit)

    def has_ended(self) -> bool:
        """Says whether the record knows that the job has ended."""
        return self.run.status() in ENDED
