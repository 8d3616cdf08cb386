"""What a drafter is called in a table.

A drafter is its bytes and how it was run: hash, engine, block size, convention and, where a difference was
allowed, settings. Its name is its label; where one label stands for several drafters the name says what
differs: the beginning of the hash (`step_400@1a2b3c`), or the setting (`final [B 8]`).
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

from orchestrator.compare.columns import Series, SeriesKey, Settings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

__all__ = [
    "DrafterKey",
    "DrafterName",
    "Step",
    "drafter_of",
    "label_of",
    "name_drafters",
    "natural_key",
    "step_of",
    "training_of",
    "variant_of",
]


class DrafterKey(NamedTuple):
    """A series' key without its shape."""

    drafter_hash: str
    engine: str
    block_size: int
    convention: str
    settings: Settings


class DrafterName(NamedTuple):
    """A drafter's name in the tables, and the labels under which it was also met."""

    text: str
    aliases: tuple[str, ...]


class Step(NamedTuple):
    """A label as a step of a training: `step_0400` is step 400 of `step_`; the epoch is not part of its name."""

    before: str
    number: int
    after: str


_EPOCH = re.compile(r"(epoch[_-]?)[0-9]+(?=[_-])")
_VARIANT = re.compile(r"(.*?)(@[0-9a-f]{6,})?(?: \[([^\]]+)\])?", re.DOTALL)


def variant_of(name: str) -> tuple[str, str]:
    """Splits a name of `name_drafters` into label (with its hash, if it has one) and what was added in brackets."""
    match = _VARIANT.fullmatch(name)
    return (match[1] + (match[2] or ""), match[3] or "") if match else (name, "")


def label_of(name: str) -> str:
    """Returns the label in a name of `name_drafters`."""
    match = _VARIANT.fullmatch(name)
    return match[1] if match else name


def step_of(name: str) -> Step | None:
    """Returns which step of which training a name tells; None if it tells none. Variants are trainings apart."""
    whole = _VARIANT.fullmatch(name)
    label, variant = (whole[1], whole[3] or "") if whole else (name, "")
    match = re.fullmatch(r"(.*?)([0-9]+)([^0-9]*)", label, re.DOTALL)
    if match is None:
        return None
    before = _EPOCH.sub(r"\1*", match[1])  # epoch_2_step_900 is step 900 of the training of epoch_1_step_400
    return Step(before, int(match[2]), match[3] + variant)


def training_of(step: Step) -> str:
    """Returns what a training is called: its steps' name with a star for the number."""
    return f"{step.before}*{step.after}"


def drafter_of(key: SeriesKey) -> DrafterKey:
    """Returns the drafter of a series."""
    return DrafterKey(*key[:5])


def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Sorts step_9 before step_10."""
    parts = re.findall(r"\d+|\D+", text)
    return tuple(
        (0, int(part), part) if part.isdecimal() and part.isascii() else (1, 0, part) for part in parts
    )


def name_drafters(
    series: Iterable[Series], differing: Collection[str], prefer: str | None
) -> dict[DrafterKey, DrafterName]:
    """Returns a name for each drafter, all of them different.

    Args:
        series: all series of a comparison.
        differing: the settings in which they differ (and were allowed to).
        prefer: the label to show for a drafter that has several, if it is one of them.
    """
    labels: dict[DrafterKey, dict[str, None]] = {}
    for one in series:
        labels.setdefault(drafter_of(one.key), {}).update(dict.fromkeys(one.labels))
    by_label: dict[str, list[DrafterKey]] = {}
    for key, own in labels.items():
        by_label.setdefault(prefer if prefer in own and prefer is not None else next(iter(own)), []).append(
            key
        )
    names: dict[DrafterKey, DrafterName] = {}
    for label, keys in by_label.items():
        for key in keys:
            text = label + _hash_part(key, keys) + _variant_part(key, keys, differing)
            names[key] = DrafterName(text, tuple(other for other in labels[key] if other != label))
    return names


def _hash_part(key: DrafterKey, others: Sequence[DrafterKey]) -> str:
    hashes = {other.drafter_hash for other in others}
    if len(hashes) == 1:
        return ""
    length = 6
    while len({one[:length] for one in hashes}) < len(hashes):
        length += 2
    return "@" + key.drafter_hash[:length]


def _variant_part(key: DrafterKey, others: Sequence[DrafterKey], differing: Collection[str]) -> str:
    same = [other for other in others if other.drafter_hash == key.drafter_hash]
    parts = []
    if len({other.engine for other in same}) > 1:
        parts.append(key.engine)
    if len({other.block_size for other in same}) > 1:
        parts.append(f"B {key.block_size}")
    if len({other.convention for other in same}) > 1:
        record = json.loads(key.convention)
        parts.append(" ".join(f"{name}={value}" for name, value in sorted(record.items())) or "as published")
    for name in Settings._fields:
        if name in differing:
            value = getattr(key.settings, name)
            parts.append(f"{name}={value[:8] if isinstance(value, str) else value}")
    return f" [{', '.join(parts)}]" if parts else ""
