"""Values of options that typer does not know how to read: pairs, choices, options that exclude each other."""

from __future__ import annotations

from typing import Any

from orchestrator.errors import UsageError

__all__ = ["one_of", "setting", "stops"]


def stops(ids: list[int] | None, no_stop: bool) -> tuple[int, ...] | None:
    """Returns the stop tokens that were asked for: none at all, some, or (None) the suite's."""
    if no_stop and ids:
        raise UsageError("--no-stop and --stop-token-id do not go together", "give one of them")
    return () if no_stop else tuple(ids) if ids else None


def setting(text: str) -> tuple[str, Any]:
    """Reads KEY=VALUE: true and false, whole numbers, or words."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(
            f"--convention {text!r} is not KEY=VALUE", "as in --convention block_position_offset=1"
        )
    key, value = key.strip().replace("-", "_"), value.strip()
    if value.lower() in ("true", "false"):
        return key, value.lower() == "true"
    digits = value.removeprefix("-")
    return key, int(value) if digits.isdecimal() else value


def one_of(option: str, value: str | None, allowed: tuple[str, ...]) -> str | None:
    """Returns a value if it is one of those allowed, or None."""
    if value is not None and value not in allowed:
        raise UsageError(f"{option} {value!r}: it can be {', '.join(allowed)}")
    return value
