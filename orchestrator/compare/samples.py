"""Drafts side by side: the fixed anchors of samples.jsonl and each drafter's worst rounds.

What always holds: the fixed anchors are the same for every drafter, and only those that every drafter shown
has are taken; a worst round is one drafter's own, with the others' drafts where they were kept. Drafts stand
side by side only if the target's text is the same (runs of other targets or temperatures have other texts), and
only of rows that pass the comparison's filters. What was accepted is what equals the target's own tokens. None of this
enters any figure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from orchestrator.compare.filters import read_filter, row_passes
from orchestrator.compare.loops import duplicates, longest_loop
from orchestrator.compare.model import Sample, SampleDraft
from orchestrator.compare.names import natural_key
from orchestrator.errors import ResultsError, UsageError
from remote_payload.durable import ProtocolError, canonical_json, iter_jsonl
from remote_payload.protocol import SAMPLE_SCHEMA, check_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from orchestrator.compare.folder import Run
    from orchestrator.compare.model import Comparison

__all__ = ["ORDERS", "Order", "pick_samples", "read_order"]

Order = Literal["disagreement", "worst", "prompt"]
ORDERS: tuple[Order, ...] = ("disagreement", "worst", "prompt")
_FIELDS = (
    "drafter_hash",
    "block_size",
    "convention",
    "prompt_id",
    "prompt_hash",
    "dataset",
    "turn",
    "sample",
    "anchor",
    "worst",
    "draft_ids",
    "truth_ids",
)


def read_order(text: str) -> Order:
    """Reads an order; another one is a UsageError."""
    for order in ORDERS:
        if text == order:
            return order
    raise UsageError(f"--samples-by {text}: no such order", f"the orders are {', '.join(ORDERS)}")


class _Anchor(NamedTuple):
    """A place at which drafts can be laid side by side."""

    prompt_hash: str
    turn: int
    sample: int
    anchor: int


class _Place:
    """What was kept at one place: each drafter's draft, whose worst round it is, and who has it as an anchor."""

    def __init__(self) -> None:
        self.records: dict[str, Mapping[str, Any]] = {}
        self.fixed: set[str] = set()
        self.worst: set[str] = set()

    def has_text_of(self, record: Mapping[str, Any]) -> bool:
        """Whether the target's text is the record's, as far as both tell it."""
        return all(
            own.get("context_ids") == record.get("context_ids")
            and all(
                ours == theirs for ours, theirs in zip(own["truth_ids"], record["truth_ids"], strict=False)
            )
            for own in self.records.values()
        )

    def add(self, name: str, record: Mapping[str, Any]) -> None:
        """Takes a drafter's draft; the same place may be both its anchor and its worst round."""
        self.records.setdefault(name, record)
        (self.worst if record["worst"] else self.fixed).add(name)


def pick_samples(
    runs: Sequence[Run],
    comparison: Comparison,
    count: int,
    order: Order = "disagreement",
    search: str = "",
) -> tuple[Sample, ...]:
    """Returns at most `count` places with the drafts made there.

    Args:
        runs: the runs of the comparison.
        comparison: says which drafters, and what they are called.
        count: how many.
        order: "disagreement": the fixed anchors where the drafters differ most, one of every prompt before a
            second of any; "worst": anchors and worst rounds, the largest loss first; "prompt": both, in the
            order of the prompts.
        search: only places whose prompt, context, target's text or drafts have this text (in any case).

    Raises:
        ResultsError: a line of samples.jsonl is broken; the message has file and line.
    """
    places = _places(runs, comparison)
    everyone = {name for place in places for name in place.fixed}
    in_order = list(dict.fromkeys(entry.name for block in comparison.blocks for entry in block.entries))
    samples = []
    for place in places:
        anchored = bool(everyone) and place.fixed >= everyone
        if anchored or (place.worst and order != "disagreement"):
            kind = "anchor" if anchored else "worst"
            drafts = [(name, place.records[name]) for name in in_order if name in place.records]
            samples.append(_sample(kind, drafts, place.worst, comparison.baseline))
    wanted = [one for one in samples if _has(one, search.casefold())]
    wanted.sort(key=_KEYS[order])
    return tuple((_spread(wanted) if order == "disagreement" else wanted)[:count])


def _places(runs: Sequence[Run], comparison: Comparison) -> list[_Place]:
    """Every place at which a drafter of the comparison kept a draft, of the prompts that pass its filters."""
    names = _names(comparison)
    filters = [read_filter(text) for text in comparison.filters]
    found: dict[_Anchor, list[_Place]] = {}
    for run in runs:
        for record in _records(run):
            name = names.get(_drafter(run, record))
            if name is None or not row_passes(filters, record):
                continue
            anchor = _Anchor(record["prompt_hash"], record["turn"], record["sample"], record["anchor"])
            here = found.setdefault(anchor, [])
            place = next((place for place in here if place.has_text_of(record)), None)
            if place is None:
                here.append(place := _Place())
            place.add(name, record)
    return [place for here in found.values() for place in here]


class _Drafter(NamedTuple):
    """What tells the drafters of one run apart; older records of samples do not tell their engine."""

    run: str
    engine: str | None
    drafter_hash: str
    block_size: int
    convention: str


def _names(comparison: Comparison) -> dict[_Drafter, str]:
    names: dict[_Drafter, str] = {}
    for block in comparison.blocks:
        for entry in block.entries:
            for run in entry.runs:
                convention = canonical_json(entry.convention)
                for engine in (entry.engine, None):
                    key = _Drafter(run, engine, entry.drafter_hash, entry.block_size, convention)
                    names.setdefault(key, entry.name)
    return names


def _drafter(run: Run, record: Mapping[str, Any]) -> _Drafter:
    convention = canonical_json(record["convention"])
    return _Drafter(run.name, record.get("engine"), record["drafter_hash"], record["block_size"], convention)


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
    for name in ("draft_ids", "truth_ids", "context_ids"):
        tokens = record.get(name, [])
        if type(tokens) is not list or any(type(token) is not int for token in tokens):
            raise ProtocolError(f"{name} is not a list of token ids")
    pieces = record.get("draft_pieces")
    if pieces is not None and (
        type(pieces) is not list
        or len(pieces) != len(record["draft_ids"])
        or any(type(p) is not str for p in pieces)
    ):
        raise ProtocolError("draft_pieces is not one text a drafted token")
    if any(type(record[name]) is not int for name in ("turn", "sample", "anchor", "block_size")):
        raise ProtocolError("turn, sample or anchor is not a whole number")
    if any(type(record[name]) is not str for name in ("drafter_hash", "prompt_id", "prompt_hash", "dataset")):
        raise ProtocolError("drafter_hash, prompt_id, prompt_hash or dataset is not a text")
    if any(not isinstance(record.get(name), str | None) for name in ("context", "truth", "engine")):
        raise ProtocolError("context, truth or engine is neither a text nor null")


def _by_prompt(sample: Sample) -> tuple[Any, ...]:
    return sample.dataset, natural_key(sample.prompt_id), sample.turn, sample.sample, sample.anchor


def _by_disagreement(sample: Sample) -> tuple[Any, ...]:
    return -sample.disagreement, natural_key(sample.prompt_id), sample.turn, sample.anchor


def _by_loss(sample: Sample) -> tuple[Any, ...]:
    return -sample.loss, *_by_prompt(sample)


_KEYS: dict[Order, Callable[[Sample], tuple[Any, ...]]] = {
    "disagreement": _by_disagreement,
    "worst": _by_loss,
    "prompt": _by_prompt,
}


def _has(sample: Sample, search: str) -> bool:
    texts = [sample.prompt_id, sample.context, sample.truth]
    texts += [(d.accepted_text or "") + (d.rest_text or "") for d in sample.drafts]
    return any(search in text.casefold() for text in texts)


def _spread(ordered: Sequence[Sample]) -> list[Sample]:
    """One place of every prompt before a second of any."""
    seen: dict[tuple[str, str, int, int], int] = {}
    turns = []
    for sample in ordered:
        prompt = (sample.dataset, sample.prompt_id, sample.turn, sample.sample)
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


def _sample(
    kind: str, drafts: Sequence[tuple[str, Mapping[str, Any]]], worst: set[str], baseline: str | None
) -> Sample:
    first = drafts[0][1]
    slots = min(len(record["draft_ids"]) for _, record in drafts)
    accepted = {name: min(_accepted(record), slots) for name, record in drafts}
    others = [count for name, count in accepted.items() if name != baseline] or [slots]
    best = max(accepted.values()) if len(accepted) > 1 else min(slots, len(first["truth_ids"]))
    return Sample(
        kind=kind,
        prompt_id=str(first["prompt_id"]),
        dataset=str(first["dataset"]),
        turn=first["turn"],
        sample=first["sample"],
        anchor=first["anchor"],
        context=_text(first.get("context"), first.get("context_ids", ())),
        truth=_text(first.get("truth"), first["truth_ids"]),
        disagreement=max(accepted.values()) - min(accepted.values()),
        loss=max(accepted.get(baseline or "", best) - min(others), 0),
        drafts=tuple(_draft(name, record, name in worst) for name, record in drafts),
    )


def _text(text: str | None, ids: Sequence[int]) -> str:
    return text if text is not None else " ".join(map(str, ids))


def _draft(name: str, record: Mapping[str, Any], worst: bool) -> SampleDraft:
    ids, accepted, pieces = tuple(record["draft_ids"]), _accepted(record), record.get("draft_pieces")
    # A loop that the target writes too is no fault: only what goes on past the accepted part counts.
    past = ids[max(accepted - 1, 0) :]
    loop = longest_loop(past)
    return SampleDraft(
        name=name,
        accepted=accepted,
        ids=ids,
        pieces=None if pieces is None else tuple(pieces),
        accepted_text=None if pieces is None else "".join(pieces[:accepted]),
        rest_text=None if pieces is None else "".join(pieces[accepted:]),
        duplicates=duplicates(past),
        repeats=loop.repeats,
        loop_period=loop.period,
        worst=worst,
    )
