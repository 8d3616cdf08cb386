"""The job loop: drafters x prompts x shapes, resumable.

What always holds: a drafter that is refused does not spoil the others; what the target alone determines is
computed once for all drafters; rows are on disk batch by batch, and a restarted job runs only what has no
row; the summary is written last.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from remote_payload.ahead import ahead
from remote_payload.devices import open_device, worker_devices
from remote_payload.drafters.checkpoint import load_checkpoint
from remote_payload.ends import EndsTarget, read_record, record_ends
from remote_payload.errors import CheckpointError, InputError
from remote_payload.feature_store import FeatureStore
from remote_payload.features import DiskFeatures, Features, Recomputed, capture_features
from remote_payload.fingerprint import model_hash, template_hash
from remote_payload.items import Item, continue_prompts
from remote_payload.measure import Measurement, Measuring
from remote_payload.memory import Room
from remote_payload.outcome import Outcome, write_summary
from remote_payload.plan import Candidate, Refusal, check_fit, plan_drafters
from remote_payload.prompts import Prompt, Tokenizing, read_prompts
from remote_payload.protocol import Job, canonical_json, sha256_hex
from remote_payload.results import Progress, ResultFolder
from remote_payload.sampling import Sampling
from remote_payload.shapes import parse_shapes
from remote_payload.shards import run_shares, settle_leftovers
from remote_payload.share import Share
from remote_payload.target import Target
from remote_payload.trajectories import Need, TrajectoryStore

__all__ = ["EXIT_REJECTED", "Evaluation", "run_job", "run_share"]

EXIT_REJECTED = InputError.exit_code
FEATURES = ("ram", "disk", "recompute")


def run_job(job: Job, folder: Path, cache: Path) -> int:
    """Runs a job in its folder.

    Args:
        job: what to run; `job.prompts` is relative to the folder.
        folder: where rows.jsonl and the other results go.
        cache: the host's cache folder (trajectories, features, file hashes).

    Returns:
        0 if every drafter was evaluated, 10 if any was refused (the others' rows are there all the same).

    Raises:
        InputError: the prompts, the target or the settings cannot be used.
    """
    check_supported(job)
    devices = worker_devices(job)
    results, progress = ResultFolder(folder), Progress(folder)
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
    write_summary(folder, job, results.rows(), outcome)
    return EXIT_REJECTED if outcome.refused else 0


def run_share(job: Job, folder: Path, cache: Path, share: Share) -> Outcome:
    """Runs one worker's share of a job: writes its rows into the share's own folder, and returns the rest."""
    own = share.folder(folder)
    results, progress = ResultFolder(own, known=folder), Progress(own)
    prompts = read_prompts(folder / job.prompts)
    return Evaluation(job, prompts, results, progress, cache, device=share.device, share=share).run()


def check_supported(job: Job) -> None:
    """Refuses, by name, settings that this payload does not have; none is ignored."""
    fixed = {"engine": (job.engine, ("replay",)), "acceptance": (job.acceptance, ("exact",))}
    for name, (asked, available) in (fixed | {"features": (job.features, FEATURES)}).items():
        if asked not in available:
            has = " and ".join(repr(one) for one in available)
            raise InputError(
                f"{name} {asked!r} is not in this payload; {has} {'is' if len(available) == 1 else 'are'}"
            )
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


class Evaluation:
    """One process's run of a job, or of its share of one: what it has learnt so far.

    Args:
        job: what to run.
        prompts: all prompts of the job; a share takes its own from them.
        results, progress: where rows and events go.
        cache: the host's cache folder.
        device: where the target and the drafters run.
        share: which prompts; None for all.
    """

    def __init__(
        self,
        job: Job,
        prompts: Sequence[Prompt],
        results: ResultFolder,
        progress: Progress,
        cache: Path,
        *,
        device: str,
        share: Share | None = None,
    ) -> None:
        self.job, self.cache, self.device = job, cache, open_device(device)
        self.prompts = list(prompts) if share is None else share.prompts(prompts)
        self.sampled = frozenset(prompt.id for prompt in prompts[: job.samples])
        self.shapes = tuple(parse_shapes(job.shapes))
        self.sampling = Sampling(job.temperature, job.top_p, job.top_k, job.seed)
        self.results, self.progress = results, progress
        self.room = Room(self.device, progress.say)
        self.candidates: list[Candidate] = []
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Runs it all; refused drafters are in the outcome."""
        if self.job.threads:
            torch.set_num_threads(self.job.threads)
        self.candidates, self.outcome.refused = plan_drafters(self.job)
        if self.candidates:
            with self._timed("load_target"):
                target, path = self._load_target()
            self._drop_misfits(target)
            if self.candidates:
                self._measure(target, path)
        return self.outcome

    def _load_target(self) -> tuple[Target, dict[str, Any]]:
        """Returns the target, and what its continuations depend on besides the prompt."""
        spec = self.job.target
        folder = Path(spec.path).expanduser()
        self.progress.step("load_target", 0, 1, message=str(folder))
        path = {
            "target": model_hash(folder, self.cache / "hashes.json"),
            "dtype": spec.dtype,
            "attn": spec.attn,
            "device": self.device.type,
            **self.sampling.identity(),
        }
        record = read_record(self._ends_file(path)) if self.job.features == "disk" else None
        settings: dict[str, Any] = {
            "dtype": spec.dtype,
            "device": self.device,
            "attn": spec.attn,
            "trust_remote_code": spec.trust_remote_code,
        }
        if record is None:
            target = Target(folder, **settings)
        else:
            target = EndsTarget(record, folder, say=self.progress.say, **settings)
        said = "" if record is None else "the embedding and the head; the rest is not needed so far"
        self.progress.step("load_target", 1, 1, message=said)
        return target, path

    def _ends_file(self, path: dict[str, Any]) -> Path:
        key = {name: path[name] for name in ("target", "dtype", "device")}
        return self.cache / "features" / f"ends-{sha256_hex(canonical_json(key))[:24]}.json"

    def _drop_misfits(self, target: Target) -> None:
        for candidate in list(self.candidates):
            try:
                self.outcome.notes += check_fit(
                    candidate,
                    num_layers=target.num_layers,
                    hidden_size=target.hidden_size,
                    vocab_size=target.vocab_size,
                    embed=lambda token: target.embed(torch.tensor(token, device=target.device)),
                )
            except CheckpointError as error:
                self._refuse(candidate, error)

    def _measure(self, target: Target, path: dict[str, Any]) -> None:
        job = self.job
        tokenizer = target.tokenizer()
        tokenizing = Tokenizing(tokenizer, target.vocab_size, enable_thinking=job.enable_thinking)
        stops = target.stop_ids() if job.stop_ids is None else job.stop_ids
        need = Need(job.max_new_tokens, frozenset(stops), max(c.drafts for c in self.candidates))
        with self._timed("trajectories"):
            items = continue_prompts(
                target,
                tokenizing,
                self.prompts,
                need,
                self.sampling,
                samples=job.samples_per_prompt,
                store=TrajectoryStore(self.cache / "trajectories", path),
                batch_tokens=job.batch_tokens,
                progress=self.progress,
                room=self.room,
            )
        template = template_hash(tokenizing.template, job.enable_thinking)
        self.outcome.facts |= {
            "target_hash": path["target"],
            "template_hash": template,
            "stop_ids": sorted(need.stop_ids),
            "device": _device_name(target.device),
            "prompts": len(self.prompts),
            "items": len(items),
        }
        of = Measurement(job, path["target"], template, need, self.sampling, self.shapes)
        measuring = Measuring(
            of, self.results, self.progress, tokenizer, sampled=self.sampled, room=self.room
        )
        waiting = [c for c in self.candidates if not all(measuring.done(c, item) for item in items)]
        if waiting:
            with self._timed("features"):
                features = self._features(target, path, items, waiting)
            self._draft(measuring, target, items, features, waiting)
            self.outcome.facts["prefill_disagreements"] = features.disagreements

    def _features(
        self, target: Target, path: dict[str, Any], items: list[Item], waiting: list[Candidate]
    ) -> Features:
        job = self.job
        indices = [index for candidate in waiting for index in candidate.feature_indices]
        if job.features == "recompute":
            return Recomputed(target, self.sampling, self.room)
        if job.features == "ram":
            return capture_features(
                target,
                items,
                indices,
                self.sampling,
                batch_tokens=job.batch_tokens,
                progress=self.progress,
                room=self.room,
            )
        store = FeatureStore(
            self.cache / "features", path, hidden_size=target.hidden_size, dtype=target.dtype
        )
        on_disk = DiskFeatures(store, target, self.sampling, self.room)
        on_disk.fill(items, indices, batch_tokens=job.batch_tokens, progress=self.progress)
        ends = self._ends_file(path)
        if not isinstance(target, EndsTarget) and not ends.exists():
            reason = record_ends(target, ends)
            if reason:
                self.progress.say(f"later jobs load the whole target too: {reason}")
        return on_disk

    def _draft(
        self,
        measuring: Measuring,
        target: Target,
        items: list[Item],
        features: Features,
        waiting: list[Candidate],
    ) -> None:
        for candidate, checkpoint in ahead(waiting, lambda one: load_checkpoint(one.folder)):
            with self._timed(f"drafter {candidate.spec.label}"):
                try:
                    measuring.run(candidate, checkpoint(), target, items, features)
                except CheckpointError as error:
                    self._refuse(candidate, error)

    def _refuse(self, candidate: Candidate, error: CheckpointError) -> None:
        self.candidates.remove(candidate)
        self.outcome.refused.append(Refusal(candidate.spec.label, str(error)))

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        """Adds the wall time of a block to the account."""
        started = time.perf_counter()
        yield
        seconds = self.outcome.seconds
        seconds[name] = round(seconds.get(name, 0.0) + time.perf_counter() - started, 3)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
