"""Which rows to look at: `--filter FIELD=PATTERN`, `--filter step>=400`.

What always holds: filters of different fields must all hold, of several filters of one text field with `=`
one must; the drafter that is the baseline passes every filter on drafter and step, since the others are
compared with it.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.compare.names import step_of
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from orchestrator.compare.columns import Series
    from orchestrator.compare.load import Measurements

__all__ = ["FIELDS", "Filter", "keep", "read_filter", "row_passes"]

_TEXTS = ("dataset", "drafter", "engine", "prompt", "shape")
_NUMBERS = ("block_size", "sample", "step", "temperature", "turn")
FIELDS = tuple(sorted((*_TEXTS, *_NUMBERS)))
_OF_ROWS = ("dataset", "prompt", "sample", "turn")
_SPARES_BASELINE = ("drafter", "step")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Filter:
    """One condition. `number` is the value of a number's field."""

    field: str
    sign: str
    value: str
    number: float = 0.0

    def __str__(self) -> str:
        return f"{self.field}{self.sign}{self.value}"

    def holds(self, found: str | float | None) -> bool:
        """Whether a value passes; a drafter without a step passes no filter on steps."""
        if found is None:
            return False
        if isinstance(found, str):
            matches = any(fnmatchcase(found, pattern) for pattern in self.value.split("|"))
            return matches == (self.sign == "=")
        return _COMPARE[self.sign](found, self.number)


def read_filter(text: str) -> Filter:
    """Reads a filter.

    Raises:
        UsageError: it is none; the message says what can be filtered.
    """
    match = re.fullmatch(r"\s*([a-z_]+)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*", text, re.DOTALL)
    field, sign, value = match.groups() if match else ("", "", "")
    if field not in FIELDS:
        raise UsageError(
            f"--filter {text}: no such filter",
            f"write FIELD=PATTERN or FIELD>=NUMBER with one of {', '.join(FIELDS)}",
        )
    if field in _TEXTS:
        if sign not in ("=", "!="):
            raise UsageError(
                f"--filter {text}: {field} is a text", f"write {field}=PATTERN or {field}!=PATTERN"
            )
        return Filter(field, sign, value)
    try:
        return Filter(field, sign, value, float(value))
    except ValueError as error:
        raise UsageError(f"--filter {text}: {value!r} is no number", f"{field} is a number") from error


def keep(measurements: Measurements, filters: Sequence[Filter], baseline: str | None) -> Measurements:
    """Returns what passes.

    Args:
        measurements: everything that was loaded.
        filters: the conditions.
        baseline: the label that filters on drafters spare.

    Raises:
        UsageError: nothing passes; the message has what there is.
    """
    if not filters:
        return measurements
    kept = []
    for series in measurements.series:
        is_baseline = baseline is not None and baseline in series.labels
        if all(_series_passes(series, field, own, is_baseline) for field, own in _by_field(filters).items()):
            rows = _rows(series, filters, measurements)
            if rows.all():
                kept.append(series)
            elif rows.any():
                kept.append(series.rows(np.flatnonzero(rows)))
    if not kept and measurements.series:
        said = " and ".join(f"--filter {one}" for one in filters)
        raise UsageError(f"{said}: no row is left", _what_there_is(measurements, {f.field for f in filters}))
    return replace(measurements, series=tuple(kept))


def row_passes(filters: Sequence[Filter], record: Mapping[str, Any]) -> bool:
    """Whether what a record says of its dataset, prompt, turn and sample passes."""
    values: dict[str, str | float] = {
        "dataset": str(record["dataset"]),
        "prompt": str(record["prompt_id"]),
        "sample": record["sample"],
        "turn": record["turn"],
    }
    return all(
        _all_hold(own, [values[field]]) for field, own in _by_field(filters).items() if field in _OF_ROWS
    )


def _by_field(filters: Sequence[Filter]) -> dict[str, list[Filter]]:
    groups: dict[str, list[Filter]] = {}
    for one in filters:
        groups.setdefault(one.field, []).append(one)
    return groups


def _all_hold(filters: Sequence[Filter], found: Collection[str | float | None]) -> bool:
    """Whether one of the values passes: any `=` of a text, and everything else."""
    wanted = [one for one in filters if one.sign == "=" and one.field in _TEXTS]
    rest = [one for one in filters if one not in wanted]
    return any(
        (not wanted or any(one.holds(value) for one in wanted)) and all(one.holds(value) for one in rest)
        for value in found
    )


def _series_passes(series: Series, field: str, filters: Sequence[Filter], is_baseline: bool) -> bool:
    if field in _OF_ROWS or (is_baseline and field in _SPARES_BASELINE):
        return True
    return _all_hold(filters, _values(series, field))


def _values(series: Series, field: str) -> Collection[str | float | None]:
    if field == "drafter":
        return series.labels
    if field == "step":
        steps = [step_of(label) for label in series.labels]
        return [step.number if step else None for step in steps]
    if field == "temperature":
        return [series.key.settings.temperature]
    return [getattr(series.key, field)]


def _rows(series: Series, filters: Sequence[Filter], measurements: Measurements) -> NDArray[np.bool_]:
    passes = np.ones(len(series.unit), dtype=bool)
    for field, own in _by_field(filters).items():
        if field in _OF_ROWS:
            place = {"dataset": 0, "prompt": 1, "turn": 2, "sample": 3}[field]
            numbers, where = np.unique(series.named, return_inverse=True)
            holds = [_all_hold(own, [measurements.prompts[number][place]]) for number in numbers.tolist()]
            passes &= np.array(holds, dtype=bool)[where]
    return passes


def _what_there_is(measurements: Measurements, fields: Collection[str]) -> str:
    parts = []
    for field in sorted(fields):
        if field in _OF_ROWS:
            place = {"dataset": 0, "prompt": 1, "turn": 2, "sample": 3}[field]
            values = {str(name[place]) for name in measurements.prompts}
        else:
            values = {str(value) for series in measurements.series for value in _values(series, field)}
        shown = sorted(values)
        parts.append(f"{field}: {', '.join(shown[:8])}" + (", …" if len(shown) > 8 else ""))
    return f"these runs have {'; '.join(parts)}"
