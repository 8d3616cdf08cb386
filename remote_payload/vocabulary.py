"""The words that settings may use. Standard library only: both programs check with these tables.

What always holds: a table here is the only list of its words; what a person types is refused by it before
anything is started, and the payload refuses by the same table what reaches it another way.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from typing import Any

__all__ = [
    "CONVENTION",
    "DIAGNOSE_SCHEMA",
    "DTYPES",
    "ENGINES",
    "FEATURES",
    "TAILS",
    "WINDOW_RULES",
    "convention_fault",
    "parse_setting",
    "shape_fault",
    "whole",
]

DIAGNOSE_SCHEMA = "orch/diagnose/1"
DTYPES = ("float32", "bfloat16", "float16")
ENGINES = ("replay", "live", "both")
FEATURES = ("ram", "disk", "recompute")
"""Where a job keeps the target's features."""
TAILS = ("full", "truncated")
WINDOW_RULES = ("specforge", "speculators", "speculators_noncausal", "none")

CONVENTION: dict[str, tuple[Any, ...]] = {
    "context": ("before_anchor", "through_anchor", "one_short"),
    "block_position_offset": (),
    "hidden_index_offset": (),
    "label_offset": (0, 1),
    "in_block": ("bidirectional", "causal"),
    "window_rule": ("", *WINDOW_RULES),
    "hidden_norm": (True, False),
    "final_norm": (True, False),
    "rope_theta": (),
}
"""A drafter's convention (`drafters.convention`): setting -> allowed values; none listed, any number."""

_NOT_WHOLE = frozenset({"rope_theta"})
"""Numbers that are not offsets: from 0 up, whole or not."""

_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?(e[+-]?[0-9]{1,3})?")
_SHAPE = re.compile(r"chain|(ddtree|topk):[1-9][0-9]{0,5}")


def convention_fault(settings: Mapping[str, Any]) -> str:
    """Returns what is wrong with the settings of a convention, in a sentence; empty if nothing is."""
    for name, value in settings.items():
        if name not in CONVENTION:
            near = difflib.get_close_matches(name, CONVENTION, n=1)
            meant = f"did you mean {near[0]!r}? " if near else ""
            return f"there is no setting {name!r}; {meant}known are {', '.join(CONVENTION)}"
        allowed = CONVENTION[name]
        if name in _NOT_WHOLE:
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not (0 <= value < math.inf):
                return f"{name} is {value!r}, it has to be a number from 0 up"
        elif not allowed:
            if not isinstance(value, int) or isinstance(value, bool):
                return f"{name} is {value!r}, it has to be a whole number"
        elif value not in allowed or isinstance(value, bool) != isinstance(allowed[0], bool):
            shown = ", ".join(repr(item) for item in allowed if item != "")
            return f"{name} is {value!r}, it can be {shown}"
    return ""


def parse_setting(text: str) -> Any:
    """Reads the value of a KEY=VALUE flag: true/on/yes and false/off/no, a number, or a word.

    A number that is whole is an int, however it is written: 1e6 and 1000000 are one setting.
    """
    lowered = text.lower()
    if lowered in {"true", "on", "yes"}:
        return True
    if lowered in {"false", "off", "no"}:
        return False
    return whole(float(text)) if _NUMBER.fullmatch(lowered) else text


def whole(value: Any) -> Any:
    """Returns a number that is whole as an int, anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def shape_fault(name: str) -> str:
    """Returns what is wrong with the name of a draft shape, in a sentence; empty if nothing is."""
    if _SHAPE.fullmatch(name):
        return ""
    return f"unknown shape {name!r}: it can be chain, ddtree:N or topk:K, with N and K from 1 up (as in ddtree:32)"
