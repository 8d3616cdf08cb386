"""Trains the drafters of this folder: each under one wrong convention (or none), for the shipped tiny target.

    python -m tests.drafters.train [CAUSE ...] --seed S [--out DIR] [--steps N] [--threads N]

A drafter's config.json always states the published convention: what went wrong in training is nowhere on disk.
One cause and seed takes about three minutes on one core; the target's continuations are made first (a minute).
The same seed, number of threads, torch and Python give the same files.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file

from examples.tiny.pairs.convention import Convention
from examples.tiny.pairs.dflash import Drafter, Pair
from examples.tiny.pairs.files import load_target, save_drafter
from examples.tiny.pairs.presets import PRESETS, Preset
from examples.tiny.pairs.text import training_text, windows
from examples.tiny.pairs.training import continuations, drafter_loss, make_optimizer, new_drafter, take_step

HERE = Path(__file__).resolve().parent
TARGET = HERE.parents[1] / "examples" / "tiny" / "target-tiny"

CAUSES: dict[str, Convention] = {
    "sound": Convention(),
    "anchor_in_context": Convention(context="through_anchor"),
    "positions_plus1": Convention(block_position_offset=1),
    "layer_minus1": Convention(hidden_index_offset=-1),
    "label_shift": Convention(label_offset=1),
    "causal_block": Convention(in_block="causal"),
    "no_hidden_norm": Convention(hidden_norm=False),
    "rope_theta": Convention(rope_theta=1e4),
    "cross_block": Convention(blocks_see_each_other=True),
}
"""What was wrong in training, by the name that `diagnose` has for it; `sound` is the published convention."""

STEPS = (500, 1500)
"""A training's checkpoints: early and final."""
SEQUENCES, ANCHORS, REAL_TEXT = 1536, 16, 0.2


def preset() -> Preset:
    """Returns the tiny preset with a small drafter: 0.3 MB in bfloat16."""
    tiny = PRESETS["tiny"]
    return replace(tiny, drafter=replace(tiny.drafter, mlp=48), drafter_rate=4e-3, batch=8)


class Pool(NamedTuple):
    """Sequences to train on, [N, T]: the target's own continuations, and a share of real text."""

    ids: torch.Tensor

    @torch.no_grad()
    def features(self, pair: Pair) -> torch.Tensor:
        """Returns the features that a pair's drafter reads, [N, T, ids * hidden]."""
        return torch.cat([pair.features(part) for part in self.ids.split(64)])


def make_pool(seed: int, sequences: int = SEQUENCES, saved: Path | None = None) -> Pool:
    """Returns the sequences of a seed, those of a file if it is there."""
    if saved and saved.is_file():
        return Pool(load_file(saved)["ids"])
    chosen, text = preset(), training_text()
    real = int(sequences * REAL_TEXT)
    said = continuations(load_target(TARGET), chosen, text, count=sequences - real, seed=seed)
    random = torch.Generator().manual_seed(seed + 7)
    ids = torch.cat([said, windows(text, real, chosen.length, random)])
    if saved:
        save_file({"ids": ids}, saved)
    return Pool(ids)


def train(pool: Pool, convention: Convention, *, seed: int, steps: int, keep: dict[int, Path]) -> Drafter:
    """Trains one drafter.

    Args:
        pool: what to train on.
        convention: the training's.
        seed: of the initial weights and of the order of batches and anchors.
        steps: how many; the schedule depends on it.
        keep: where to save the drafter after so many steps.
    """
    chosen = preset()
    drafter = new_drafter(chosen.target, chosen.drafter, seed).train()
    pair = Pair(load_target(TARGET).requires_grad_(requires_grad=False), drafter, convention)
    features = pool.features(pair)
    random = torch.Generator().manual_seed(seed + 3)
    optimizer, schedule = make_optimizer(drafter, chosen.drafter_rate, steps)
    last = chosen.length - chosen.drafter.block_size - convention.label_offset
    for step in range(1, steps + 1):
        rows = torch.randint(0, len(pool.ids), (chosen.batch,), generator=random)
        anchors = torch.rand(len(rows), last, generator=random).topk(ANCHORS, dim=1).indices + 1
        loss = drafter_loss(pair, pool.ids[rows], anchors, features[rows])
        take_step(loss, drafter, optimizer, schedule)
        if step in keep:
            save(drafter, keep[step])
        if step % 200 == 0:
            print(f"step {step}: loss {loss.item():.3f}", file=sys.stderr, flush=True)
    return drafter.eval()


def save(drafter: Drafter, folder: Path) -> None:
    """Writes a drafter as the published layout has it, its tensors rounded to bfloat16."""
    save_drafter(drafter, folder)
    tensors = {name: value.detach().bfloat16().contiguous() for name, value in drafter.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


def main() -> None:
    """Trains what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("causes", nargs="*", default=list(CAUSES), metavar="CAUSE")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--steps", type=int, default=STEPS[-1])
    parser.add_argument("--keep", default=",".join(map(str, STEPS)), metavar="N,N", help="steps to keep")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--pool", type=Path, metavar="FILE", help="keep the sequences here, and use them again"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    pool = make_pool(args.seed, saved=args.pool)
    for cause in args.causes:
        started = time.monotonic()
        keep = {int(n): args.out / f"{cause}-seed{args.seed}-step{n}" for n in args.keep.split(",")}
        train(pool, CAUSES[cause], seed=args.seed, steps=args.steps, keep=keep)
        print(f"{cause}, seed {args.seed}: {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
