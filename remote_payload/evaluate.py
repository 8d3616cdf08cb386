"""The job loop: drafters x prompts x shapes, resumable.

What always holds: a drafter that is refused does not spoil the others; what the target alone determines is
computed once for all drafters; rows are on disk batch by batch, and a restarted job runs only what has no
row; the summary is written last.
"""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from remote_payload.devices import worker_devices
from remote_payload.engines.live import check_shape
from remote_payload.errors import InputError
from remote_payload.evaluation import Evaluation
from remote_payload.outcome import ENGINES, Outcome, write_summary
from remote_payload.prompts import read_prompts
from remote_payload.proof import EXIT_DIFFERS, fault
from remote_payload.protocol import Job
from remote_payload.results import Progress, ResultFolder
from remote_payload.shapes import parse_shapes
from remote_payload.shards import run_shares, settle_leftovers
from remote_payload.share import Share
from remote_payload.vocabulary import FEATURES

__all__ = ["EXIT_REJECTED", "run_job", "run_share"]

EXIT_REJECTED = InputError.exit_code


def run_job(job: Job, folder: Path, cache: Path, echo: TextIO | None = None) -> int:
    """Runs a job in its folder.

    Args:
        job: what to run; `job.prompts` is relative to the folder.
        folder: where rows.jsonl and the other results go.
        cache: the host's cache folder (trajectories, features, file hashes).
        echo: where progress is written too, a line at a time.

    Returns:
        0 if every drafter was evaluated, 10 if any was refused (the others' rows are there all the same), 1 if the
        engines really differ (`proof`; all rows are there, refused or not).

    Raises:
        InputError: the prompts, the target or the settings cannot be used.
    """
    check_supported(job)
    devices = worker_devices(job)
    results, progress = ResultFolder(folder), Progress(folder, echo)
    if results.repaired:
        progress.say(f"cut {results.repaired} bytes of a torn last line; its batch runs again")
    prompts = read_prompts(folder / job.prompts)
    if len(devices) > 1:
        outcome = run_shares(job, folder, cache, devices, len(prompts), results, progress)
    else:
        settle_leftovers(folder, results)
        outcome = Evaluation(job, prompts, results, progress, cache, device=devices[0]).run()
    for refusal in outcome.refused:
        progress.say(refusal.reason, phase="rejected", drafter=refusal.label)
    summary = write_summary(folder, job, results.rows(), outcome)
    if fault(summary):
        return EXIT_DIFFERS
    return EXIT_REJECTED if outcome.refused else 0


def run_share(job: Job, folder: Path, cache: Path, share: Share) -> Outcome:
    """Runs one worker's share of a job: writes its rows into the share's own folder, and returns the rest."""
    own = share.folder(folder)
    results, progress = ResultFolder(own, known=folder), Progress(own)
    prompts = read_prompts(folder / job.prompts)
    return Evaluation(job, prompts, results, progress, cache, device=share.device, share=share).run()


def check_supported(job: Job) -> None:
    """Refuses, by name, settings that this payload does not have; none is ignored."""
    if job.acceptance == "rejection":
        raise InputError(
            "acceptance 'rejection' is not in this payload: rejection sampling needs the probability with which the "
            "drafter drew each token, and these drafters draw none: at every temperature they propose their best "
            "tokens. Leave it out: with exact a draft is accepted when it is the token that the target sampled, which "
            "keeps the target's distribution too"
        )
    fixed = {
        "engine": (job.engine, tuple(ENGINES)),
        "acceptance": (job.acceptance, ("exact",)),
        "features": (job.features, FEATURES),
    }
    for name, (asked, available) in fixed.items():
        if asked not in available:
            has = f"{', '.join(available)} {'are' if len(available) > 1 else 'is'}"
            raise InputError(f"{name} {asked!r} is not in this payload; {has}")
    if "live" in ENGINES[job.engine]:
        for shape in parse_shapes(job.shapes):
            check_shape(shape)
    for name, value in (
        ("max_new_tokens", job.max_new_tokens),
        ("samples_per_prompt", job.samples_per_prompt),
    ):
        if value < 1:
            raise InputError(f"{name} is {value}, it has to be 1 or more")
    if job.temperature == 0 and job.samples_per_prompt > 1:
        raise InputError(
            "samples_per_prompt above 1 needs a temperature above 0: greedy samples are all the same"
        )
