"""The job loop: drafters x prompts x shapes, resumable.

What always holds: a drafter that is refused does not spoil the others; what the target alone determines is
computed once for all drafters; rows are on disk batch by batch, and a restarted job runs only what has no
row; the summary is written last.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import transformers

from remote_payload.engines.live import check_convention, check_shape, make_verifier
from remote_payload.engines.live.rows import LiveMeasuring
from remote_payload.engines.live.verify import Verifier
from remote_payload.engines.parity import engine_reports
from remote_payload.errors import CheckpointError, InputError
from remote_payload.fingerprint import model_hash, template_hash
from remote_payload.items import Item, capture_features, continue_prompts
from remote_payload.measure import Measurement, Measuring
from remote_payload.plan import Candidate, Refusal, check_fit, plan_drafters
from remote_payload.prompts import Tokenizing, read_prompts
from remote_payload.protocol import SUMMARY_SCHEMA, Job, write_json
from remote_payload.results import Progress, ResultFolder
from remote_payload.sampling import Sampling
from remote_payload.shapes import Chain, parse_shapes
from remote_payload.summary import bias_notes, summarize
from remote_payload.target import Target
from remote_payload.trajectories import Need, TrajectoryStore

__all__ = ["EXIT_REJECTED", "run_job"]

EXIT_REJECTED = InputError.exit_code

_ENGINES = {"replay": ("replay",), "live": ("live",), "both": ("replay", "live")}
"""A job's `engine` -> the engines that run; the first one's rows make the summary's figures."""


def run_job(job: Job, folder: Path, cache: Path) -> int:
    """Runs a job in its folder.

    Args:
        job: what to run; `job.prompts` is relative to the folder.
        folder: where rows.jsonl and the other results go.
        cache: the host's cache folder (trajectories, file hashes).

    Returns:
        0 if every drafter was evaluated, 10 if any was refused (the others' rows are there all the same).

    Raises:
        InputError: the prompts, the target or the settings cannot be used.
    """
    _check_supported(job)
    return _Evaluation(job, folder, cache).run()


def _check_supported(job: Job) -> None:
    """Refuses, by name, settings that this payload does not have; none is ignored."""
    fixed = {
        "acceptance": (job.acceptance, "exact"),
        "features": (job.features, "ram"),
    }
    for name, (asked, available) in fixed.items():
        if asked != available:
            raise InputError(f"{name} {asked!r} is not in this payload; {available!r} is")
    if job.engine not in _ENGINES:
        raise InputError(f"engine {job.engine!r} is not in this payload; {', '.join(_ENGINES)} are")
    if "live" in _ENGINES[job.engine]:
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


class _Evaluation:
    """One run of a job: what it has learnt so far."""

    def __init__(self, job: Job, folder: Path, cache: Path) -> None:
        self.job, self.folder, self.cache = job, folder, cache
        self.shapes = tuple(parse_shapes(job.shapes))
        self.sampling = Sampling(job.temperature, job.top_p, job.top_k, job.seed)
        self.results, self.progress = ResultFolder(folder), Progress(folder)
        self.candidates: list[Candidate] = []
        self.refused: list[Refusal] = []
        self.notes: list[str] = []
        self.facts: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}

    def run(self) -> int:
        if self.results.repaired:
            self.progress.say(f"cut {self.results.repaired} bytes of a torn last line; its batch runs again")
        if self.job.threads:
            torch.set_num_threads(self.job.threads)
        prompts = read_prompts(self.folder / self.job.prompts)
        self.candidates, self.refused = plan_drafters(self.job)
        if "live" in _ENGINES[self.job.engine]:
            self._drop_what_cannot_run_live()
        if self.candidates:
            target, target_hash = self._load_target()
            self._drop_misfits(target)
            if self.candidates:
                self._measure(target, target_hash, prompts)
            self.notes += target.notes
        for refusal in self.refused:
            self.progress.say(refusal.reason, phase="rejected", drafter=refusal.label)
        self._write_summary()
        return EXIT_REJECTED if self.refused else 0

    def _load_target(self) -> tuple[Target, str]:
        spec = self.job.target
        path = Path(spec.path).expanduser()
        self.progress.step("load_target", 0, 1, message=str(path))
        with self._timed("load_target"):
            identity = model_hash(path, self.cache / "hashes.json")
            target = Target(
                path,
                dtype=spec.dtype,
                device=_device(self.job.device),
                attn=spec.attn,
                trust_remote_code=spec.trust_remote_code,
            )
        self.progress.step("load_target", 1, 1)
        return target, identity

    def _drop_what_cannot_run_live(self) -> None:
        for candidate in list(self.candidates):
            try:
                check_convention(candidate.convention)
            except CheckpointError as error:
                self._refuse(candidate, error)

    def _drop_misfits(self, target: Target) -> None:
        for candidate in list(self.candidates):
            try:
                self.notes += check_fit(
                    candidate,
                    num_layers=target.num_layers,
                    hidden_size=target.hidden_size,
                    vocab_size=target.vocab_size,
                    embed=lambda token: target.embed(torch.tensor(token, device=target.device)),
                )
            except CheckpointError as error:
                self._refuse(candidate, error)

    def _measure(self, target: Target, target_hash: str, prompts: list[Any]) -> None:
        job = self.job
        verifier = self._verifier(target)
        tokenizer = target.tokenizer()
        tokenizing = Tokenizing(tokenizer, target.vocab_size, enable_thinking=job.enable_thinking)
        stops = target.stop_ids() if job.stop_ids is None else job.stop_ids
        need = Need(job.max_new_tokens, frozenset(stops), max(c.drafts for c in self.candidates))
        store = TrajectoryStore(self.cache / "trajectories", self._path_identity(target, target_hash))
        with self._timed("trajectories"):
            items = continue_prompts(
                target,
                tokenizing,
                prompts,
                need,
                self.sampling,
                samples=job.samples_per_prompt,
                store=store,
                batch_tokens=job.batch_tokens,
                progress=self.progress,
            )
        template = template_hash(tokenizing.template, job.enable_thinking)
        self.facts |= {
            "target_hash": target_hash,
            "template_hash": template,
            "stop_ids": sorted(need.stop_ids),
            "device": _device_name(target.device),
            "prompts": len(prompts),
            "items": len(items),
        }
        of = Measurement(job, target_hash, template, need, self.sampling, self.shapes)
        if "replay" in _ENGINES[job.engine]:
            self._replay(of, target, items, tokenizer)
        if verifier is not None:
            self._live(replace(of, engine="live"), target, verifier, items)

    def _replay(self, of: Measurement, target: Target, items: list[Item], tokenizer: Any) -> None:
        job = self.job
        measuring = Measuring(of, self.results, self.progress, tokenizer)
        waiting = [c for c in self.candidates if not all(measuring.done(c, item) for item in items)]
        if not waiting:
            return
        with self._timed("features"):
            indices = [index for candidate in waiting for index in candidate.feature_indices]
            captured = capture_features(
                target, items, indices, self.sampling, batch_tokens=job.batch_tokens, progress=self.progress
            )
        self.facts["prefill_disagreements"] = captured.disagreements
        if captured.disagreements:
            self.notes.append(
                f"{captured.disagreements} tokens of the recorded continuations are not what one whole "
                f"forward pass in {job.target.dtype} chooses (near ties); the recorded path counts"
            )
        for candidate in waiting:
            with self._timed(f"drafter {candidate.spec.label}"):
                try:
                    measuring.run(candidate, target, items, captured)
                except CheckpointError as error:
                    self._refuse(candidate, error)
        self.notes += measuring.notes

    def _verifier(self, target: Target) -> Verifier | None:
        """Returns what runs the target live, if it is to run: one that cannot is refused before any work."""
        if "live" not in _ENGINES[self.job.engine]:
            return None
        return make_verifier(target, trees=any(shape.name != Chain.name for shape in self.shapes))

    def _live(self, of: Measurement, target: Target, verifier: Verifier, items: list[Item]) -> None:
        measuring = LiveMeasuring(of, self.results, self.progress, target, verifier)
        for candidate in list(self.candidates):
            with self._timed(f"live {candidate.spec.label}"):
                try:
                    measuring.run(candidate, items)
                except CheckpointError as error:
                    self._refuse(candidate, error)

    def _path_identity(self, target: Target, target_hash: str) -> dict[str, Any]:
        """Returns what the recorded path depends on besides the prompt."""
        return {
            "target": target_hash,
            "dtype": self.job.target.dtype,
            "attn": self.job.target.attn,
            "device": target.device.type,
            **self.sampling.identity(),
        }

    def _refuse(self, candidate: Candidate, error: CheckpointError) -> None:
        self.candidates.remove(candidate)
        self.refused.append(Refusal(candidate.spec.label, str(error)))

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        """Adds the wall time of a block to the job's account."""
        started = time.perf_counter()
        yield
        self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - started, 3)

    def _write_summary(self) -> None:
        job = self.job
        rows = self.results.rows()
        by_engine = {
            engine: summarize((row for row in rows if row.engine == engine), tail=job.tail)
            for engine in _ENGINES[job.engine]
        }
        drafters = by_engine[_ENGINES[job.engine][0]]
        reports = engine_reports(rows, self.folder) if "live" in by_engine else {}
        if len(by_engine) > 1:
            reports["live"] = by_engine["live"]
        record = {
            "schema": SUMMARY_SCHEMA,
            "job_id": job.job_id,
            "payload_hash": job.payload_hash,
            "suite": job.suite,
            "prompts_hash": job.prompts_hash,
            "target": asdict(job.target),
            "engine": job.engine,
            "max_new_tokens": job.max_new_tokens,
            "tail": job.tail,
            "drafters": drafters,
            "rejected": [asdict(refusal) for refusal in self.refused],
            "notes": [*self.notes, *bias_notes(drafters)],
            "seconds": self.seconds,
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
            "threads": torch.get_num_threads(),
            "host": platform.node(),
        }
        write_json(self.folder / "summary.json", record | self.facts | reports)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {name!r} cannot be used here: {error}") from error
    return device


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
