"""Values of options that typer does not know how to read: pairs, options that exclude each other."""

from __future__ import annotations

from typing import Any

from orchestrator.errors import UsageError
from remote_payload.vocabulary import parse_setting

__all__ = ["setting", "stops"]


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
    return key.strip().replace("-", "_"), parse_setting(value.strip())
