"""Proof that this payload computes what it should, with this interpreter, on this machine.

A trained micro pair ships inside the payload with results that an independent implementation computed (the
training script's own plain forward pass and walk; `micro/README.md` says how). The check runs the very code
that a job runs (and first imports every module of the payload): loading, continuation, features by hooks, context and block passes, shapes and walks. Draft
logits have to agree within the stored tolerance at every stored anchor, and continuations and acceptance
lists entry by entry. An error of one position anywhere on that path moves the logits far beyond it.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file

from remote_payload.drafters.checkpoint import load_checkpoint
from remote_payload.drafters.convention import Convention
from remote_payload.drafters.dflash import DFlashDrafter
from remote_payload.durable import read_json
from remote_payload.engines.replay import ReplayBatch
from remote_payload.features import Captured, capture_features
from remote_payload.importable import import_problems
from remote_payload.items import Item
from remote_payload.prompts import Tokenized, prompt_hash
from remote_payload.results import Silent
from remote_payload.sampling import Sampling
from remote_payload.shapes import parse_shapes
from remote_payload.target import Target
from remote_payload.trajectories import Need, Start, extend

__all__ = ["check", "main"]

SCHEMA = "orch/selfcheck/1"
MICRO = Path(__file__).parent / "micro"


def main(argv: Sequence[str]) -> int:
    """Runs the check on the CPU and on the first GPU if there is one. Exit code 0 ok, 1 not."""
    parser = argparse.ArgumentParser(prog="python -m remote_payload selfcheck")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--device", action="append", help="default: cpu, and cuda:0 where there is one")
    args = parser.parse_args(argv)
    devices = args.device or ["cpu", *(["cuda:0"] if torch.cuda.is_available() else [])]
    started = time.perf_counter()
    problems = import_problems()
    notes: list[str] = []
    checked: list[dict[str, Any]] = []
    for name in devices:
        try:
            found, figures = check(torch.device(name))
        except torch.cuda.OutOfMemoryError:
            notes.append(f"{name}: not checked, its memory is full")
            continue
        except Exception as error:  # noqa: BLE001 - whatever breaks here is a finding, and has to be reported
            found, figures = [f"{type(error).__name__}: {error}"], {}
        problems += [f"{name}: {problem}" for problem in found]
        checked.append({"device": name, **figures})
    document = {
        "schema": SCHEMA,
        "ok": not problems,
        "problems": problems,
        "notes": notes,
        "checked": checked,
        "seconds": round(time.perf_counter() - started, 3),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "cuda": torch.version.cuda,
        },
    }
    sys.stdout.write(json.dumps(document) + "\n" if args.json else _text(document))
    return 1 if problems else 0


def check(device: torch.device, micro: Path = MICRO) -> tuple[list[str], dict[str, Any]]:
    """Runs the micro pair on a device in float32.

    Returns:
        (what differs, one sentence each; figures: anchors and lists compared, largest logit difference).
    """
    expected = read_json(micro / "expected.json")
    logits = load_file(micro / "expected.safetensors")["draft_logits"]
    target = Target(micro / "target", dtype="float32", device=device)
    drafter = DFlashDrafter(
        load_checkpoint(micro / "drafter"),
        Convention(),
        block_size=expected["block_size"],
        embed=target.embed,
        device=device,
        dtype=torch.float32,
    )
    need = Need(expected["max_new_tokens"], frozenset(), drafter.drafts)
    prompts = [prompt["input_ids"] for prompt in expected["prompts"]]
    starts = [Start(tuple(ids)) for ids in prompts]
    trajectories = extend(target, starts, need, Sampling(), store=None, batch_tokens=4096)
    items = [
        Item(Tokenized(str(i), "", 0, tuple(ids), prompt_hash(ids)), trajectory)
        for i, (ids, trajectory) in enumerate(zip(prompts, trajectories, strict=True))
    ]
    captured = capture_features(
        target, items, drafter.feature_indices, Sampling(), batch_tokens=4096, progress=Silent()
    )
    problems = _compare_texts(expected, items, captured)
    if problems:
        return problems, {}
    replay = ReplayBatch(
        drafter,
        trajectories,
        [captured.columns(item, drafter.feature_indices) for item in items],
        target.head,
        target.vocab_size,
    )
    error, sentence = _compare_logits(expected, logits, replay, target)
    lists, differing = _compare_walks(expected, replay, need)
    figures = {"anchors": len(expected["anchors"]), "lists": lists, "max_logit_error": error}
    return [*([sentence] if sentence else []), *differing], figures


def _compare_texts(expected: dict[str, Any], items: Sequence[Item], captured: Captured) -> list[str]:
    problems = []
    for prompt, item in zip(expected["prompts"], items, strict=True):
        tokens = list(item.trajectory.tokens)
        if tokens != prompt["greedy_ids"][: len(tokens)]:
            problems.append(f"the target's continuation of {prompt['id']} differs from the stored one")
    if captured.disagreements:
        problems.append(
            f"{captured.disagreements} tokens of the continuations are not the argmax of a whole pass"
        )
    return problems


def _compare_logits(
    expected: dict[str, Any], stored: torch.Tensor, replay: ReplayBatch, target: Target
) -> tuple[float, str]:
    lengths = [len(prompt["input_ids"]) for prompt in expected["prompts"]]
    requests = [(a["prompt"], a["position"] - lengths[a["prompt"]]) for a in expected["anchors"]]
    found = target.head(replay.hidden(requests)).cpu()
    if found.shape != stored.shape:
        return float("inf"), f"draft logits have shape {tuple(found.shape)}, stored are {tuple(stored.shape)}"
    error = float((found - stored).abs().max())
    # Written so that NaN is a failure.
    within = error <= expected["logits_tolerance"]
    return error, "" if within else f"draft logits differ by up to {error:.2e} from the stored ones"


def _compare_walks(expected: dict[str, Any], replay: ReplayBatch, need: Need) -> tuple[int, list[str]]:
    shapes = parse_shapes(list(expected["prompts"][0]["accept_lengths"]))
    problems, lists = [], 0
    for prompt, walked in zip(expected["prompts"], replay.walk(shapes, need), strict=True):
        for shape, stored in prompt["accept_lengths"].items():
            lists += 1
            found = walked[shape].accept_lengths
            if found != stored:
                problems.append(f"{shape} accepts {found} on {prompt['id']}, stored are {stored}")
    return lists, problems


def _text(document: dict[str, Any]) -> str:
    lines = ["self-check passed" if document["ok"] else "self-check FAILED"]
    lines += [f"  {problem}" for problem in document["problems"]]
    lines += [f"  note: {note}" for note in document["notes"]]
    for entry in document["checked"]:
        if "lists" in entry:
            lines.append(
                f"  {entry['device']}: {entry['anchors']} anchors, logits within {entry['max_logit_error']:.1e}, "
                f"{entry['lists']} acceptance lists"
            )
    lines.append("  " + ", ".join(f"{name} {version}" for name, version in document["versions"].items()))
    return "\n".join(lines) + "\n"
