"""What `nvidia-smi` says of this host's GPUs: which there are, and who uses them.

What always holds: standard library only and nothing else of this package, so that `orch hosts gpus` can send this
file to a host that has no payload yet; a host without `nvidia-smi` has None, which is no error; nothing is cached.
"""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass, replace

__all__ = ["MUCH_FREE", "Gpu", "NvidiaError", "User", "look", "patient_look"]

MUCH_FREE = 0.9
"""The share of a GPU's memory that is free on one that nobody uses: drivers and displays take some."""

_ANSWER_S = 30.0
_NO_DEVICES = 6
"""The exit code of an `nvidia-smi` that found no device."""
_ABOUT = ("index", "uuid", "name", "memory.total", "memory.used", "compute_mode", "mig.mode.current")
_USERS = ("gpu_uuid", "pid", "used_memory", "process_name")


class NvidiaError(Exception):
    """`nvidia-smi` is there and did not answer, or not in a form that can be read."""


@dataclass(frozen=True)
class User:
    """A process that computes on a GPU. `mib` is None where the driver does not tell (in a container)."""

    pid: int
    mib: int | None
    name: str


@dataclass(frozen=True)
class Gpu:
    """One GPU. Memory is in MiB, None where the driver does not count it (shared with the host's)."""

    index: int
    uuid: str
    name: str
    total_mib: int | None
    used_mib: int | None
    mode: str
    mig: bool
    users: tuple[User, ...] = ()

    @property
    def free(self) -> float | None:
        """The share of its memory that is free."""
        if not self.total_mib or self.used_mib is None:
            return None
        return max(0.0, 1.0 - self.used_mib / self.total_mib)

    def fault(self) -> str:
        """Returns why no job can be given this GPU, whoever uses it; empty if one can."""
        if self.mig:
            return "is split (MIG)"
        return "lets nobody compute (compute mode Prohibited)" if self.mode == "Prohibited" else ""

    def occupied(self, enough: float | None) -> str:
        """Returns why there is no room for a job now; empty if there is.

        Args:
            enough: the share of memory that has to be free, whoever uses the rest; None: nobody may use the
                GPU, and `MUCH_FREE` of it has to be free.
        """
        if enough is None and self.users:
            return "is used by others"
        least = MUCH_FREE if enough is None else enough
        return (
            f"has less than {least:.0%} of its memory free"
            if self.free is not None and self.free < least
            else ""
        )


def look() -> list[Gpu] | None:
    """Returns the GPUs with their users, in the order of their indices; None if there is no `nvidia-smi`.

    Raises:
        NvidiaError: it failed (the message has its own words).
    """
    try:
        about = _rows("--query-gpu=" + ",".join(_ABOUT), len(_ABOUT))
        users = _rows("--query-compute-apps=" + ",".join(_USERS), len(_USERS)) if about else []
    except FileNotFoundError:
        return None
    gpus = {}
    for index, uuid, name, total, used, mode, mig in about:
        if not index.isdecimal():
            raise NvidiaError(f"nvidia-smi names a GPU {index!r}")
        gpus[uuid] = Gpu(int(index), uuid, name, _mib(total), _mib(used), mode, mig == "Enabled")
    for uuid, pid, mib, name in users:
        if uuid in gpus and pid.isdecimal():
            user = User(int(pid), _mib(mib), os.path.basename(name))  # noqa: PTH119 - text, not a path of ours
            gpus[uuid] = replace(gpus[uuid], users=(*gpus[uuid].users, user))
    return sorted(gpus.values(), key=lambda gpu: gpu.index)


def patient_look(tries: int = 3, pause: float = 1.0) -> list[Gpu] | None:
    """Looks as `look` does, up to `tries` times: a driver that is just being loaded fails and then works."""
    for _ in range(tries - 1):
        try:
            return look()
        except NvidiaError:
            time.sleep(pause)
    return look()


def _mib(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _rows(question: str, width: int) -> list[list[str]]:
    argv = ["nvidia-smi", question, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ANSWER_S,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NvidiaError(f"nvidia-smi did not answer within {_ANSWER_S:.0f} s") from error
    except PermissionError as error:
        raise NvidiaError(f"nvidia-smi cannot be started ({error.strerror})") from error
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode == _NO_DEVICES:
        return []
    if done.returncode != 0:
        words = " ".join((text + done.stderr.decode("utf-8", "replace")).split())[:300]
        raise NvidiaError(f"nvidia-smi failed (exit code {done.returncode}): {words or 'it said nothing'}")
    rows = [
        [cell.strip() for cell in line.split(",", width - 1)] for line in text.splitlines() if line.strip()
    ]
    if wrong := [row for row in rows if len(row) != width]:
        raise NvidiaError(f"nvidia-smi answered {', '.join(wrong[0])[:200]!r}, which cannot be read")
    return rows
