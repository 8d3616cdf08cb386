"""Drafters measured live: one sequence at a time -> durable rows, and what a row has no room for.

What always holds: a row of engine `live` has the fields of a replayed one; its details (`live.jsonl`: where the
committed tokens leave plain decoding, how near each round's proposal was) are on disk before it, so that a
resumed job can still explain every row.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from remote_payload.drafters.checkpoint import load_checkpoint
from remote_payload.drafters.dflash import DFlashDrafter
from remote_payload.durable import append_lines, iter_jsonl, trim_torn_line
from remote_payload.engines.live.loop import LiveDecoder, LiveWalk
from remote_payload.protocol import Row, row_key
from remote_payload.samples import chosen_anchors, sample_records
from remote_payload.shapes import Chain

if TYPE_CHECKING:
    from remote_payload.engines.live.verify import Verifier
    from remote_payload.items import Item
    from remote_payload.measure import Measurement
    from remote_payload.plan import Candidate
    from remote_payload.results import Reporter, ResultFolder
    from remote_payload.shapes import Shape
    from remote_payload.target import Target

__all__ = ["Details", "DetailsFile", "Divergence", "LiveMeasuring", "first_divergence"]


class Divergence(NamedTuple):
    """The first generated index (`position`) at which live decoding committed another token than plain decoding.

    `gap` is the smaller of the two decisions' gaps there (`sampling.Choice`); `in_output` is false past the
    end of the output, where the last round's surplus lies.
    """

    position: int
    live: int
    plain: int
    gap: float
    in_output: bool


class Details(NamedTuple):
    """Of one live row: its divergence, and per round the gap that decided its drafts (`LiveWalk`)."""

    divergence: Divergence | None
    draft_gaps: list[float]


def first_divergence(walk: LiveWalk, item: Item, output_tokens: int) -> Divergence | None:
    """Compares committed tokens with the plain continuation, as far as both go."""
    plain, gaps = item.trajectory.tokens, item.trajectory.gaps
    for index, (live, expected) in enumerate(zip(walk.tokens, plain, strict=False)):
        if live != expected:
            gap = min(walk.gaps[index], gaps[index])
            return Divergence(index, live, expected, gap, index < output_tokens)
    return None


class DetailsFile:
    """`live.jsonl` of a job's folder: row key -> details."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "live.jsonl"
        trim_torn_line(self._file)

    def add(self, key: str, details: Details) -> None:
        """Appends the details of a row."""
        divergence = details.divergence._asdict() if details.divergence else None
        # JSON has no infinity: a decision without an alternative is written as null.
        gaps = [round(gap, 7) if math.isfinite(gap) else None for gap in details.draft_gaps]
        append_lines(self._file, [{"key": key, "divergence": divergence, "draft_gaps": gaps}])

    def load(self) -> dict[str, Details]:
        """Reads all of them."""
        found = {}
        for record in iter_jsonl(self._file):
            divergence = Divergence(**record["divergence"]) if record["divergence"] else None
            gaps = [math.inf if gap is None else gap for gap in record["draft_gaps"]]
            found[record["key"]] = Details(divergence, gaps)
        return found


class LiveMeasuring:
    """Runs drafters over items by real decoding.

    Args:
        measurement: what is measured, of engine `live`.
        results: where rows go; rows that are there are not run again.
        progress: where steps are reported.
        target: the model.
        verifier: runs it (`make_verifier`).
        sampled: ids of the prompts whose drafts are kept as samples; none where replay keeps them.
        tokenizer: shows the text of samples; None shows ids only.
    """

    def __init__(
        self,
        measurement: Measurement,
        results: ResultFolder,
        progress: Reporter,
        target: Target,
        verifier: Verifier,
        *,
        sampled: frozenset[str] = frozenset(),
        tokenizer: Any = None,
    ) -> None:
        self._sampled, self._tokenizer = sampled, tokenizer
        self._of, self._results, self._progress = measurement, results, progress
        self._target, self._verifier = target, verifier
        self._details = DetailsFile(results.folder)

    def run(self, candidate: Candidate, items: Sequence[Item]) -> None:
        """Evaluates one drafter on everything that has no row yet.

        Raises:
            CheckpointError: its tensors or its convention are refused; nothing of it was written.
        """
        missing = [(item, shapes) for item in items if (shapes := self._missing(candidate, item))]
        if not missing:
            return
        decoder = self._decoder(candidate)
        label = candidate.spec.label
        self._progress.step("live", 0, len(missing), drafter=label)
        for done, (item, shapes) in enumerate(missing, 1):
            self._item(candidate, decoder, item, shapes)
            self._progress.step("live", done, len(missing), drafter=label)

    def _missing(self, candidate: Candidate, item: Item) -> list[Shape]:
        of = self._of
        return [s for s in of.shapes if not self._results.has(row_key(of.identity(candidate, item, s.name)))]

    def _decoder(self, candidate: Candidate) -> LiveDecoder:
        target = self._target
        drafter = DFlashDrafter(
            load_checkpoint(
                candidate.folder,
                forgive=candidate.spec.forgive,
                draft_config=candidate.draft_config,
                unchanged_since=candidate.stamps,
            ),
            candidate.convention,
            block_size=candidate.block_size,
            embed=target.embed,
            device=target.device,
            dtype=target.dtype,
        )
        return LiveDecoder(self._verifier, drafter, target.head, target.vocab_size, self._of.sampling)

    def _item(self, candidate: Candidate, decoder: LiveDecoder, item: Item, shapes: Sequence[Shape]) -> None:
        """Decodes one item under the shapes that it has no row of; makes its samples if it has no row at all."""
        # Samples are on disk before rows are: where a row is, they are not made again.
        fresh = len(shapes) == len(self._of.shapes) and candidate.drafts > 0
        sampling = fresh and item.prompt.id in self._sampled
        rows: list[Row] = []
        chain: LiveWalk | None = None
        for shape in shapes:
            kept = sampling and shape.name == Chain.name
            row, walk = self._decode(candidate, decoder, item, shape, keep_features=kept)
            rows.append(row)
            chain = walk if kept else chain
        samples = self._samples(candidate, decoder, item, chain) if sampling else []
        self._results.add(rows, samples)

    def _decode(
        self, candidate: Candidate, decoder: LiveDecoder, item: Item, shape: Shape, *, keep_features: bool
    ) -> tuple[Row, LiveWalk]:
        started = time.perf_counter()
        walk = decoder.decode(item.trajectory.start, shape, self._of.need, keep_features=keep_features)
        row = self._row(candidate, item, shape.name, walk, time.perf_counter() - started)
        self._details.add(row.key, Details(first_divergence(walk, item, row.output_tokens), walk.draft_gaps))
        return row, walk

    def _samples(
        self, candidate: Candidate, decoder: LiveDecoder, item: Item, chain: LiveWalk | None
    ) -> list[dict[str, Any]]:
        """Drafts at the fixed anchors and the worst ones, as far as the committed text is the target's own.

        The chain's walk says which rounds are the worst, so it is decoded even where it was not asked for.
        """
        need, trajectory = self._of.need, item.trajectory
        walk = chain or decoder.decode(trajectory.start, Chain(), need, keep_features=True)
        length = need.output_length(trajectory.tokens)
        left = first_divergence(walk, item, length)
        end = length if left is None else min(length, left.position)
        chosen = chosen_anchors(walk, end, self._of.job.sample_stride)
        drafts = decoder.redraft(walk, len(trajectory.prompt), [anchor for anchor, _ in chosen])
        return sample_records(
            candidate,
            item,
            [(anchor, worst, drafts[anchor]) for anchor, worst in chosen],
            engine=self._of.engine,
            stride=self._of.job.sample_stride,
            tokenizer=self._tokenizer,
        )

    def _row(self, candidate: Candidate, item: Item, shape: str, walk: LiveWalk, seconds: float) -> Row:
        need = self._of.need
        length = need.output_length(walk.tokens)
        ties = sum(gap < self._of.sampling.near for gap in walk.gaps[:length])
        facts: dict[str, Any] = self._of.identity(candidate, item, shape)
        return Row(
            **facts,
            drafter=candidate.spec.label,
            prompt_id=item.prompt.id,
            dataset=item.prompt.dataset,
            template_hash=self._of.template_hash,
            prompt_tokens=len(item.trajectory.prompt),
            output_tokens=length,
            stop="eos" if walk.tokens[length - 1] in need.stop_ids else "length",
            accept_lengths=walk.accept_lengths,
            near_ties=ties + walk.near_ties,
            seconds=round(seconds, 6),
            output_ids=walk.tokens[:length] if self._of.job.save_outputs else None,
        )
