"""Trains a small target and a DFlash drafter for it on the source text of Python's standard library.

    python examples/tiny/train.py --preset micro --out DIR [--seed S] [--threads N]
        [--target-steps N] [--drafter-steps N] [--save-at 40,160]
        [--target DIR] [--convention KEY=VALUE ...]

Writes DIR/target and DIR/drafter (and DIR/drafter-step-N for every N of --save-at; 0 is the untrained one).
`micro` also writes DIR/expected.json and DIR/expected.safetensors: what a sound harness finds on the pair.
The same seed, number of threads, torch and Python give the same files. On one core of a server `micro` takes
about 10 minutes and `tiny` about half an hour.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pairs.convention import PUBLISHED, Convention
from pairs.expected import write_expected
from pairs.files import load_target, round_to_half, save_drafter, save_target
from pairs.presets import PRESETS, Preset
from pairs.text import training_text
from pairs.training import new_drafter, train_drafter, train_target

if TYPE_CHECKING:
    from pairs.dflash import Drafter

HERE = Path(__file__).resolve().parent


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", choices=sorted(PRESETS), required=True)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--target", type=Path, metavar="DIR", help="train the drafter for this target instead"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--target-steps", type=int, metavar="N")
    parser.add_argument("--drafter-steps", type=int, metavar="N")
    parser.add_argument("--save-at", default="", metavar="N,N", help="drafter steps to keep as well")
    parser.add_argument(
        "--convention",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="train under another convention",
    )
    return parser.parse_args()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _keep(out: Path, step: int, drafter: Drafter) -> None:
    save_drafter(drafter, out / f"drafter-step-{step}")
    _say(f"kept the drafter after {step} steps")


def _target(args: argparse.Namespace, preset: Preset, text: torch.Tensor) -> Any:
    if args.target:
        return load_target(args.target)
    steps = preset.target_steps if args.target_steps is None else args.target_steps
    target = train_target(preset, text, steps=steps, seed=args.seed, report=_say)
    if preset.self_check:
        round_to_half(target)
    tokenizer = None if preset.self_check else HERE / "target-tiny"
    save_target(target, args.out / "target", half=preset.self_check, tokenizer_from=tokenizer)
    return target


def main() -> None:
    """Trains the pair and writes it."""
    args, started = _arguments(), time.monotonic()
    preset, convention = PRESETS[args.preset], Convention.parse(args.convention)
    torch.set_num_threads(args.threads)
    text = training_text()
    target = _target(args, preset, text)
    _say(f"target ready after {time.monotonic() - started:.0f} s")
    keep = {int(step): partial(_keep, args.out, int(step)) for step in args.save_at.split(",") if step}
    if 0 in keep:
        keep.pop(0)(new_drafter(preset.target, preset.drafter, args.seed))
    steps = preset.drafter_steps if args.drafter_steps is None else args.drafter_steps
    drafter = train_drafter(
        target, preset, text, steps=steps, seed=args.seed, convention=convention, save_at=keep, report=_say
    )
    if preset.self_check:
        round_to_half(drafter)
    save_drafter(drafter, args.out / "drafter", half=preset.self_check)
    _say(f"drafter ready after {time.monotonic() - started:.0f} s")
    if preset.self_check and not args.target and convention == PUBLISHED:
        write_expected(args.out)
    print(f"{args.out}: {args.preset} pair, seed {args.seed}, {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    try:
        main()
    except (ValueError, RuntimeError) as error:
        sys.exit(f"train.py: {error}")
