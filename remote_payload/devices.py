"""Which devices a job's workers run on.

What always holds: under a supervisor that leased GPUs a worker sees those and no others, whatever their numbers on
the host are; `cuda:N` of a job is the host's GPU N, as nvidia-smi counts, wherever it stands among those.
"""

from __future__ import annotations

import os

import torch

from remote_payload.errors import InputError
from remote_payload.protocol import Job
from remote_payload.supervise.gpus import LEASED

__all__ = ["open_device", "worker_devices"]


def open_device(name: str) -> torch.device:
    """Returns a device by its name; `auto` is a GPU if there is one.

    Raises:
        InputError: it cannot be used here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {name!r} cannot be used here: {error}") from error
    return device


def worker_devices(job: Job) -> list[str]:
    """Returns the device of each worker: one per GPU with `gpus`, or `workers` times the job's device.

    Raises:
        InputError: more GPUs than there are, or settings that contradict each other.
    """
    if job.gpus < 0 or job.workers < 0:
        raise InputError(f"gpus is {job.gpus} and workers is {job.workers}; neither can be below 0")
    if job.gpus > 1 or (job.gpus == 1 and job.workers > 1):
        if job.device not in ("auto", "cuda"):
            raise InputError(
                f"gpus {job.gpus} and device {job.device!r} contradict each other; leave device out"
            )
        present = torch.cuda.device_count()
        if job.gpus > present:
            raise InputError(
                f"gpus is {job.gpus}, {present} are visible here (CUDA_VISIBLE_DEVICES counts); ask for fewer"
            )
        if job.workers not in (0, job.gpus):
            raise InputError(
                f"gpus {job.gpus} means {job.gpus} workers, workers says {job.workers}; leave it out"
            )
        return [f"cuda:{index}" for index in range(job.gpus)]
    return [_as_seen(job.device)] * max(1, job.workers)


def _as_seen(name: str) -> str:
    """Returns the name that a GPU of the host has among the leased ones."""
    kind, _, index = name.partition(":")
    leased = [number for number in os.environ.get(LEASED, "").split(",") if number]
    if kind != "cuda" or not index or not leased:
        return name
    if index not in leased:
        raise InputError(f"device {name!r} is not among the leased GPUs ({', '.join(leased)})")
    return f"cuda:{leased.index(index)}"
