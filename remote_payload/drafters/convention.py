"""How a drafter was trained, where that differs from the published DFlash convention.

A convention is data: it is declared beside the checkpoint or by flags, recorded in every row, and nothing
in the engines tests for a particular team. The defaults are the published convention (DFlash,
arXiv 2602.06036; z-lab/dflash). Window rules: see `masks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from remote_payload.errors import CheckpointError

__all__ = ["WINDOW_RULES", "Convention"]

WINDOW_RULES = ("specforge", "speculators", "speculators_noncausal", "none")

_CHOICES: dict[str, tuple[Any, ...]] = {
    "context": ("before_anchor", "through_anchor"),
    "label_offset": (0, 1),
    "in_block": ("bidirectional", "causal"),
    "window_rule": ("", *WINDOW_RULES),
    "hidden_norm": (True, False),
}


@dataclass(frozen=True)
class Convention:
    """One drafter's convention.

    Attributes:
        context: the block at anchor s sees features of positions < s (`before_anchor`), or <= s
            (`through_anchor`: a leak that live decoding cannot reproduce).
        block_position_offset: slot k sits at position s + k + this; the context stays where it is.
        hidden_index_offset: layer id L means `hidden_states[L + 1 + this]`.
        label_offset: 0, slot k predicts the token at s + k (k >= 1); 1, slot k predicts s + k + 1 (k >= 0).
        in_block: what the slots of one block see of each other.
        window_rule: how sliding layers count their window; empty, the checkpoint decides.
        hidden_norm: whether the normalisation after `fc` is applied.
    """

    context: str = "before_anchor"
    block_position_offset: int = 0
    hidden_index_offset: int = 0
    label_offset: int = 0
    in_block: str = "bidirectional"
    window_rule: str = ""
    hidden_norm: bool = True

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed or isinstance(value, bool) != isinstance(allowed[0], bool):
                shown = ", ".join(repr(item) for item in allowed)
                raise CheckpointError(f"convention: {name} is {value!r}, it can be {shown}")
        for name in ("block_position_offset", "hidden_index_offset"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise CheckpointError(f"convention: {name} is {value!r}, it has to be a whole number")

    @property
    def drafts_per_block(self) -> int:
        """How many more (or fewer) drafts than block_size - 1 a block yields: `label_offset`."""
        return self.label_offset

    def non_default(self) -> dict[str, Any]:
        """Returns the settings that differ from the published convention, sorted by name."""
        plain, default = asdict(self), asdict(Convention())
        return {name: plain[name] for name in sorted(plain) if plain[name] != default[name]}

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any], where: str = "convention") -> Convention:
        """Reads a record of settings; an unknown name or value raises CheckpointError."""
        known = [f.name for f in fields(cls)]
        unknown = sorted(set(settings) - set(known))
        if unknown:
            raise CheckpointError(
                f"{where}: unknown settings {', '.join(unknown)}; known are {', '.join(known)}"
            )
        return cls(**settings)

    @classmethod
    def from_flags(cls, flags: Iterable[str], base: Mapping[str, Any] | None = None) -> Convention:
        """Reads KEY=VALUE flags over a base record."""
        settings = dict(base or {})
        for flag in flags:
            name, equals, text = flag.partition("=")
            if not equals:
                raise CheckpointError(f"convention: {flag!r} is not KEY=VALUE")
            settings[name.strip().replace("-", "_")] = _parse(text.strip())
        return cls.from_mapping(settings)


def _parse(text: str) -> Any:
    lowered = text.lower()
    if lowered in {"true", "on", "yes"}:
        return True
    if lowered in {"false", "off", "no"}:
        return False
    try:
        return int(text)
    except ValueError:
        return text
