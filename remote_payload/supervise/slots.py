"""What a job needs before it may run, by its record and its host: GPUs, or its turn in the work folder.

What always holds:

* A job that may use a GPU on a host that has some leases it (`gpus`); any other job waits for its turn in a line of
  its work folder, where one such job runs at a time, and is shown no GPU.
* The worker inherits the lease's descriptors: the place stays taken until the last process of the job that could use
  the device is gone, even if the supervisor was killed.
* Where it cannot be told what the host has, the job fails and says so: it is never started on a guess.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from remote_payload.supervise import gpus, nvidia
from remote_payload.supervise.gpus import GpuLease, LeaseError
from remote_payload.supervise.lockdir import SHARED, LockDir, LockDirError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from remote_payload.protocol import Job

__all__ = ["HostRules", "Lease", "LeaseError", "LockDirError", "WorkdirLease", "gpu_lease", "lease_for"]

_NO_GPU = "none"
_HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}


@dataclass(frozen=True)
class HostRules:
    """How GPUs are shared on this host: what the inventory says of it.

    `lock_dir` is where GPUs are locked (`~` is expanded), `gpus` those that may be used (None: all), `gpu_free` the
    share of a GPU's memory that has to be free, whoever uses the rest (None: nobody may use it).
    """

    lock_dir: str = SHARED
    gpus: tuple[str, ...] | None = None
    gpu_free: float | None = None

    @staticmethod
    def add_flags(parser: argparse.ArgumentParser) -> None:
        """Adds the rules to a command's flags."""
        parser.add_argument(
            "--lock-dir", default=SHARED, help="where GPUs are locked, the same for all users"
        )
        parser.add_argument(
            "--gpu", action="append", default=[], help="index or UUID of one that may be used; none: no GPU"
        )
        parser.add_argument("--gpu-free", type=float, help="share of a GPU's memory that has to be free")

    @classmethod
    def from_flags(cls, args: argparse.Namespace) -> HostRules:
        """Reads them back."""
        named = None if not args.gpu else tuple(name for name in args.gpu if name != _NO_GPU)
        return cls(args.lock_dir, named, args.gpu_free)

    def to_flags(self) -> list[str]:
        """Returns the flags that give these rules."""
        free = [] if self.gpu_free is None else [f"--gpu-free={self.gpu_free}"]
        named = () if self.gpus is None else self.gpus or (_NO_GPU,)
        return [f"--lock-dir={self.lock_dir}", *(f"--gpu={name}" for name in named), *free]


class Lease(Protocol):
    """The right to use the host's devices, waited for in line."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What the worker inherits, so that the lease lives as long as any of its processes."""

    @property
    def environment(self) -> Mapping[str, str]:
        """What the worker must see to use what was leased, and only that."""

    @property
    def gpu_uuids(self) -> list[str]:
        """The GPUs that were leased."""

    def position(self) -> int:
        """Returns the job's place in line: 1 is next, 0 means that the lease is held."""

    def waits_for(self) -> str:
        """Returns in words what the job waits for; it changes only when that does."""

    def release(self) -> None:
        """Leaves the line, or gives the lease back."""


class WorkdirLease:
    """At most `places` running jobs in a line, first come, first served.

    Args:
        queue: the folder of the line.
        job_id: whose place it is.
        environment: what the worker must see.
    """

    gpu_uuids: list[str] = []  # noqa: RUF012 - none, never changed

    def __init__(
        self, queue: Path, job_id: str, places: int = 1, environment: Mapping[str, str] | None = None
    ) -> None:
        self.environment: Mapping[str, str] = environment or {}
        self._places = places
        self._place = 0
        self._folder = LockDir(queue, shared=False)
        self._ticket = self._folder.stand_in_line(job_id, {"job_id": job_id})

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The ticket's descriptor."""
        return () if self._ticket.descriptor is None else (self._ticket.descriptor,)

    def position(self) -> int:
        """Returns how many live tickets must go before this job may run; sweeps the dead ones."""
        self._place = max(0, len(self._ticket.before()) - self._places + 1)
        return self._place

    def waits_for(self) -> str:
        """Returns who else is in line."""
        if self._place == 1:
            return "next in line for this work folder"
        return f"place {self._place} in line for this work folder"

    def release(self) -> None:
        """Removes the ticket and unlocks it."""
        self._ticket.leave()
        self._folder.close()


def lease_for(job: Job, job_folder: Path, rules: HostRules) -> Lease:
    """Returns a place in the line that is right for a job on this host.

    Raises:
        LeaseError, LockDirError, OSError: there is none.
    """
    lease, environment = gpu_lease(job, rules)
    return lease or WorkdirLease(job_folder.parent / ".queue", job.job_id, environment=environment)


def gpu_lease(job: Job, rules: HostRules) -> tuple[GpuLease | None, Mapping[str, str]]:
    """Returns a job's place in the line for GPUs, or None and what a worker that gets none must see.

    Raises:
        LeaseError, LockDirError, OSError: it cannot have what it asks for.
    """
    if job.device == "cpu":
        return None, _HIDDEN
    found = _look(job)
    if rules.gpus and not found:
        what = "nvidia-smi is not on this host's PATH" if found is None else "nvidia-smi finds none"
        raise LeaseError(f"the inventory's `gpus` names GPUs of this host, and {what}")
    usable = gpus.allowed(found or [], rules.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if not usable and job.device == "auto" and not job.gpus:
        return None, _HIDDEN if found else {}
    if found is None:  # GPUs that nvidia-smi does not know: the worker counts those that it sees
        return None, {}
    want = gpus.wanted(job, usable, rules.gpu_free)
    locks = LockDir(Path(os.path.expanduser(rules.lock_dir)), shared=True)  # noqa: PTH111 - an unknown ~user stays
    return GpuLease(locks, gpus.introduction(job, _user()), want), {}


def _look(job: Job) -> list[nvidia.Gpu] | None:
    try:
        return nvidia.patient_look()
    except nvidia.NvidiaError as error:
        without = (
            "; `--device cpu` runs the job without a GPU" if job.device == "auto" and not job.gpus else ""
        )
        raise LeaseError(f"{error}; so it cannot be told whether a GPU is free{without}") from error


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()}"
