"""What `diagnose` says of every drafter of this folder: the confusion table.

    python -m tests.drafters.confusion [--seed S ...] [--folder DIR] [--threads N]

The rules were frozen on seed 1; seeds 2 and 3 are what docs/diagnose.md reports. Those of other seeds are made by
`python -m tests.drafters.train --seed S --out DIR`. A drafter takes about half a minute.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from remote_payload.diagnose.run import diagnose
from remote_payload.durable import file_sha256
from remote_payload.protocol import DrafterSpec, Job, TargetSpec

HERE = Path(__file__).resolve().parent
TINY = HERE.parents[1] / "examples" / "tiny"
PROMPTS = HERE / "prompts.jsonl"
SHIPPED = ("drafter-b8-untrained", "drafter-b8-early", "drafter-b8-mid", "drafter-b8-final")


class Trained(NamedTuple):
    """A drafter of the table: where it is, what was wrong in its training, its seed and step."""

    folder: Path
    cause: str
    seed: int
    step: int


def trained(*seeds: int, where: Path = HERE) -> list[Trained]:
    """Returns the drafters of these seeds (all of them without one) in a folder, the sound ones first."""
    found = []
    for folder in sorted(where.iterdir()):
        named = re.fullmatch(r"(\w+)-seed(\d+)-step(\d+)", folder.name)
        if named and (not seeds or int(named[2]) in seeds):
            found.append(Trained(folder, named[1], int(named[2]), int(named[3])))
    return sorted(found, key=lambda one: (one.cause != "sound", one.cause, one.seed, one.step))


def diagnosed(
    folder: Path, cache: Path, *, prompts: int = 72, threads: int = 1, **settings: Any
) -> dict[str, Any]:
    """Returns the document of one drafter.

    Args:
        folder: the drafter.
        cache: where the target's continuations are kept.
        prompts: how many of this folder's.
        threads: of torch.
        settings: fields of the job, or `convention` of the drafter.
    """
    convention = settings.pop("convention", {})
    dtype = settings.pop("dtype", "float32")
    with tempfile.TemporaryDirectory() as temporary:
        job = Job(
            job_id="table",
            payload_hash="",
            kind="diagnose",
            target=TargetSpec("target-tiny", str(TINY / "target-tiny"), dtype, "sdpa", False),
            drafters=[DrafterSpec(folder.name, str(folder), "", "dflash", convention)],
            prompts="prompts.jsonl",
            prompts_hash=file_sha256(PROMPTS),
            threads=threads,
            **{"max_new_tokens": 48, **settings},
        )
        lines = PROMPTS.read_text().splitlines(keepends=True)[:prompts]
        (Path(temporary) / "prompts.jsonl").write_text("".join(lines))
        return diagnose(job, Path(temporary), cache)


def row(cause: str, seed: int | str, step: int | str, found: dict[str, Any]) -> str:
    """Returns a line of the table."""
    named = found["cause"] or "-"
    best = next((one for one in found["sweep"] if one["variant"] == found["cause"]), None)
    change = f"{best['tau']:.2f}, {100 * best['gain']:.0f} %" if best else "-"
    tau = found["declared"]["tau"]
    return f"| {cause} | {seed} | {step} | {tau:.2f} | {found['verdict']} | {named} | {change} | {found['confidence']:.2f} |"


HEAD = (
    "| trained with | seed | step | τ | verdict | cause | τ and likelihood gained under it | confidence |\n"
    + "|---" * 8
    + "|"
)


def main() -> None:
    """Prints the table, and at the end how many were right."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, action="append", default=[])
    parser.add_argument("--folder", type=Path, default=HERE)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    print(HEAD)
    right = wrong = 0
    started = time.process_time()
    with tempfile.TemporaryDirectory() as cache:
        for one in trained(*args.seed, where=args.folder):
            found = diagnosed(one.folder, Path(cache), threads=args.threads)
            fine = (
                found["verdict"] in {"ok", "undertrained"}
                if one.cause == "sound"
                else found["cause"] == one.cause
            )
            right, wrong = right + fine, wrong + (not fine)
            print(row(one.cause, one.seed, one.step, found), flush=True)
        for name in SHIPPED:
            found = diagnosed(TINY / name, Path(cache), threads=args.threads)
            fine = found["verdict"] in {"ok", "undertrained"}
            right, wrong = right + fine, wrong + (not fine)
            print(row(f"sound ({name})", "-", "-", found), flush=True)
    seconds = (time.process_time() - started) / max(right + wrong, 1)
    print(
        json.dumps({"right": right, "wrong": wrong, "cpu_seconds_each": round(seconds, 1)}), file=sys.stderr
    )


if __name__ == "__main__":
    main()
