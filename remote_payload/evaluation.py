"""One process's run of a job: the target, its continuations and features, then drafter after drafter.

What always holds: a drafter that is refused does not spoil the others; what the target alone determines is
computed once for all drafters; a restarted run computes only what has no row.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from remote_payload.ahead import ahead
from remote_payload.devices import open_device
from remote_payload.drafters.checkpoint import Checkpoint, load_checkpoint
from remote_payload.durable import canonical_json, read_json, sha256_hex
from remote_payload.ends import EndsTarget, read_record, record_ends
from remote_payload.engines.live import check_convention, make_verifier
from remote_payload.engines.live.rows import LiveMeasuring
from remote_payload.engines.live.verify import Verifier
from remote_payload.errors import CheckpointError
from remote_payload.feature_store import FeatureStore
from remote_payload.features import DiskFeatures, Features, Recomputed, capture_features
from remote_payload.figures import repeated_share
from remote_payload.fingerprint import model_hash, template_hash
from remote_payload.items import Item, continue_prompts
from remote_payload.measure import Measurement, Measuring
from remote_payload.memory import Room
from remote_payload.outcome import ENGINES, Outcome
from remote_payload.plan import Candidate, Refusal, check_fit, plan_drafters
from remote_payload.prompts import Prompt, Tokenizing
from remote_payload.protocol import Job
from remote_payload.results import Progress, ResultFolder
from remote_payload.sampling import Sampling
from remote_payload.shapes import Chain, parse_shapes
from remote_payload.share import Share
from remote_payload.target import Target
from remote_payload.trajectories import Need, TrajectoryStore

__all__ = ["Evaluation"]


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
        if "live" in ENGINES[self.job.engine]:
            self._drop_what_cannot_run_live()
        if self.candidates:
            with self._timed("load_target"):
                target, path = self._load_target()
            self._drop_misfits(target)
            if self.candidates:
                self._measure(target, path)
            self.outcome.notes += target.notes
        return self.outcome

    def _drop_what_cannot_run_live(self) -> None:
        for candidate in list(self.candidates):
            try:
                check_convention(candidate.convention)
            except CheckpointError as error:
                self._refuse(candidate, error)

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
        enough = self.job.features == "disk" and self.job.engine == "replay"
        record = read_record(self._ends_file(path)) if enough else None
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
        def embed(token: int) -> torch.Tensor:
            return target.embed(torch.tensor(token, device=target.device))

        norms: dict[str, float] = {}
        for candidate in list(self.candidates):
            try:
                self.outcome.notes += check_fit(
                    candidate,
                    num_layers=target.num_layers,
                    hidden_size=target.hidden_size,
                    vocab_size=target.vocab_size,
                    embed=embed,
                )
            except CheckpointError as error:
                self._refuse(candidate, error)
            else:
                norms[candidate.spec.label] = round(
                    float(embed(candidate.config.mask_token_id).float().norm()), 6
                )
        self.outcome.facts["mask_row_norms"] = norms

    def _measure(self, target: Target, path: dict[str, Any]) -> None:
        job = self.job
        verifier = self._verifier(target)
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
            "output_repetition": repeated_share(
                item.trajectory.tokens[: need.output_length(item.trajectory.tokens)] for item in items
            ),
        }
        self._note_long_prompts(target, items, need)
        of = Measurement(job, path["target"], template, need, self.sampling, self.shapes)
        if "replay" in ENGINES[job.engine]:
            self._replay(of, target, path, items, tokenizer)
        if verifier is not None:
            self._live(replace(of, engine="live"), target, verifier, items, tokenizer)

    def _note_long_prompts(self, target: Target, items: Sequence[Item], need: Need) -> None:
        """Tells which prompts go past what the target's config says it was made for."""
        # From the file: asking the target for its config would load one that has only its two ends.
        config = read_json(target.path / "config.json")
        limit = (config.get("text_config") or config).get("max_position_embeddings")
        if not isinstance(limit, int):
            return
        ends = {
            item.prompt.id: len(item.trajectory.prompt) + need.output_length(item.trajectory.tokens)
            for item in items
        }
        past = sorted((end, name) for name, end in ends.items() if end > limit)
        if past:
            self.outcome.notes.append(
                f"{len(past)} of {len(ends)} prompts reach past the target's max_position_embeddings of {limit} "
                f"(the longest, {past[-1][1]}, to {past[-1][0]} tokens): what it says there is not what it was made for"
            )

    def _replay(
        self, of: Measurement, target: Target, path: dict[str, Any], items: list[Item], tokenizer: Any
    ) -> None:
        measuring = Measuring(
            of, self.results, self.progress, tokenizer, sampled=self.sampled, room=self.room
        )
        waiting = [c for c in self.candidates if not all(measuring.done(c, item) for item in items)]
        if not waiting:
            return
        with self._timed("features"):
            features = self._features(target, path, items, waiting)
        for candidate, checkpoint in ahead(waiting, _checkpoint):
            with self._timed(f"drafter {candidate.spec.label}"):
                try:
                    measuring.run(candidate, checkpoint(), target, items, features)
                except CheckpointError as error:
                    self._refuse(candidate, error)
        self.outcome.facts["prefill_disagreements"] = features.disagreements
        self.outcome.notes += measuring.notes

    def _verifier(self, target: Target) -> Verifier | None:
        """Returns what runs the target live, if it is to run: one that cannot is refused before any work."""
        if "live" not in ENGINES[self.job.engine]:
            return None
        return make_verifier(target, trees=any(shape.name != Chain.name for shape in self.shapes))

    def _live(
        self, of: Measurement, target: Target, verifier: Verifier, items: list[Item], tokenizer: Any
    ) -> None:
        # Where both engines run, the samples are replay's.
        sampled = self.sampled if self.job.engine == "live" else frozenset()
        measuring = LiveMeasuring(
            of, self.results, self.progress, target, verifier, sampled=sampled, tokenizer=tokenizer
        )
        for candidate in list(self.candidates):
            with self._timed(f"live {candidate.spec.label}"):
                try:
                    measuring.run(candidate, items)
                except CheckpointError as error:
                    self._refuse(candidate, error)

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


def _checkpoint(candidate: Candidate) -> Checkpoint:
    return load_checkpoint(
        candidate.folder,
        forgive=candidate.spec.forgive,
        draft_config=candidate.draft_config,
        unchanged_since=candidate.stamps,
    )


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
