"""Which drafters of a job can run: configs read, conventions settled, misfits refused one by one.

What always holds: a refused drafter never spoils the others; nothing heavy is loaded here, so a wrong
checkpoint is known before the target is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_payload.drafters.checkpoint import (
    EMBEDDING,
    Stamps,
    check_headers,
    checkpoint_files,
    drafter_hash,
    effective_rule,
    file_stamps,
    read_declared,
)
from remote_payload.drafters.config import DFlashConfig, read_config
from remote_payload.drafters.convention import Convention
from remote_payload.errors import CheckpointError

if TYPE_CHECKING:
    import torch

    from remote_payload.protocol import DrafterSpec, Job

__all__ = ["Candidate", "Refusal", "check_fit", "plan_drafter", "plan_drafters"]


@dataclass(frozen=True)
class Refusal:
    """A drafter that does not run, and why."""

    label: str
    reason: str


@dataclass(frozen=True)
class Candidate:
    """A drafter that can run: where it is, its config, and how it is to be run."""

    spec: DrafterSpec
    folder: Path
    config: DFlashConfig
    convention: Convention
    block_size: int
    notes: tuple[str, ...] = ()
    draft_config: Path | None = None
    stamps: Stamps | None = None
    own_embedding: bool = False

    @property
    def feature_indices(self) -> list[int]:
        """Entries of the target's `hidden_states` that it reads."""
        return [layer + 1 + self.convention.hidden_index_offset for layer in self.config.target_layer_ids]

    @property
    def drafts(self) -> int:
        """Tokens drafted per round."""
        return max(self.block_size - 1 + self.convention.label_offset, 0)

    @property
    def recorded_convention(self) -> dict[str, Any]:
        """The convention as rows record it: what differs from the published one."""
        return self.convention.non_default()


def plan_drafters(job: Job) -> tuple[list[Candidate], list[Refusal]]:
    """Settles every drafter of a job from its files alone (config, declared convention, tensor headers)."""
    candidates: list[Candidate] = []
    refused: list[Refusal] = []
    for spec in job.drafters:
        try:
            candidates.append(plan_drafter(spec, job))
        except CheckpointError as error:
            refused.append(Refusal(spec.label, str(error)))
    return candidates, refused


def plan_drafter(spec: DrafterSpec, job: Job) -> Candidate:
    """Settles one drafter of a job; raises CheckpointError if it cannot run."""
    if spec.family != "dflash":
        raise CheckpointError(
            f"{spec.path}: drafters of family {spec.family!r} are not in this payload; dflash is"
        )
    # Links are followed once, here: a trainer may point `latest` elsewhere while the job runs.
    folder = Path(spec.path).expanduser().resolve()
    draft_config = Path(spec.draft_config).expanduser() if spec.draft_config else None
    config = read_config(checkpoint_files(folder, draft_config)[0])
    names = check_headers(folder, config, forgive=spec.forgive, draft_config=draft_config)
    stamps = file_stamps(folder, draft_config)
    found = drafter_hash(folder, draft_config)
    if spec.hash and found != spec.hash:
        raise CheckpointError(
            f"{folder}: its content hash is {found[:12]}, the job asks for {spec.hash[:12]}"
        )
    convention = Convention.from_mapping(
        {**read_declared(folder), **spec.convention}, f"{folder}: convention"
    )
    block = config.block_size if job.block_size is None else job.block_size
    if block < 1:
        raise CheckpointError(f"{folder}: block size {block} is not possible, it has to be 1 or more")
    notes = []
    if block > config.block_size:
        notes.append(f"{spec.label}: block size {block} is larger than the trained {config.block_size}")
    rule, assumed = effective_rule(config, convention)
    if assumed:
        notes.append(f"{spec.label}: its sliding layers' window rule is not stated; assumed {rule}")
    settled = replace(spec, hash=found, convention=convention.non_default(), assumed=assumed)
    own = EMBEDDING in names
    return Candidate(settled, folder, config, convention, block, tuple(notes), draft_config, stamps, own)


def check_fit(
    candidate: Candidate,
    *,
    num_layers: int,
    hidden_size: int,
    vocab_size: int,
    embed: Callable[[int], torch.Tensor],
) -> list[str]:
    """Checks a drafter against its target.

    Args:
        candidate: the drafter.
        num_layers, hidden_size, vocab_size: of the target.
        embed: token id -> the target's embedding of it, [H].

    Returns:
        Notes that a reader of its numbers should see.

    Raises:
        CheckpointError: it cannot belong to this target; the message names both figures.
    """
    config, at = candidate.config, candidate.folder / "config.json"
    if config.hidden_size != hidden_size:
        raise CheckpointError(f"{at}: hidden_size is {config.hidden_size}, the target's is {hidden_size}")
    if config.num_target_layers is not None and config.num_target_layers != num_layers:
        raise CheckpointError(
            f"{at}: num_target_layers is {config.num_target_layers}, the target has {num_layers}"
        )
    outside = [i for i in candidate.feature_indices if not 0 <= i <= num_layers]
    if outside or max(config.target_layer_ids) >= num_layers:
        raise CheckpointError(
            f"{at}: target_layer_ids {list(config.target_layer_ids)} reach outside the target's {num_layers} layers"
        )
    if config.mask_token_id >= vocab_size:
        raise CheckpointError(
            f"{at}: mask_token_id {config.mask_token_id} is outside the target's embedding of {vocab_size} rows"
        )
    if candidate.own_embedding and config.vocab_size < vocab_size:
        raise CheckpointError(
            f"{at}: its own embedding has {config.vocab_size} rows, the target's has {vocab_size}"
        )
    # The row of an embedding of its own is judged when that is loaded.
    norm = 1.0 if candidate.own_embedding else float(embed(config.mask_token_id).float().norm())
    if norm < 1e-6:
        raise CheckpointError(
            f"{at}: the target's embedding of mask_token_id {config.mask_token_id} is zero (norm {norm:.1e}); every "
            "mask slot would be blank. Use the row that training used"
        )
    notes = list(candidate.notes)
    if num_layers in candidate.feature_indices:
        notes.append(
            f"{candidate.spec.label}: it reads the target's last layer, which is the state after the final norm"
        )
    return notes
