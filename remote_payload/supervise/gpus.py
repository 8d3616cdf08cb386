"""Leases of GPUs by UUID, and who is next: first come, first served, over all users of a host, without a daemon.

What always holds:

* A GPU is leased by holding the lock on its file in the shared folder *and* having seen that others leave room on it.
  The worker inherits the locks: a GPU stays taken until the last process that could use it is gone.
* A job takes no GPU that a job before it in line could take; so a job that wants many is not overtaken for ever.
* A job never holds some of its GPUs while it waits for the others.
* The worker sees the leased GPUs and no others: `CUDA_VISIBLE_DEVICES` by UUID.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from remote_payload.supervise import nvidia, processes
from remote_payload.supervise.lockdir import LockDir, write_record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from remote_payload.protocol import Job
    from remote_payload.supervise.nvidia import Gpu

__all__ = ["LEASED", "GpuLease", "LeaseError", "Wanted", "allowed", "introduction", "wanted"]

LEASED = "ORCH_LEASED_GPUS"
"""Tells the worker the leased GPUs by the host's own indices, in the order in which it sees them."""
_SHOWN = 3
_FIRST_LOOK_S, _LAST_LOOK_S = 1.0, 10.0
_BLIND_S = 60.0
"""How long `nvidia-smi` may fail while a job waits before the job fails."""


class LeaseError(Exception):
    """The host cannot give what the job asks for, now or later; the message says what it has."""


@dataclass(frozen=True)
class Wanted:
    """What a job asks for: `count` of `gpus`, each with the share `enough` of its memory free (None: unused)."""

    count: int
    gpus: tuple[Gpu, ...]
    enough: float | None = None


def allowed(gpus: Sequence[Gpu], named: Sequence[str] | None, visible: str | None) -> list[Gpu]:
    """Returns the GPUs that jobs may use.

    Args:
        gpus: all of the host's.
        named: indices or UUIDs (or the start of one) from the inventory; None: all.
        visible: `CUDA_VISIBLE_DEVICES` as the host sets it, if it does.

    Raises:
        LeaseError: a name is no GPU of this host, or could mean another one.
    """
    chosen = list(gpus) if named is None else [_named(name, gpus, "the inventory's `gpus`") for name in named]
    if visible is None:
        return chosen
    words = [word.strip() for word in visible.split(",") if word.strip()]
    if any(word.isdecimal() for word in words) and len({gpu.name for gpu in gpus}) > 1:
        raise LeaseError(
            f"CUDA_VISIBLE_DEVICES is {visible!r} on this host, whose GPUs differ: CUDA counts them in another "
            "order than nvidia-smi; name them by UUID there, or unset it and use `gpus` of the inventory"
        )
    shown = [_named(word, gpus, "CUDA_VISIBLE_DEVICES") for word in words if word not in ("-1", "NoDevFiles")]
    return [gpu for gpu in chosen if gpu in shown]


def _named(name: str, gpus: Sequence[Gpu], where: str) -> Gpu:
    found = [g for g in gpus if (str(g.index) == name if name.isdecimal() else g.uuid.startswith(name))]
    if len(found) != 1:
        there = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus)
        what = "no GPU of this host" if not found else f"the start of {len(found)} UUIDs"
        raise LeaseError(f"{where}: {name} is {what}; it has {there}")
    return found[0]


def wanted(job: Job, gpus: Sequence[Gpu], enough: float | None) -> Wanted:
    """Returns what a job asks for of the GPUs that it may use.

    Raises:
        LeaseError: there are too few that can be used at all.
    """
    kind, _, index = job.device.partition(":")
    if index:
        gpus = [gpu for gpu in gpus if str(gpu.index) == index]
    usable = [gpu for gpu in gpus if not gpu.fault()]
    count = max(1, job.gpus)
    if count > len(usable):
        out = "; ".join(f"GPU {gpu.index} {gpu.fault()}" for gpu in gpus if gpu.fault())
        which = f"GPU {index}" if index else f"{count} GPU{'s' if count > 1 else ''}"
        without = "" if kind == "cuda" or job.gpus else "; `--device cpu` runs it without one"
        raise LeaseError(
            f"the job asks for {which}, and jobs may use {len(usable) or 'none'} here"
            + (f" ({out})" if out else "")
            + without
        )
    return Wanted(count, tuple(usable), enough)


def introduction(job: Job, user: str) -> dict[str, Any]:
    """Returns what others may know of a job of this process."""
    me = processes.identity_of(os.getpid())
    return {
        "job_id": job.job_id,
        "label": job.label,
        "user": user,
        "pid": me.pid,
        "pid_started": me.started,
        "boot_id": me.boot_id,
        "since": time.time(),
    }


class GpuLease:
    """The right to some of a host's GPUs, waited for in line.

    Args:
        folder: where GPUs are locked.
        about: who asks (see `introduction`); `about["job_id"]` names the ticket.
        want: what for.
        look: how the GPUs are looked at; as of `nvidia.look`.
    """

    def __init__(
        self,
        folder: LockDir,
        about: Mapping[str, Any],
        want: Wanted,
        look: Callable[[], list[Gpu] | None] = nvidia.look,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._about, self._want, self._look, self._clock = (
            folder,
            dict(about),
            want,
            look,
            clock,
        )
        self._held: dict[str, int] = {}
        self._taken: list[Gpu] = []
        self._place = 0
        self._why: dict[int, str] = {}
        self._next_look, self._pause, self._looked_at = 0.0, _FIRST_LOOK_S, frozenset[str]()
        self._faults: dict[int, str] = {}
        self._blind_since: float | None = None
        uuids = [gpu.uuid for gpu in want.gpus]
        self._ticket = folder.stand_in_line(str(about["job_id"]), {**about, "wants": want.count, "of": uuids})

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The locks of the leased GPUs."""
        return tuple(self._held[gpu.uuid] for gpu in self._taken)

    @property
    def environment(self) -> Mapping[str, str]:
        """The leased GPUs and no others."""
        return {
            "CUDA_VISIBLE_DEVICES": ",".join(self.gpu_uuids),
            LEASED: ",".join(str(gpu.index) for gpu in self._taken),
        }

    @property
    def gpu_uuids(self) -> list[str]:
        """The UUIDs of the leased GPUs."""
        return [gpu.uuid for gpu in self._taken]

    def position(self) -> int:
        """Returns the job's place in line, 0 once it holds its GPUs. Tries to take them.

        Raises:
            LeaseError: the GPUs could not be looked at for a minute.
        """
        if self._taken:
            return 0
        mine = {gpu.uuid for gpu in self._want.gpus}
        before = [claim for record in self._ticket.before() if (claim := _claim(record, mine))]
        claimed = set().union(*before)
        if self._take([gpu for gpu in self._want.gpus if gpu.uuid not in claimed]):
            self._ticket.leave()
            return 0
        self._place = len(before) + 1
        return self._place

    def waits_for(self) -> str:
        """Returns in words what the job waits for."""
        count = self._want.count
        line = "next in line" if self._place == 1 else f"place {self._place} in line"
        what = f"for {count} GPUs" if count > 1 else "for a GPU"
        words = [f"GPU {index} {why}" for index, why in sorted(self._why.items())]
        more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
        return f"{line} {what}" + (f" ({'; '.join(words[:_SHOWN])}{more})" if words else "")

    def _take(self, gpus: Sequence[Gpu]) -> bool:
        """Takes what the job wants of some GPUs, or nothing."""
        self._why = {}
        if len(gpus) < self._want.count:
            return False
        locked = [gpu for gpu in gpus if self._lock(gpu)]
        room = self._with_room(locked) if len(locked) >= self._want.count else []
        chosen = room[: self._want.count] if len(room) >= self._want.count else []
        for gpu in locked:
            if gpu.uuid not in {one.uuid for one in chosen}:
                os.close(self._held.pop(gpu.uuid))
        self._taken = chosen
        for gpu in chosen:
            write_record(self._held[gpu.uuid], {**self._about, "since": time.time()})
        return bool(chosen)

    def _lock(self, gpu: Gpu) -> bool:
        descriptor = self._folder.take(gpu.uuid)
        if descriptor is not None:
            self._held[gpu.uuid] = descriptor
            return True
        self._why[gpu.index] = _whose(self._folder.holder(gpu.uuid))
        return False

    def _with_room(self, locked: Sequence[Gpu]) -> list[Gpu]:
        """Returns those of the locked GPUs on which others leave room, those with the most room first."""
        ours = frozenset(gpu.uuid for gpu in locked)
        now = self._clock()
        if ours == self._looked_at and now < self._next_look:
            self._why |= self._faults
            return []
        self._pause = min(self._pause * 2, _LAST_LOOK_S) if ours == self._looked_at else _FIRST_LOOK_S
        self._looked_at, self._next_look = ours, now + self._pause
        try:
            seen = self._look() or []
        except nvidia.NvidiaError as error:
            self._blind_since = now if self._blind_since is None else self._blind_since
            if now - self._blind_since >= _BLIND_S:
                raise LeaseError(f"{error}; so it cannot be told whether a GPU is free") from error
            return []
        self._blind_since = None
        present = [gpu for gpu in seen if gpu.uuid in ours]
        found = {gpu.index: gpu.fault() or gpu.occupied(self._want.enough) for gpu in present}
        self._faults = {index: why for index, why in found.items() if why}
        self._why |= self._faults
        room = [gpu for gpu in present if not found[gpu.index]]
        return sorted(room, key=lambda gpu: (-round(gpu.free or 0.0, 1), gpu.index))

    def release(self) -> None:
        """Leaves the line, or gives the GPUs back (those that a process of the job still could use once it is gone)."""
        self._ticket.leave()
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()
        self._taken = []
        self._folder.close()


def _claim(record: Mapping[str, Any], mine: set[str]) -> set[str]:
    """Returns which of my GPUs a job before me could take: all of them if it does not say."""
    named = record.get("of")
    return mine & {str(uuid) for uuid in named} if isinstance(named, list) else mine


def _whose(holder: Mapping[str, Any] | None) -> str:
    if not holder:
        return "is taken"
    return f"has job {str(holder.get('job_id'))[:80]} of {str(holder.get('user'))[:40]}"
