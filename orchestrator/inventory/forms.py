"""What a key of the inventory may hold: forms that check a value, and say what is wrong with it.

What always holds: a form gives the checked value or raises a WrongError with a sentence for every wrong place in it:
what is expected, what was found, and the nearest allowed word if any. Nothing is converted but a whole number
where a number is wanted, and a list to a tuple. Only the standard library is needed: every command waits for this.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

__all__ = [
    "REQUIRED",
    "Form",
    "WrongError",
    "checked",
    "choice",
    "each",
    "either",
    "flag",
    "key",
    "mapping",
    "nearest",
    "number",
    "string",
    "text",
    "whole",
]

Place: TypeAlias = "tuple[str | int, ...]"
Form: TypeAlias = "Callable[[Any], Any]"

REQUIRED: Any = ...
"""The default of a key that has none."""


class WrongError(ValueError):
    """A value is not what it should be; `faults` has (place inside it, sentence) for all that is wrong."""

    def __init__(self, *faults: tuple[Place, str]) -> None:
        super().__init__(
            "; ".join(f"{'.'.join(map(str, place))}: {said}".lstrip(": ") for place, said in faults)
        )
        self.faults = faults


class _OtherTypeError(WrongError):
    """The value is of another type altogether."""


def key(form: Form, default: Any = REQUIRED, *, factory: Any = dataclasses.MISSING) -> Any:
    """Returns the dataclass field of a key that a person may write. One whose default is None may be None."""
    if factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=factory, metadata={"form": form})
    return dataclasses.field(default=default, metadata={"form": form})


def checked(field: dataclasses.Field[Any], value: Any) -> Any:
    """Returns a key's value as its form has it. Raises WrongError, its places start with the key."""
    if value is REQUIRED:
        raise WrongError(((field.name,), "is required"))
    if value is None and field.default is None:
        return None
    ((_, found),) = _all(field.metadata["form"], [(field.name, value)])
    return found


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """Returns the candidate that a mistyped word most likely means, or None."""
    found = difflib.get_close_matches(word, list(candidates), n=1, cutoff=0.6)
    return found[0] if found else None


# --------------------------------------------------------------------------- the forms


def string(value: Any) -> str:
    """Any text."""
    if not isinstance(value, str):
        quotes = "; put it in quotes" if isinstance(value, (bool, int, float)) else ""
        raise _unexpected("text", value, quotes)
    return value


def text(value: Any) -> str:
    """Text that is safe as a word of a command line: not empty, no control character, no dash in front."""
    words = string(value)
    if not words or any(ord(char) < 32 or ord(char) == 127 for char in words):
        raise WrongError(((), "must not be empty and must not contain control characters"))
    if words.startswith("-"):
        raise WrongError(((), "must not start with a dash"))
    return words


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise _unexpected("true or false", value)
    return value


def whole(least: int | None = None, most: int | None = None) -> Form:
    """A whole number within bounds."""

    def form(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise _unexpected("a whole number", value)
        return int(_within(value, least=least, most=most))

    return form


def number(least: float | None = None, most: float | None = None, above: float | None = None) -> Form:
    """A finite number within bounds; `above` is one that it must not reach down to."""

    def form(value: Any) -> float:
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise _unexpected("a number", value)
        if not math.isfinite(value):
            raise _unexpected("a finite number", value)
        return float(_within(value, least=least, most=most, above=above))

    return form


def choice(*allowed: str) -> Form:
    """One of some words."""

    def form(value: Any) -> str:
        if value in allowed and isinstance(value, str):
            return value
        close = nearest(value, allowed) if isinstance(value, str) else None
        meant = f"; did you mean {close!r}?" if close else ""
        raise WrongError(((), f"{_shown(value)} is not allowed; allowed: {', '.join(allowed)}{meant}"))

    return form


def either(expected: str, *forms: Form) -> Form:
    """What one of some forms allows; `expected` says so in words, for a value that is of none of their types."""

    def form(value: Any) -> Any:
        for one in forms:
            try:
                return one(value)
            except _OtherTypeError:
                continue
        raise _unexpected(expected, value)

    return form


def each(form: Form, *, least: int = 0) -> Form:
    """A list whose items have a form."""

    def whole_list(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise _unexpected("a list", value)
        if len(value) < least:
            raise WrongError(((), "must not be empty"))
        return tuple(found for _, found in _all(form, enumerate(value)))

    return whole_list


def mapping(form: Form) -> Form:
    """A mapping from text to values of a form."""

    def whole_mapping(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _unexpected("a mapping", value)
        return dict(_all(form, value.items()))

    return whole_mapping


# --------------------------------------------------------------------------- what they share


def _all(form: Form, items: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Applies a form to every item and raises what is wrong with all of them as one error."""
    done, faults = [], []
    for place, item in items:
        try:
            done.append((place, form(item)))
        except WrongError as error:
            faults += [((place, *inside), said) for inside, said in error.faults]
    if faults:
        raise WrongError(*faults)
    return done


def _within(
    value: float, *, least: float | None = None, most: float | None = None, above: float | None = None
) -> float:
    for sign, bound, holds in (
        (">=", least, least is None or value >= least),
        ("<=", most, most is None or value <= most),
        (">", above, above is None or value > above),
    ):
        if not holds:
            raise WrongError(((), f"must be {sign} {bound}, found {_shown(value)}"))
    return value


def _unexpected(expected: str, value: Any, more: str = "") -> _OtherTypeError:
    return _OtherTypeError(((), f"must be {expected}, found {_shown(value)}{more}"))


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (tuple, list)):
        return "a list"
    return "nothing" if value is None else repr(value)
