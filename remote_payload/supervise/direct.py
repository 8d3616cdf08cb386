"""GPUs for a run that has no supervisor: somebody on the host who starts an evaluation by hand.

What always holds: it stands in the same line as all jobs of the host and holds the same locks, which the kernel frees
when it ends, however it ends; CUDA has to be used only inside.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from remote_payload.errors import InputError
from remote_payload.supervise.lockdir import SHARED
from remote_payload.supervise.slots import HostRules, LeaseError, LockDirError, gpu_lease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from remote_payload.protocol import Job

__all__ = ["holding_gpus"]

_LOOK_S = 0.5


@contextmanager
def holding_gpus(job: Job, say: Callable[[str], object], rules: HostRules | None = None) -> Iterator[None]:
    """Waits for the GPUs that a job needs, if any, and shows this process them alone while it holds them.

    Args:
        job: what is to be run.
        say: told what is waited for, whenever that changes.
        rules: how GPUs are shared here; if not given, the usual way, in `$ORCH_LOCK_DIR` if that is set.

    Raises:
        InputError: the host cannot give them.
    """
    try:
        with _holding(job, say, rules):
            yield
    except (LeaseError, LockDirError) as error:
        raise InputError(str(error)) from error


@contextmanager
def _holding(job: Job, say: Callable[[str], object], rules: HostRules | None) -> Iterator[None]:
    lease, environment = gpu_lease(job, rules or HostRules(os.environ.get("ORCH_LOCK_DIR", SHARED)))
    try:
        told = ""
        while lease is not None and lease.position():
            if (words := lease.waits_for()) != told:
                told = words
                say(words)
            time.sleep(_LOOK_S)
        os.environ.update(environment if lease is None else lease.environment)
        yield
    finally:
        if lease is not None:
            lease.release()
