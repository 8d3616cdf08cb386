"""A diagnosis for people: the document `orch/diagnose/1` in words. Standard library only, used by both programs.

What always holds: no line is wider than `WIDTH` (but for a path or a flag that has no place to break), and no
character of a label, a path or a message can act on a terminal.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

__all__ = ["SOUND", "WIDTH", "as_text", "exit_code"]

SOUND = frozenset({"ok", "undertrained"})
"""Verdicts under which the harness is right."""
WIDTH = 100
_SHOWN = 8
"""Variants shown of those that fit worse."""


def exit_code(document: Mapping[str, Any]) -> int:
    """Returns 0 where the harness is right, else 1: the answer is no."""
    return 0 if document["verdict"] in SOUND else 1


def as_text(document: Mapping[str, Any]) -> str:
    """Returns the document in words, for a terminal of 100 columns."""
    parts = [_head(document), _evidence(document), _mends(document), _candidates(document)]
    parts += [_sweep(document), _statistics(document), _checks(document), f"next: {document['next']}\n"]
    return "\n".join(_plain(part) for part in parts if part)


def _head(document: Mapping[str, Any]) -> str:
    drafter, target = document["drafter"], document["target"]
    size = (
        f": {document['prompts']} prompts, {document['anchors']:,} anchors" if "anchors" in document else ""
    )
    first = f"{drafter['label']} on {target['name']} ({target['dtype']}){size}"
    return first + "\n\n" + _wrapped(f"{document['sentence']} (confidence {document['confidence']:.2f})")


def _evidence(document: Mapping[str, Any]) -> str:
    declared = document.get("declared")
    if not declared:
        return ""
    # A cause of the files has no candidate: nothing was measured for it.
    best = document["candidates"][0] if document["cause"] and document["candidates"] else None
    said = f"τ {_number(declared['tau'], 2)} as declared, {_number(declared['nll'], 3)} nats a true token"
    if best is not None:
        said += (
            f"; τ {best['tau']:.2f} {_interval(best, 'low', 'high', 2)} under {_name(best)}, whose true tokens cost "
            f"{_percent(best['gain'])} less {_interval(best, 'gain_low', 'gain_high', 0, 100)}"
        )
    reference = document.get("reference")
    if reference:
        said += (
            f"; {reference['label']}, the drafter beside it, has τ {reference['tau']:.2f}, "
            f"{reference['nll']:.3f} nats"
        )
    return _wrapped(said)


def _mends(document: Mapping[str, Any]) -> str:
    mends = document.get("mends")
    if not mends:
        return ""
    cause = document["candidates"][0]
    lines = [
        _item("in training", cause["training"]),
        _item("in a script", f"the same happens in an evaluation script that {cause['script']}"),
        _item("mend", f"training code: {mends['training']}"),
    ]
    if mends["flags"]:
        only = "" if mends["live"] in (True, None) else " (replay only: no live decoding can have it)"
        lines.append(_item("or run it as", " ".join(mends["flags"]) + only))
        lines.append(_item("", "(--adopt writes this beside the checkpoint)") if mends["convention"] else "")
    if mends["config"]:
        lines.append(_item("or config.json", mends["config"]))
    if not mends["flags"] and not mends["config"]:
        lines.append(_item("as it is", "no setting makes this checkpoint right: it has to be trained again"))
    return "".join(lines)


def _candidates(document: Mapping[str, Any]) -> str:
    named = bool(document["cause"])
    others = document["candidates"][1:] if named else document["candidates"]
    if not others:
        return ""
    head = "not told apart from it:\n" if named else "candidates:\n"
    return head + "".join(_item(one["variant"], one["what"]) for one in others)


def _sweep(document: Mapping[str, Any]) -> str:
    """The variants nearest to fitting, by how likely they make the true tokens."""
    sweep = document["sweep"]
    if not sweep:
        return ""
    shown = sweep[: max(_SHOWN, sum(1 for one in sweep if (one["gain"] or 0) > 0))]
    rows = [f"{'variant':38} {'τ':>6} {'Δτ [95 %]':>22} {'likelihood [95 %]':>27}"]
    for one in shown:
        gain = f"{100 * one['gain']:+.1f} % {_interval(one, 'gain_low', 'gain_high', 1, 100)}"
        change = f"{one['delta']:+.2f} {_interval(one, 'low', 'high', 2)}"
        rows.append(f"{_short(_name(one), 38):38} {one['tau']:6.2f} {change:>22} {gain:>27}")
    left = len(sweep) - len(shown)
    if left:
        rows.append(f"and {left} that fit worse")
    return "\n".join(rows) + "\n"


def _name(one: Mapping[str, Any]) -> str:
    parameters = " ".join(f"{key}={one[key]}" for key in ("layer", "offset", "value") if key in one)
    return f"{one['variant']} {parameters}".strip()


def _statistics(document: Mapping[str, Any]) -> str:
    stages = document.get("statistics")
    if not stages:
        return ""
    beside = {stage["stage"]: stage for stage in (document.get("reference") or {}).get("statistics", ())}
    heads = f"{'stage':20} {'mean':>10} {'std':>10} {'max':>10}"
    rows = [heads + (f"   {'reference: mean':>16} {'std':>10} {'max':>10}" if beside else "")]
    for stage in stages:
        row = f"{stage['stage']:20} {stage['mean']:10.4f} {stage['std']:10.4f} {stage['max']:10.3f}"
        if other := beside.get(stage["stage"]):
            row += f"   {other['mean']:16.4f} {other['std']:10.4f} {other['max']:10.3f}"
        rows.append(row)
    return "\n".join(rows) + "\n"


def _checks(document: Mapping[str, Any]) -> str:
    return "".join(_item(check["state"], check["what"], 6) for check in document["checks"])


# --------------------------------------------------------------------------- pieces


def _interval(one: Mapping[str, Any], low: str, high: str, digits: int, scale: float = 1) -> str:
    if one[low] is None or one[high] is None:
        return "[no interval]"
    return f"[{scale * one[low]:+.{digits}f}, {scale * one[high]:+.{digits}f}]"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_on_hyphens=False) + "\n"


def _item(head: str, text: str, width: int = 16) -> str:
    return (
        textwrap.fill(
            text,
            WIDTH,
            initial_indent=f"  {head:{width}} ",
            subsequent_indent=" " * (width + 3),
            break_long_words=False,
            break_on_hyphens=False,
        )
        + "\n"
    )


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _plain(text: str) -> str:
    """Shows every character that is not printable by its code."""
    return "".join(_shown(char) for char in text)


def _shown(char: str) -> str:
    return char if char.isprintable() or char == "\n" else f"\\u{ord(char):04x}"
