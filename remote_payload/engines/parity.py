"""Do the engines agree? Live rounds against replayed rounds, and live tokens against plain decoding.

Replay rests on the training mask, live decoding on caches; if both give the same rounds, neither has an
off-by-one of its own. A difference is a near tie if the decision it hangs on was closer than rounding can
reach in the precision used, and otherwise a real difference: a bug of one engine. What always holds: every
figure derives from rows and `live.jsonl`, so a resumed job reports what an undisturbed one does.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from remote_payload.engines.live.rows import Details, DetailsFile
from remote_payload.proof import headlines
from remote_payload.protocol import Row, row_key

__all__ = ["engine_reports", "lossless_report", "parity_report", "reports_as_text", "rounding_gap"]

SHOWN = 50
"""Differences listed one by one; the counts hold all of them."""

_LOGIT_ROUNDING = {"float32": 1e-4, "bfloat16": 0.5, "float16": 0.0625}
"""How much two correct computations of a logit of size about 30 may differ: four units in the last place of
bfloat16 and float16 there; for float32 what the reference vectors show, with a margin."""
_PROBABILITY_ROUNDING = {"float32": 1e-5, "bfloat16": 0.05, "float16": 0.005}

_PLACE = ("drafter", "prompt_id", "turn", "sample", "shape")


class _Pair(NamedTuple):
    live: Row
    replay: Row
    details: Details


def engine_reports(rows: Sequence[Row], folder: Path) -> dict[str, Any]:
    """Returns what a job's summary says about its live rows: `lossless`, and `parity` where both engines ran."""
    details = DetailsFile(folder).load()
    reports = {"lossless": lossless_report(rows, details)}
    if any(row.engine == "replay" for row in rows):
        reports["parity"] = parity_report(rows, details)
    return reports


def rounding_gap(dtype: str, *, greedy: bool) -> float:
    """Returns the gap (in logits; for sampled choices in probability) below which rounding decides."""
    return (_LOGIT_ROUNDING if greedy else _PROBABILITY_ROUNDING)[dtype]


def parity_report(rows: Iterable[Row], details: Mapping[str, Details]) -> dict[str, Any]:
    """Compares the rounds of every prompt and shape that both engines ran.

    A round is its anchor and its length. Of a walk, equal rounds are those that both engines had, out of those
    that either had: all of them are equal exactly when the two lists are.

    Args:
        rows: of both engines.
        details: of the live rows, by key.
    """
    pairs, unpaired = _pairs(rows, details)
    groups: dict[tuple[str, str, int], list[_Pair]] = defaultdict(list)
    for pair in pairs:
        groups[pair.live.drafter, pair.live.shape, pair.live.block_size].append(pair)
    table = [
        {"drafter": drafter, "shape": shape, "block_size": block, **_counts(group)}
        for (drafter, shape, block), group in sorted(groups.items())
    ]
    differences = [
        _difference(pair) for pair in pairs if pair.live.accept_lengths != pair.replay.accept_lengths
    ]
    return {
        **_counts(pairs),
        "unpaired": unpaired,
        "near_ties": sum(d["near_tie"] for d in differences),
        "real": sum(not d["near_tie"] for d in differences),
        "groups": table,
        "differences": sorted(differences, key=_order)[:SHOWN],
    }


def _pairs(rows: Iterable[Row], details: Mapping[str, Details]) -> tuple[list[_Pair], int]:
    found: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in rows:
        key = row_key({**{name: getattr(row, name) for name in Row.KEY_FIELDS}, "engine": ""})
        found[key][row.engine] = row
    whole = [both for both in found.values() if {"live", "replay"} <= both.keys()]
    pairs = [_Pair(both["live"], both["replay"], details[both["live"].key]) for both in whole]
    return pairs, len(found) - len(whole)


def _rounds(row: Row) -> list[tuple[int, int]]:
    """(anchor, length) of every round."""
    anchors = accumulate(row.accept_lengths[:-1], initial=0)
    return list(zip(anchors, row.accept_lengths, strict=True))


def _counts(pairs: Sequence[_Pair]) -> dict[str, int]:
    both = [(set(_rounds(pair.live)), set(_rounds(pair.replay))) for pair in pairs]
    return {
        "walks": len(pairs),
        "equal_walks": sum(live == replay for live, replay in both),
        "rounds": sum(len(live | replay) for live, replay in both),
        "equal_rounds": sum(len(live & replay) for live, replay in both),
    }


def _difference(pair: _Pair) -> dict[str, Any]:
    """The first round in which two walks part, and the decision on which it hung."""
    live, replay = _rounds(pair.live), _rounds(pair.replay)
    common = min(len(live), len(replay))
    number = next((i for i in range(common) if live[i] != replay[i]), common)
    anchor = (live if number < len(live) else replay)[number][0]
    lengths = [rounds[number][1] if number < len(rounds) else None for rounds in (live, replay)]
    what, gap, limit = _reason(pair, number, anchor, min(n for n in lengths if n is not None))
    return {
        **_place(pair.live),
        "round": number,
        "anchor": anchor,
        "live": lengths[0],
        "replay": lengths[1],
        "decision": what,
        "gap": gap if math.isfinite(gap) else None,
        "near_tie": gap < limit,
    }


def _reason(pair: _Pair, number: int, anchor: int, length: int) -> tuple[str, float, float]:
    """Returns whose decision differed, its gap, and the gap that rounding can reach."""
    dtype, divergence = pair.live.dtype, pair.details.divergence
    # Another token at or before the shorter round's bonus makes the target's choice the first difference.
    if divergence and divergence.position <= anchor + length:
        return "target", divergence.gap, rounding_gap(dtype, greedy=pair.live.temperature == 0)
    gaps = pair.details.draft_gaps
    gap = gaps[number] if number < len(gaps) else math.inf
    return "draft", gap, rounding_gap(dtype, greedy=True)


def lossless_report(rows: Iterable[Row], details: Mapping[str, Details]) -> dict[str, Any]:
    """Compares what live decoding committed with plain decoding, within the output.

    Args:
        rows: any; those of engine live count.
        details: of the live rows, by key.
    """
    live = [row for row in rows if row.engine == "live"]
    found = [
        (row, divergence)
        for row in live
        if (divergence := details[row.key].divergence) is not None and divergence.in_output
    ]
    listed = [
        {
            **_place(row),
            "index": first.position,
            "live": first.live,
            "plain": first.plain,
            "gap": first.gap,
            "near_tie": first.gap < rounding_gap(row.dtype, greedy=row.temperature == 0),
        }
        for row, first in found
    ]
    return {
        "outputs": len(live),
        "equal": len(live) - len(found),
        "output_tokens": sum(row.output_tokens for row in live),
        "near_ties": sum(entry["near_tie"] for entry in listed),
        "real": sum(not entry["near_tie"] for entry in listed),
        "divergences": sorted(listed, key=_order)[:SHOWN],
    }


def _order(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """Real differences first; then by place, whoever wrote its rows first."""
    return entry["near_tie"], *(entry[name] for name in _PLACE)


def _place(row: Row) -> dict[str, Any]:
    return {name: getattr(row, name) for name in _PLACE}


# --------------------------------------------------------------------------- for people


def reports_as_text(summary: Mapping[str, Any]) -> str:
    """Returns the reports that a summary has, in words; empty if it has none."""
    told, lines = headlines(summary), []
    if "parity" in told:
        parity = summary["parity"]
        lines = [told["parity"]]
        lines += [
            f"  {group['drafter']:32} {group['shape']:12} {group['equal_rounds']:>8} of {group['rounds']}"
            for group in parity["groups"]
        ]
        lines += [f"  {_difference_text(entry)}" for entry in parity["differences"]]
    if "lossless" in told:
        lines.append(told["lossless"])
        lines += [f"  {_divergence_text(entry)}" for entry in summary["lossless"]["divergences"]]
    return "".join(line + "\n" for line in lines)


def _difference_text(entry: Mapping[str, Any]) -> str:
    return (
        f"{_place_text(entry)}: round {entry['round']} at generated index {entry['anchor']}: "
        f"live {_length(entry['live'])}, replay {_length(entry['replay'])}; {_cause(entry, entry['decision'])}"
    )


def _divergence_text(entry: Mapping[str, Any]) -> str:
    return (
        f"{_place_text(entry)}: generated index {entry['index']}: live {entry['live']}, "
        f"plain {entry['plain']}; {_cause(entry, 'target')}"
    )


def _place_text(entry: Mapping[str, Any]) -> str:
    more = "".join(f" {name} {entry[name]}" for name in ("turn", "sample") if entry[name])
    return f"{entry['drafter']} {entry['prompt_id']}{more} {entry['shape']}"


def _length(length: int | None) -> str:
    return "had ended" if length is None else f"accepted {length}"


def _cause(entry: Mapping[str, Any], decision: str) -> str:
    gap = "none" if entry["gap"] is None else f"{entry['gap']:.1e}"
    kind = "near tie" if entry["near_tie"] else "a real difference"
    return f"{kind} of the {decision}'s choice (gap {gap})"
