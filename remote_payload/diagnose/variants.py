"""What the sweep tries: the neighbours of a declared convention, each with what it would mean.

What always holds: a variant differs from the declared way in one thing; its slug names a departure from the
published convention. Where the variant is the published value and the declared one is not, the slug is the
declared value's and `restores` is set: the harness departs, not the drafter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from remote_payload.diagnose.meanings import Meaning, meaning
from remote_payload.diagnose.probe import Alteration
from remote_payload.vocabulary import WINDOW_RULES

if TYPE_CHECKING:
    from remote_payload.drafters.config import DFlashConfig
    from remote_payload.drafters.convention import Convention

__all__ = ["Facts", "Variant", "neighbours"]

THETAS = (1e4, 1e5, 1e6, 1e7)
PARTIALS = (0.25, 0.5)


@dataclass(frozen=True)
class Facts:
    """What the variants depend on besides the drafter.

    theta, partial: the target's rotary embedding; None where it has none. special: name -> token id of pad, eos,
    bos. num_layers: of the target. tied: whether its head is its embedding.
    """

    num_layers: int
    hidden_size: int
    vocab_size: int
    tied: bool
    theta: float | None = None
    partial: float | None = None
    special: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Variant:
    """One way to run a drafter.

    Attributes:
        slug: what it is called (the module's docstring).
        convention, alteration, block_size: how it is run.
        label_offset: slot k predicts the token at anchor + k + this (the convention's, or -1).
        parameters: `layer`, `offset`, `value`, as far as there are any.
        restores: it is the published value, the declared one is not.
        settings: the convention's settings that make this the declared way; None if no setting does.
    """

    slug: str
    convention: Convention
    alteration: Alteration
    block_size: int
    label_offset: int
    parameters: dict[str, Any] = field(default_factory=dict)
    restores: bool = False
    settings: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """The slug and its parameters, to tell variants of one slug apart."""
        return " ".join([self.slug, *(f"{key}={value}" for key, value in self.parameters.items())])

    @property
    def meaning(self) -> Meaning:
        """What it would mean, in words."""
        return meaning(self.slug, self.parameters, restores=self.restores)


def neighbours(
    config: DFlashConfig,
    convention: Convention,
    block_size: int,
    rule: str,
    facts: Facts,
    *,
    own_head: bool = False,
) -> tuple[Variant, list[Variant]]:
    """Returns the declared way, and everything that is tried beside it.

    Args:
        config: the drafter's.
        convention: as declared.
        block_size: as declared.
        rule: the window rule in force.
        facts: the target's.
        own_head: whether the drafter scores with a head of its own.
    """
    declared = Variant("declared", convention, Alteration(), block_size, convention.label_offset, settings={})
    of = _Around(declared, config, facts)
    return declared, [
        *of.settings(rule),
        *of.layers(),
        *of.context(),
        *of.block(),
        *of.rope(),
        *of.ends(own_head),
    ]


class _Around:
    """Makes the variants of one drafter."""

    def __init__(self, declared: Variant, config: DFlashConfig, facts: Facts) -> None:
        self.base, self.config, self.facts = declared, config, facts

    def _set(self, slug: str, parameters: dict[str, Any], **settings: Any) -> Variant:
        """A variant that is another value of a convention's setting."""
        restores = all(
            value == getattr(type(self.base.convention)(), name) for name, value in settings.items()
        )
        changed = replace(self.base.convention, **settings)
        return replace(
            self.base,
            slug=slug,
            convention=changed,
            label_offset=changed.label_offset,
            parameters=parameters,
            restores=restores,
            settings=settings,
        )

    def _alter(self, slug: str, parameters: dict[str, Any] | None = None, **changes: Any) -> Variant:
        """A variant that no setting makes."""
        return replace(
            self.base,
            slug=slug,
            alteration=replace(self.base.alteration, **changes),
            parameters=parameters or {},
            settings=None,
        )

    # ------------------------------------------------------------------ settings of the convention

    def settings(self, rule: str) -> Iterator[Variant]:
        """Every other value of the settings of domain `Convention`."""
        now = self.base.convention
        slugs = {"through_anchor": "anchor_in_context", "one_short": "context_short"}
        for value in ("before_anchor", "through_anchor", "one_short"):
            if value != now.context:
                slug = slugs.get(value) or slugs[now.context]
                yield self._set(slug, {"value": value}, context=value)
        at = now.block_position_offset
        for offset in sorted({at - 1, at + 1, 0} - {at}):
            sign = "positions_plus1" if (offset or at) > 0 else "positions_minus1"
            yield self._set(sign, {"offset": offset}, block_position_offset=offset)
        at = now.hidden_index_offset
        for offset in sorted({at - 1, at + 1, 0} - {at}):
            if self._inside([layer + 1 + offset for layer in self.config.target_layer_ids]):
                sign = "layer_plus1" if (offset or at) > 0 else "layer_minus1"
                yield self._set(sign, {"offset": offset}, hidden_index_offset=offset)
        yield self._set(
            "label_shift",
            {"offset": 1 - now.label_offset},
            label_offset=1 - now.label_offset,
        )
        if self.base.block_size > 2 and not now.label_offset:
            shifted = self._alter("label_shift", {"offset": -1})
            yield replace(shifted, label_offset=-1)
        other = "bidirectional" if now.in_block == "causal" else "causal"
        yield self._set("causal_block", {"value": other}, in_block=other)
        yield self._set("no_hidden_norm", {"value": not now.hidden_norm}, hidden_norm=not now.hidden_norm)
        yield self._set("no_final_norm", {"value": not now.final_norm}, final_norm=not now.final_norm)
        if any(self.config.windows):
            for value in WINDOW_RULES:
                if value != rule:
                    yield self._set("window_rule", {"value": value}, window_rule=value)

    def _inside(self, indices: list[int]) -> bool:
        return all(0 <= index <= self.facts.num_layers for index in indices)

    # ------------------------------------------------------------------ beyond the settings

    def layers(self) -> Iterator[Variant]:
        """One layer's index off by one; the order of the layers."""
        indices = tuple(
            layer + 1 + self.base.convention.hidden_index_offset for layer in self.config.target_layer_ids
        )
        for place, index in enumerate(indices) if len(indices) > 1 else ():
            for offset in (-1, 1):
                changed = (*indices[:place], index + offset, *indices[place + 1 :])
                if self._inside(list(changed)):
                    slug = "layer_plus1" if offset > 0 else "layer_minus1"
                    layer = self.config.target_layer_ids[place]
                    yield self._alter(slug, {"layer": layer, "offset": offset}, feature_indices=changed)
        if len(indices) > 1:
            yield self._alter("layers_reversed", feature_indices=indices[::-1])

    def context(self) -> Iterator[Variant]:
        """Which features are where."""
        yield self._alter("no_context", context_order="newest")
        for order in ("reversed", "shuffled"):
            yield self._alter("context_order", {"value": order}, context_order=order)
        yield self._alter("positions_zero", positions_from_zero=True)

    def block(self) -> Iterator[Variant]:
        """The block: its size, its mask token, its scale, other blocks."""
        size = self.base.block_size
        sizes = {size // 2, size * 2, self.config.block_size} - {size, 0, 1}
        for other in sorted(sizes):
            yield replace(self._alter("block_size", {"value": other}), block_size=other)
        yield from (self._alter("cross_block", {"value": kind}, blocks=kind) for kind in ("all", "earlier"))
        rows = {"zero": -1, **self.facts.special, "id 0": 0}
        seen: set[int] = {self.config.mask_token_id}
        for name, token in rows.items():
            if token not in seen and self.base.block_size > 1:
                seen.add(token)
                yield self._alter("mask_token", {"value": name, "id": token}, mask=token)
        yield self._alter(
            "embedding_scale",
            {"value": "sqrt(hidden size)"},
            embedding_scale=self.facts.hidden_size**0.5,
        )

    def rope(self) -> Iterator[Variant]:
        """Base, share and pairing of the rotary embedding."""
        now = replace(
            self.config.rope, theta=float(self.base.convention.rope_theta or self.config.rope.theta)
        )
        for theta in sorted(
            {*THETAS, self.config.rope.theta, *([self.facts.theta] if self.facts.theta else [])}
        ):
            if not math.isclose(theta, now.theta):
                value = 0 if theta == self.config.rope.theta else int(theta) if theta.is_integer() else theta
                yield self._set("rope_theta", {"value": theta}, rope_theta=value)
        shares = {1.0, *PARTIALS, *([self.facts.partial] if self.facts.partial else [])}
        for share in sorted(shares - {now.partial}):
            if int(self.config.head_dim * share) >= 2:
                yield self._alter("rope_partial", {"value": share}, rope=replace(now, partial=share))
        yield self._alter("rope_interleaved", rope=replace(now, interleaved=True))

    def ends(self, own_head: bool) -> Iterator[Variant]:
        """What scores the drafter's states."""
        if own_head:
            yield self._alter("head", {"value": "head of the target"}, head="target")
        if not self.facts.tied:
            yield self._alter("head", {"value": "embedding"}, head="embedding")
