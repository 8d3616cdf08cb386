"""One of several workers of a job, as a process: `python -m remote_payload share`, started by `shards`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from remote_payload.durable import read_json, write_json
from remote_payload.errors import InputError
from remote_payload.evaluate import run_share
from remote_payload.protocol import Job
from remote_payload.share import Share, bound_to, holding

__all__ = ["share_main", "work_share"]


def share_main(argv: Sequence[str]) -> int:
    """Runs one worker's share of a job that a parent deals out. Exit codes as of `worker_main`."""
    parser = argparse.ArgumentParser(prog="python -m remote_payload share")
    parser.add_argument("--job", type=Path, required=True, metavar="DIR")
    parser.add_argument("--cache", type=Path, required=True, metavar="DIR")
    for name in ("--index", "--of", "--parent"):
        parser.add_argument(name, type=int, required=True, metavar="N")
    parser.add_argument("--device", required=True)
    args = parser.parse_args(argv)
    bound_to(args.parent)
    job = Job.from_json(read_json(args.job / "job.json"), str(args.job / "job.json"))
    return work_share(job, args.job, args.cache, Share(args.index, args.of, args.device))


def work_share(job: Job, folder: Path, cache: Path, share: Share) -> int:
    """Runs a share in this process and leaves `outcome.json` in its folder."""
    outcome = share.folder(folder) / "outcome.json"
    with holding(folder):
        if job.threads == 0 and share.device == "cpu":
            job = replace(job, threads=max(1, (os.cpu_count() or 1) // share.of))
        try:
            result = run_share(job, folder, cache, share)
        except InputError as error:
            write_json(outcome, {"error": str(error)})
            return error.exit_code
        write_json(outcome, result.to_json())
    return InputError.exit_code if result.refused else 0
