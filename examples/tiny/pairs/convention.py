"""The conventions under which a drafter can be trained, and must then be run."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["PUBLISHED", "Convention"]

_CHOICES: dict[str, tuple[Any, ...]] = {
    "context": ("before_anchor", "through_anchor", "one_short"),
    "in_block": ("bidirectional", "causal"),
    "label_offset": (0, 1),
}


@dataclass(frozen=True)
class Convention:
    """How a drafter's blocks are laid out; the defaults are the published convention.

    Attributes:
        context: `before_anchor`; `through_anchor`: the anchor's own feature is in the context too; `one_short`: the
            feature before the anchor's is not.
        block_position_offset: added to the positions of the block, the context staying where it is.
        hidden_index_offset: 0 reads the output of layer `id`, -1 its input, 1 the output of the layer above.
        label_offset: 0: slot k predicts position anchor + k; 1: anchor + k + 1, and slot 0 predicts too.
        in_block: `bidirectional`, or `causal`: a slot sees only itself and earlier slots.
        hidden_norm: whether features are normalised after `fc`.
        final_norm: whether the last norm is applied before the head.
        rope_theta: another base of the rotary embedding than the drafter's config says.
        blocks_see_each_other: in training, slots of all blocks of a sequence attend to one another.
    """

    context: str = "before_anchor"
    block_position_offset: int = 0
    hidden_index_offset: int = 0
    label_offset: int = 0
    in_block: str = "bidirectional"
    hidden_norm: bool = True
    final_norm: bool = True
    rope_theta: float | None = None
    blocks_see_each_other: bool = False

    @classmethod
    def parse(cls, settings: Iterable[str]) -> Convention:
        """Reads settings such as `in_block=causal` or `block_position_offset=1`."""
        known = {field.name for field in fields(cls)}
        values: dict[str, Any] = {}
        for setting in settings:
            key, _, text = setting.partition("=")
            if key not in known:
                raise ValueError(f"no setting {key!r} in a convention; there are {', '.join(sorted(known))}")
            values[key] = text if key in ("context", "in_block") else json.loads(text)
        return cls(**values)

    def __post_init__(self) -> None:
        for key, allowed in _CHOICES.items():
            if getattr(self, key) not in allowed:
                raise ValueError(f"{key} is {getattr(self, key)!r}, which is none of {allowed}")

    @property
    def first_row(self) -> int:
        """The first slot that predicts a token."""
        return 1 - self.label_offset

    @property
    def context_end(self) -> int:
        """The end of the context, relative to the anchor's position."""
        return {"before_anchor": 0, "through_anchor": 1, "one_short": -1}[self.context]


PUBLISHED = Convention()
