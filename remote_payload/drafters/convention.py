"""How a drafter was trained, where that differs from the published DFlash convention.

A convention is data: it is declared beside the checkpoint or by flags, recorded in every row, and nothing
in the engines tests for a particular team. The defaults are the published convention (DFlash,
arXiv 2602.06036; z-lab/dflash). Window rules: see `masks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from remote_payload.errors import CheckpointError
from remote_payload.vocabulary import WINDOW_RULES, convention_fault, parse_setting, whole

__all__ = ["WINDOW_RULES", "Convention"]


@dataclass(frozen=True)
class Convention:
    """One drafter's convention.

    Attributes:
        context: the block at anchor s sees features of positions < s (`before_anchor`), <= s
            (`through_anchor`: a leak that live decoding cannot reproduce), or < s - 1 (`one_short`).
        block_position_offset: slot k sits at position s + k + this; the context stays where it is.
        hidden_index_offset: layer id L means `hidden_states[L + 1 + this]`.
        label_offset: 0, slot k predicts the token at s + k (k >= 1); 1, slot k predicts s + k + 1 (k >= 0).
        in_block: what the slots of one block see of each other.
        window_rule: how sliding layers count their window; empty, the checkpoint decides.
        hidden_norm: whether the normalisation after `fc` is applied.
        final_norm: whether the last normalisation, before the head, is applied.
        rope_theta: base of the rotary embedding where it is not the one that config.json states; 0, it is.
    """

    context: str = "before_anchor"
    block_position_offset: int = 0
    hidden_index_offset: int = 0
    label_offset: int = 0
    in_block: str = "bidirectional"
    window_rule: str = ""
    hidden_norm: bool = True
    final_norm: bool = True
    rope_theta: float = 0

    def __post_init__(self) -> None:
        fault = convention_fault(asdict(self))
        if fault:
            raise CheckpointError(f"convention: {fault}")

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
        fault = convention_fault(settings)
        if fault:
            raise CheckpointError(f"{where}: {fault}")
        return cls(**{name: whole(value) for name, value in settings.items()})

    @classmethod
    def from_flags(cls, flags: Iterable[str], base: Mapping[str, Any] | None = None) -> Convention:
        """Reads KEY=VALUE flags over a base record."""
        settings = dict(base or {})
        for flag in flags:
            name, equals, text = flag.partition("=")
            if not equals:
                raise CheckpointError(f"convention: {flag!r} is not KEY=VALUE")
            settings[name.strip().replace("-", "_")] = parse_setting(text.strip())
        return cls.from_mapping(settings)
