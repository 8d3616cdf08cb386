"""One drafter over all items: batches -> walks -> durable rows and samples."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from remote_payload.drafters.dflash import DFlashDrafter
from remote_payload.drafters.heads import coverage_note
from remote_payload.engines.replay import ReplayBatch, Walked
from remote_payload.items import Item, batches
from remote_payload.protocol import Job, Row, row_key
from remote_payload.samples import chosen_anchors, sample_records
from remote_payload.sampling import Sampling
from remote_payload.shapes import Chain, Shape

if TYPE_CHECKING:
    from remote_payload.drafters.checkpoint import Checkpoint
    from remote_payload.features import Features
    from remote_payload.memory import Room
    from remote_payload.plan import Candidate
    from remote_payload.results import Reporter, ResultFolder
    from remote_payload.target import Target
    from remote_payload.trajectories import Need

__all__ = ["Measurement", "Measuring"]


@dataclass(frozen=True)
class Measurement:
    """What all rows of a job share besides the job itself."""

    job: Job
    target_hash: str
    template_hash: str
    need: Need
    sampling: Sampling
    shapes: tuple[Shape, ...]
    engine: str = "replay"

    def identity(self, candidate: Candidate, item: Item, shape: str) -> dict[str, Any]:
        """Returns the key fields of a row (`protocol.Row.KEY_FIELDS`)."""
        job = self.job
        return {
            "drafter_hash": candidate.spec.hash,
            "target_hash": self.target_hash,
            "prompt_hash": item.prompt.hash,
            "turn": item.prompt.turn,
            "sample": item.trajectory.sample,
            "shape": shape,
            "engine": self.engine,
            "temperature": job.temperature,
            "top_p": job.top_p,
            "top_k": job.top_k,
            "seed": job.seed,
            "acceptance": job.acceptance,
            "block_size": candidate.block_size,
            "convention": candidate.recorded_convention,
            "dtype": job.target.dtype,
            "max_new_tokens": job.max_new_tokens,
            "stop_ids": sorted(self.need.stop_ids),
        }


class Measuring:
    """Runs drafters over items and keeps what they give.

    Args:
        measurement: what is measured.
        results: where rows and samples go; rows that are there are not run again.
        progress: where steps are reported.
        tokenizer: shows the text of samples; None shows ids only.
        sampled: ids of the prompts whose drafts are kept.
        room: what fits on the device.
    """

    def __init__(
        self,
        measurement: Measurement,
        results: ResultFolder,
        progress: Reporter,
        tokenizer: Any,
        *,
        sampled: frozenset[str],
        room: Room,
    ) -> None:
        self._of = measurement
        self._results, self._progress, self._tokenizer = results, progress, tokenizer
        self._sampled, self._room = sampled, room
        self._drafted = self._not_finite = 0
        self.notes: list[str] = []

    def missing(self, candidate: Candidate, item: Item) -> tuple[Shape, ...]:
        """Returns the shapes whose rows of a drafter on an item are not on disk."""
        of = self._of
        return tuple(
            s for s in of.shapes if not self._results.has(row_key(of.identity(candidate, item, s.name)))
        )

    def done(self, candidate: Candidate, item: Item) -> bool:
        """Whether every shape of a drafter on an item is on disk."""
        return not self.missing(candidate, item)

    def run(
        self,
        candidate: Candidate,
        checkpoint: Checkpoint,
        target: Target,
        items: Sequence[Item],
        features: Features,
    ) -> None:
        """Evaluates one drafter."""
        drafter = DFlashDrafter(
            checkpoint,
            candidate.convention,
            block_size=candidate.block_size,
            embed=target.embed,
            device=target.device,
            dtype=target.dtype,
        )
        self._note_own_parts(candidate, drafter, target, items)
        self._drafted = self._not_finite = done = 0
        self._progress.step("evaluate", 0, len(items), drafter=candidate.spec.label)
        for batch in batches(items, self._of.job.batch_tokens):
            # After a crash between two rows of an item, only what is missing of it is run.
            groups: dict[tuple[Shape, ...], list[Item]] = defaultdict(list)
            for item in batch:
                groups[self.missing(candidate, item)].append(item)
            for shapes, group in groups.items():
                if shapes:
                    self._group(candidate, drafter, target, group, features, shapes)
            done += len(batch)
            self._progress.step("evaluate", done, len(items), drafter=candidate.spec.label)
        if self._not_finite:
            self.notes.append(
                f"{candidate.spec.label}: {self._not_finite} of {self._drafted} drafted blocks have NaN or infinite "
                f"logits in {self._of.job.target.dtype}; its tau is not to be believed: use bfloat16 or float32"
            )

    def _note_own_parts(
        self, candidate: Candidate, drafter: DFlashDrafter, target: Target, items: Sequence[Item]
    ) -> None:
        """Notes what the drafter does not share with its target, and what that costs it."""
        if drafter.own_parts:
            self.notes.append(f"{candidate.spec.label}: uses its own {' and '.join(drafter.own_parts)}")
        texts = [item.trajectory.tokens for item in items]
        outputs = [tokens[: self._of.need.output_length(tokens)] for tokens in texts]
        ceiling = coverage_note(candidate.spec.label, drafter.head(target.head, target.vocab_size), outputs)
        if ceiling:
            self.notes.append(ceiling)

    def _group(
        self,
        candidate: Candidate,
        drafter: DFlashDrafter,
        target: Target,
        group: Sequence[Item],
        features: Features,
        shapes: tuple[Shape, ...],
    ) -> None:
        """Runs items that lack the same shapes; a batch that does not fit is halved."""

        def run(start: int, stop: int) -> None:
            started = time.perf_counter()
            some = group[start:stop]
            replay = ReplayBatch(
                drafter,
                [item.trajectory for item in some],
                features.of(some, drafter.feature_indices),
                target.head,
                target.vocab_size,
                self._room,
            )
            self._batch(candidate, replay, some, shapes, started)
            self._drafted += replay.drafted
            self._not_finite += replay.not_finite

        self._room.pieces("prompts drafted", len(group), len(group), run)

    def _batch(
        self,
        candidate: Candidate,
        replay: ReplayBatch,
        batch: Sequence[Item],
        wanted: tuple[Shape, ...],
        started: float,
    ) -> None:
        # Samples are on disk before rows are: where a row is, they are not made again. The chain's walk says
        # which rounds are the worst, so for samples it is walked even where it was not asked for.
        fresh = wanted == self._of.shapes and candidate.drafts > 0
        showing = [fresh and item.prompt.id in self._sampled for item in batch]
        with_chain = any(showing) and all(s.name != Chain.name for s in wanted)
        walks = replay.walk((*wanted, Chain()) if with_chain else wanted, self._of.need)
        share = round((time.perf_counter() - started) / (len(batch) * len(wanted)), 6)
        rows: list[Row] = []
        samples: list[dict[str, Any]] = []
        for place, (item, walked) in enumerate(zip(batch, walks, strict=True)):
            rows += [self._row(candidate, item, shape.name, walked[shape.name], share) for shape in wanted]
            if showing[place]:
                samples += self._samples(candidate, replay, place, item, walked[Chain.name])
        self._results.add(rows, samples)

    def _row(self, candidate: Candidate, item: Item, shape: str, walk: Walked, seconds: float) -> Row:
        trajectory, need = item.trajectory, self._of.need
        length = need.output_length(trajectory.tokens)
        ties = sum(gap < self._of.sampling.near for gap in trajectory.gaps[:length])
        return Row(
            **self._of.identity(candidate, item, shape),
            drafter=candidate.spec.label,
            prompt_id=item.prompt.id,
            dataset=item.prompt.dataset,
            template_hash=self._of.template_hash,
            prompt_tokens=len(trajectory.prompt),
            output_tokens=length,
            stop="eos" if trajectory.tokens[length - 1] in need.stop_ids else "length",
            accept_lengths=walk.accept_lengths,
            near_ties=ties + walk.near_ties,
            seconds=seconds,
            output_ids=list(trajectory.tokens[:length]) if self._of.job.save_outputs else None,
        )

    def _samples(
        self, candidate: Candidate, replay: ReplayBatch, place: int, item: Item, walk: Walked
    ) -> list[dict[str, Any]]:
        stride, trajectory = self._of.job.sample_stride, item.trajectory
        length = self._of.need.output_length(trajectory.tokens)
        chosen = chosen_anchors(walk, length, stride)
        drafts = replay.drafts([(place, anchor) for anchor, _ in chosen], 1)
        return sample_records(
            candidate,
            item,
            [(anchor, worst, draft) for (anchor, worst), draft in zip(chosen, drafts, strict=True)],
            engine=self._of.engine,
            stride=stride,
            tokenizer=self._tokenizer,
        )
