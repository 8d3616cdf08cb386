"""Drafts side by side: the fixed anchors of samples.jsonl, the same for every drafter.

What always holds: only anchors that every drafter shown has are taken, never a drafter's own worst rounds
(they are marked and differ between drafters); what was accepted is what equals the target's own tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.compare.model import Sample, SampleDraft
from orchestrator.compare.names import natural_key
from orchestrator.errors import ResultsError
from remote_payload.protocol import SAMPLE_SCHEMA, ProtocolError, canonical_json, check_schema, iter_jsonl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.compare.folder import Run
    from orchestrator.compare.model import Comparison

__all__ = ["pick_samples"]

_LOOP = 3  # the longest period, in tokens, that counts as a loop
_FIELDS = (
    "drafter_hash",
    "prompt_id",
    "prompt_hash",
    "dataset",
    "turn",
    "sample",
    "anchor",
    "draft_ids",
    "truth_ids",
)


class _Anchor(NamedTuple):
    """A place at which drafts can be laid side by side."""

    prompt_hash: str
    turn: int
    sample: int
    anchor: int


def pick_samples(runs: Sequence[Run], comparison: Comparison, count: int) -> tuple[Sample, ...]:
    """Returns the anchors at which the drafters disagree most, at most `count` of them.

    Raises:
        ResultsError: a line of samples.jsonl is broken; the message has file and line.
    """
    names = _names(comparison)
    found: dict[_Anchor, dict[str, Mapping[str, Any]]] = {}
    for run in runs:
        for record in _records(run):
            name = names.get(_drafter(run, record))
            if name is not None and not record["worst"]:
                place = _Anchor(record["prompt_hash"], record["turn"], record["sample"], record["anchor"])
                found.setdefault(place, {}).setdefault(name, record)
    everyone = {name for drafts in found.values() for name in drafts}
    shared = [drafts for drafts in found.values() if drafts.keys() == everyone]
    shared = _spread(sorted(shared, key=_interest))
    order = list(dict.fromkeys(entry.name for block in comparison.blocks for entry in block.entries))
    return tuple(
        _sample([(name, drafts[name]) for name in order if name in drafts]) for drafts in shared[:count]
    )


class _Drafter(NamedTuple):
    """What tells the drafters of one run apart."""

    run: str
    drafter_hash: str
    block_size: int
    convention: str


def _names(comparison: Comparison) -> dict[_Drafter, str]:
    names: dict[_Drafter, str] = {}
    for block in comparison.blocks:
        for entry in block.entries:
            for run in entry.runs:
                convention = canonical_json(entry.convention)
                names.setdefault(_Drafter(run, entry.drafter_hash, entry.block_size, convention), entry.name)
    return names


def _drafter(run: Run, record: Mapping[str, Any]) -> _Drafter:
    return _Drafter(
        run.name, record["drafter_hash"], record["block_size"], canonical_json(record["convention"])
    )


def _records(run: Run) -> list[Mapping[str, Any]]:
    path, number = run.folder / "samples.jsonl", 0
    records: list[Mapping[str, Any]] = []
    try:
        for number, record in enumerate(iter_jsonl(path), 1):  # noqa: B007 (the message has the line)
            _check_record(record)
            records.append(record)
    except ProtocolError as error:
        text = str(error)
        where = text if text.startswith(str(path)) else f"{path}:{number}: {text}"
        raise ResultsError(where, f"pull the run again: `orch runs pull {run.name}`") from error
    return records


def _check_record(record: Mapping[str, Any]) -> None:
    check_schema(record, SAMPLE_SCHEMA)
    missing = [name for name in _FIELDS if name not in record]
    if missing:
        raise ProtocolError(f"missing fields {', '.join(missing)}")
    for name in ("draft_ids", "truth_ids"):
        if not isinstance(record[name], list) or any(type(token) is not int for token in record[name]):
            raise ProtocolError(f"{name} is not a list of token ids")
    pieces = record.get("draft_pieces")
    if pieces is not None and (
        len(pieces) != len(record["draft_ids"]) or any(type(p) is not str for p in pieces)
    ):
        raise ProtocolError("draft_pieces is not one text a drafted token")
    if any(type(record[name]) is not int for name in ("turn", "sample", "anchor", "block_size")):
        raise ProtocolError("turn, sample or anchor is not a whole number")


def _interest(drafts: Mapping[str, Mapping[str, Any]]) -> tuple[Any, ...]:
    """The largest disagreement first (on as many slots as all of them have), then by prompt and place."""
    slots = min(len(record["draft_ids"]) for record in drafts.values())
    accepted = [min(_accepted(record), slots) for record in drafts.values()]
    first = next(iter(drafts.values()))
    return min(accepted) - max(accepted), natural_key(str(first["prompt_id"])), first["turn"], first["anchor"]


def _spread(ordered: Sequence[dict[str, Mapping[str, Any]]]) -> list[dict[str, Mapping[str, Any]]]:
    """One anchor of every prompt before a second of any."""
    seen: dict[str, int] = {}
    turns = []
    for drafts in ordered:
        prompt = next(iter(drafts.values()))["prompt_hash"]
        seen[prompt] = seen.get(prompt, 0) + 1
        turns.append(seen[prompt])
    return [ordered[place] for place in sorted(range(len(ordered)), key=lambda place: turns[place])]


def _accepted(record: Mapping[str, Any]) -> int:
    """How many drafts, from the first on, are the target's own tokens."""
    count = 0
    for draft, truth in zip(record["draft_ids"], record["truth_ids"], strict=False):
        if draft != truth:
            break
        count += 1
    return count


def _sample(drafts: Sequence[tuple[str, Mapping[str, Any]]]) -> Sample:
    first = drafts[0][1]
    return Sample(
        str(first["prompt_id"]),
        str(first["dataset"]),
        first["turn"],
        first["sample"],
        first["anchor"],
        _text(first.get("context"), first.get("context_ids", ())),
        _text(first.get("truth"), first["truth_ids"]),
        tuple(_draft(name, record) for name, record in drafts),
    )


def _text(text: str | None, ids: Sequence[int]) -> str:
    return text if text is not None else " ".join(map(str, ids))


def _draft(name: str, record: Mapping[str, Any]) -> SampleDraft:
    ids, accepted, pieces = tuple(record["draft_ids"]), _accepted(record), record.get("draft_pieces")
    # A loop that the target writes too is no fault: only what goes on past the accepted part counts.
    repeats = _longest_loop(ids[max(accepted - 1, 0) :])
    if pieces is None:
        return SampleDraft(name, accepted, ids, None, None, repeats)
    return SampleDraft(name, accepted, ids, "".join(pieces[:accepted]), "".join(pieces[accepted:]), repeats)


def _longest_loop(ids: Sequence[int]) -> int:
    """How often a piece of 1 to 3 tokens follows itself at once: 0 for none ("elif elif elif" is 2)."""
    best = 0
    for period in range(1, _LOOP + 1):
        run = 0
        for place in range(period, len(ids)):
            run = run + 1 if ids[place] == ids[place - period] else 0
            best = max(best, run // period)
    return best
