"""Replay against live decoding on a few prompts: the harness proves itself before it judges a drafter."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from remote_payload.diagnose.accounts import Check
from remote_payload.engines.live import LiveDecoder, check_convention, make_verifier
from remote_payload.engines.live.rows import first_divergence
from remote_payload.engines.parity import rounding_gap
from remote_payload.errors import CheckpointError, InputError
from remote_payload.sampling import Sampling
from remote_payload.shapes import Chain

if TYPE_CHECKING:
    from remote_payload.diagnose.material import Material
    from remote_payload.diagnose.sweep import Measured
    from remote_payload.drafters.dflash import DFlashDrafter
    from remote_payload.target import Target

__all__ = ["parity_check"]

PROMPTS, TOKENS = 3, 32


def parity_check(target: Target, drafter: DFlashDrafter, material: Material, measured: Measured) -> Check:
    """Decodes the shortest prompts live and compares their rounds with the replayed ones.

    Returns:
        ok, if all rounds are equal or part at a near tie; fault, if one parts for another reason; note, where
        this target or this convention cannot run live.
    """
    try:
        check_convention(drafter.convention)
        verifier = make_verifier(target, trees=False)
    except (CheckpointError, InputError) as error:
        return Check("parity", "note", f"replay was not compared with live decoding: {error}")
    decoder = LiveDecoder(verifier, drafter, target.head, target.vocab_size, Sampling())
    need = replace(material.need, max_new_tokens=min(TOKENS, material.need.max_new_tokens))
    chosen = sorted(range(len(material.items)), key=lambda place: material.items[place].length)[:PROMPTS]
    rounds = equal = ties = real = 0
    where = []
    walks = measured.walks(material.ends)
    for place in chosen:
        item = material.items[place]
        walk = decoder.decode(item.trajectory.start, Chain(), need)
        replayed = walks[place][: len(walk.anchors)]
        rounds += len(walk.accept_lengths)
        same = next(
            (
                n
                for n, pair in enumerate(zip(walk.accept_lengths, replayed, strict=False))
                if pair[0] != pair[1]
            ),
            len(walk.accept_lengths),
        )
        equal += same
        if same == len(walk.accept_lengths):
            continue
        divergence = first_divergence(walk, item, len(item.trajectory.tokens))
        gap = walk.draft_gaps[same]
        if divergence and divergence.position <= walk.anchors[same] + min(
            walk.accept_lengths[same], replayed[same]
        ):
            gap = divergence.gap
        near = gap < rounding_gap(target.dtype_name, greedy=True)
        ties, real = ties + near, real + (not near)
        where.append(f"{item.prompt.id}, round {same} (gap {gap:.1e})")
    said = f"{equal} of {rounds} rounds equal, live against replay, on {len(chosen)} prompts"
    values = {"rounds": rounds, "equal": equal, "near_ties": ties, "real": real}
    if real:
        return Check("parity", "fault", f"{said}; they part for a real reason at {'; '.join(where)}", values)
    return Check("parity", "ok", said + (f"; {ties} part at a near tie" if ties else ""), values)
