"""What pydantic found wrong with an entry, in words for the person who wrote the file.

What always holds: a sentence says what is expected, what was found, and the nearest allowed word if any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.inventory.whole import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import ValidationError

    from orchestrator.inventory.document import Location
    from orchestrator.inventory.models import Entry

__all__ = ["explain"]

_EXPECTED = {
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping",
    "tuple_type": "must be a list",
    "missing": "is required",
}
_COMPARED = {
    "greater_than": "gt", "greater_than_equal": "ge", "less_than": "lt", "less_than_equal": "le",
}  # fmt: skip
_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def explain(error: ValidationError, model: type[Entry]) -> Iterator[tuple[Location, str]]:
    """Yields (place inside the entry, sentence) for everything that is wrong with it."""
    seen: set[Location] = set()
    for item in error.errors(include_url=False):
        location = _real_location(item["loc"], model)
        if location in seen:  # the other branches of a union say the same in other words
            continue
        seen.add(location)
        yield location, _sentence(item)


def _real_location(location: tuple[int | str, ...], model: type[Entry]) -> Location:
    """Drops the parts that name a branch of a union (`int`, `str`): the file has no such key."""
    if location and location[0] in model.model_fields:
        depth = 2 if len(location) > 1 else 1
        return location[:depth]
    return location


def _sentence(item: Any) -> str:
    kind, found, context = item["type"], item["input"], item.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        allowed = [part.strip().strip("'") for part in context["expected"].replace(" or ", ", ").split(",")]
        close = nearest(found, allowed) if isinstance(found, str) else None
        return f"{_shown(found)} is not allowed; allowed: {', '.join(allowed)}" + (
            f"; did you mean {close!r}?" if close else ""
        )
    if kind in _COMPARED:
        bound = context[_COMPARED[kind]]
        return f"must be {_SIGNS[_COMPARED[kind]]} {bound}, found {_shown(found)}"
    if kind == "missing":
        return _EXPECTED[kind]
    if kind in _EXPECTED:
        quotes = (
            "; put it in quotes" if kind == "string_type" and isinstance(found, (bool, int, float)) else ""
        )
        return f"{_EXPECTED[kind]}, found {_shown(found)}{quotes}"
    return f"{item['msg']}, found {_shown(found)}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (tuple, list)):
        return "a list"
    return "nothing" if value is None else repr(value)
