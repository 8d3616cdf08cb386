"""What a sound harness must find on the shipped micro pair: logits, acceptance lists, and why they bind.

Prompts come from held-out modules and are chosen so that no decision is closer than `MIN_GAP`, that the text
does not merely repeat itself, and that rounds of many lengths occur. Everything is computed from the weights
as they are on disk.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors.torch import save_file

from .convention import PUBLISHED, Convention
from .dflash import Drafter, Pair
from .files import load_drafter, load_target
from .oracle import Judge, chain, ddtree, greedy_text, walk_text
from .text import held_out_text

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["JUDGES", "MUTATIONS", "sensitivity", "write_expected"]

JUDGES: dict[str, Judge] = {"chain": chain, "ddtree:4": ddtree(4), "ddtree:8": ddtree(8)}
MAX_NEW_TOKENS = 40
TEXT = 64
MIN_GAP = 1e-3
_LENGTHS = (9, 24, 40)  # of the prompts' tokens; the first is short on purpose
_ANCHORS = (0, 7, 22)  # indices into the text after the prompt

MUTATIONS: dict[str, Convention] = {
    "anchor in the context": Convention(context="through_anchor"),
    "causal block": Convention(in_block="causal"),
    "block positions + 1": Convention(block_position_offset=1),
    "block positions - 1": Convention(block_position_offset=-1),
    "layer + 1": Convention(hidden_index_offset=1),
    "layer - 1": Convention(hidden_index_offset=-1),
    "hidden norm skipped": Convention(hidden_norm=False),
    "final norm skipped": Convention(final_norm=False),
    "rope theta of the target": Convention(rope_theta=1e4),
}


class Case(NamedTuple):
    """A prompt, its greedy text, and what every shape accepts on it."""

    source: str
    ids: list[int]
    text: list[int]
    gap: float
    accept_lengths: dict[str, list[int]]

    def to_json(self) -> dict[str, Any]:
        """Returns the record of `expected.json`."""
        return {
            "id": self.source,
            "input_ids": self.ids,
            "greedy_ids": self.text,
            "min_gap": round(self.gap, 6),
            "accept_lengths": self.accept_lengths,
        }

    @property
    def module(self) -> str:
        """The module that the prompt was cut from."""
        return self.source.partition(":")[0]

    @property
    def variety(self) -> int:
        """How many different lengths the chain's and the trees' rounds have."""
        return sum(len(set(lengths)) for lengths in self.accept_lengths.values())


def write_expected(folder: Path) -> dict[str, Any]:
    """Writes expected.json and expected.safetensors beside a pair; returns the record of the former."""
    pair = Pair(load_target(folder / "target"), load_drafter(folder / "drafter"))
    cases: list[Case] = []
    for length in _LENGTHS:
        cases.append(_best_case(pair, length, [case.module for case in cases]))
    anchors = [(index, len(case.ids) + offset) for index, case in enumerate(cases) for offset in _ANCHORS]
    logits = _logits(pair, cases, anchors)
    record = {
        "schema": "orch/selfcheck/1",
        "block_size": pair.drafter.shape.block_size,
        "max_new_tokens": MAX_NEW_TOKENS,
        "logits_tolerance": 1e-4,
        "prompts": [case.to_json() for case in cases],
        "anchors": [{"prompt": prompt, "position": position} for prompt, position in anchors],
        "sensitivity": sensitivity(pair, cases, anchors, logits),
    }
    save_file({"draft_logits": logits}, folder / "expected.safetensors")
    (folder / "expected.safetensors").chmod(0o644)
    (folder / "expected.json").write_text(_compact(record))
    return record


def _best_case(pair: Pair, length: int, used: list[str], tries: int = 40) -> Case:
    """Returns the candidate prompt of a length whose rounds vary most, among those without near ties."""
    candidates = [
        case
        for source, ids in _candidates(length, used, tries)
        if (case := _case(pair, source, ids)) is not None and case.gap > MIN_GAP
    ]
    if not candidates:
        raise RuntimeError(
            f"no prompt of {length} tokens without near ties: train longer, or with another seed"
        )
    return max(candidates, key=lambda case: (case.variety, case.gap))


def _candidates(length: int, used: list[str], tries: int) -> list[tuple[str, list[int]]]:
    """Returns pieces of held-out modules not used yet, each the start of a line, spread evenly."""
    pieces = []
    for name, tokens in held_out_text().items():
        starts = [at + 1 for at, token in enumerate(tokens[:-length]) if token == ord("\n")]
        if name not in used:
            pieces += [(f"{name}:{at}", tokens[at : at + length]) for at in starts if tokens[at] != ord("\n")]
    return pieces[:: len(pieces) // tries][:tries]


def _case(pair: Pair, source: str, ids: list[int]) -> Case | None:
    """Returns a prompt with its text and walks, or nothing where the text only repeats itself."""
    text, gap = greedy_text(pair.target, ids, TEXT)
    if len(set(text)) < 12 or len(set(text[TEXT // 2 :])) < 8:
        return None
    walks = {
        name: walk_text(pair, ids, text, judge, max_new_tokens=MAX_NEW_TOKENS)
        for name, judge in JUDGES.items()
    }
    closest = min(gap, *(walk.gap for walk in walks.values()))
    return Case(source, ids, text, closest, {name: walk.accept_lengths for name, walk in walks.items()})


def _logits(pair: Pair, cases: list[Case], anchors: list[tuple[int, int]]) -> torch.Tensor:
    """Returns the draft logits of all anchors, [anchors, drafts, vocabulary]."""
    rows = []
    for prompt, position in anchors:
        ids = [*cases[prompt].ids, *cases[prompt].text]
        features = pair.features(torch.tensor([ids[: position + 1]]))[0]
        rows.append(pair.draft_logits(features, ids, position))
    return torch.stack(rows).contiguous()


def sensitivity(
    pair: Pair, cases: list[Case], anchors: list[tuple[int, int]], logits: torch.Tensor
) -> dict[str, dict[str, Any]]:
    """Returns for each mutation of the harness how far the stored logits move, and whether the lists do."""
    mutants = {name: Pair(pair.target, pair.drafter, convention) for name, convention in MUTATIONS.items()}
    mutants["fc not loaded"] = _without_fc(pair)
    found = {}
    for name, mutant in mutants.items():
        moved = (_logits(mutant, cases, anchors) - logits).abs().flatten(1).amax(1)
        lists = {
            shape: sum(
                walk_text(mutant, c.ids, c.text, judge, max_new_tokens=MAX_NEW_TOKENS).accept_lengths
                != c.accept_lengths[shape]
                for c in cases
            )
            for shape, judge in JUDGES.items()
        }
        found[name] = {
            "max_abs_logit_difference": round(float(moved.max()), 4),
            "least_over_anchors": round(float(moved.min()), 4),
            "lists_that_differ": lists,
        }
    return found


def _without_fc(pair: Pair) -> Pair:
    """Returns the pair with an `fc` as it is before training."""
    drafter = Drafter(pair.drafter.target_shape, pair.drafter.shape)
    drafter.load_state_dict(pair.drafter.state_dict())
    torch.nn.init.normal_(drafter.fc.weight, std=0.02, generator=torch.Generator().manual_seed(0))
    return replace(pair, drafter=drafter.eval(), convention=PUBLISHED)


def _compact(record: dict[str, Any]) -> str:
    """Returns JSON with one line for each prompt, anchor and mutation."""
    lines = []
    for key, value in record.items():
        if isinstance(value, list):
            inner = ",\n  ".join(json.dumps(item) for item in value)
            lines.append(f' "{key}": [\n  {inner}\n ]')
        elif isinstance(value, dict):
            inner = ",\n  ".join(f"{json.dumps(name)}: {json.dumps(item)}" for name, item in value.items())
            lines.append(f' "{key}": {{\n  {inner}\n }}')
        else:
            lines.append(f' "{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"
