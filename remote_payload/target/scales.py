"""How a model scales what goes into its first layer and what comes out of its head: read from its behaviour.

Gemma multiplies embeddings by the square root of the hidden size (inside the embedding module in some
versions of transformers, in the model's forward pass in others) and squashes its logits; Granite, Cohere and
Falcon-H1 multiply or divide theirs. The config says which constants exist, not who applies them where. So the
model is run once, with known states put in place of the decoder's, and the rule that gives what it gave is
taken. What always holds afterwards: `embed` is hidden_states[0], `head` of the last hidden state is the
model's logits; a model for which no rule gives that is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from remote_payload.errors import TargetError
from remote_payload.target.anatomy import Anatomy

__all__ = ["LogitRule", "Scales", "read_scales"]

_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
"""Largest deviation, relative to the largest value: some roundings of the precision."""

_PROBED = 8
_MULTIPLIERS = ("logit_scale", "lm_head_multiplier", "logits_scaling")
_DIVISORS = ("logits_scaling",)

Rule = TypeVar("Rule")


class LogitRule(NamedTuple):
    """logits = cap · tanh(factor · raw / divisor / cap), without the parts that are 1 or None."""

    factor: float = 1.0
    divisor: float = 1.0
    cap: float | None = None

    def apply(self, raw: torch.Tensor) -> torch.Tensor:
        """Scales the head's raw output, in its own precision, as models do."""
        if self.factor != 1.0:
            raw = raw * self.factor
        if self.divisor != 1.0:
            raw = raw / self.divisor
        return raw if self.cap is None else torch.tanh(raw / self.cap) * self.cap


class Scales(NamedTuple):
    """What embeddings are multiplied by after the embedding module, and how logits are scaled."""

    embedding: float
    logits: LogitRule


@torch.no_grad()
def read_scales(model: Any, parts: Anatomy, path: Path) -> Scales:
    """Reads a model's scales by one short forward pass.

    Raises:
        TargetError: no known rule gives the model's own embeddings or logits.
    """
    weight = parts.embedding.weight
    ids = torch.arange(_PROBED, device=weight.device)[None] % weight.shape[0]
    rules = list(_logit_rules(parts.config))
    states = _states(parts, [rule.cap for rule in rules if rule.cap])
    first, logits = _run(model, parts, ids, states)
    embedded, raw = parts.embedding(ids), parts.head(states)
    if first.shape != embedded.shape:
        raise TargetError(
            f"{path}: the first layer of {type(model).__name__} gets states of shape {tuple(first.shape)}, its "
            f"embedding gives {tuple(embedded.shape)}; such a target is not supported"
        )
    factors = list(_embedding_factors(parts.config, embedded.dtype))
    factor = _best(factors, lambda factor: embedded * factor, first)
    if factor is None:
        raise TargetError(
            f"{path}: what enters the first layer of {type(model).__name__} is not its token embedding, nor that "
            f"times one of {_shown(factors)}, so a drafter cannot share the embedding; such a target is not "
            "supported"
        )
    rule = _best(rules, lambda rule: rule.apply(raw), logits)
    if rule is None:
        raise TargetError(
            f"{path}: the logits of {type(model).__name__} are not its head's output, nor that scaled by what its "
            f"config says ({', '.join((*_MULTIPLIERS, 'final_logit_softcapping'))}), so drafts cannot be scored; "
            "such a target is not supported"
        )
    return Scales(factor, rule)


def _run(
    model: Any, parts: Anatomy, ids: torch.Tensor, states: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns what enters the first layer for `ids`, and the logits of `states` as last hidden states."""
    entered: list[torch.Tensor] = []

    def watch(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        entered.append(args[0] if args else kwargs["hidden_states"])

    def replace(_module: Any, _args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (states, *output[1:])
        output["last_hidden_state"] = states
        return output

    handles = [
        parts.layers[0].register_forward_pre_hook(watch, with_kwargs=True),
        parts.decoder.register_forward_hook(replace),
    ]
    try:
        logits = model(input_ids=ids, use_cache=False).logits
    finally:
        for handle in handles:
            handle.remove()
    return entered[0], logits


def _states(parts: Anatomy, caps: Sequence[float]) -> torch.Tensor:
    """Returns [1, 8, H] states whose raw logits reach past every cap, where capping shows."""
    weight = parts.embedding.weight
    noise = torch.randn(1, _PROBED, int(parts.config.hidden_size), generator=torch.Generator().manual_seed(0))
    states = noise.to(weight.device, weight.dtype)
    if caps:
        largest = float(parts.head(states).abs().max())
        states = states * (1.5 * max(caps) / max(largest, 1e-6))
    return states


def _embedding_factors(config: Any, dtype: torch.dtype) -> Iterator[float]:
    yield 1.0
    root = float(config.hidden_size) ** 0.5
    # Gemma rounds the root to the model's precision before it multiplies.
    yield float(torch.tensor(root, dtype=dtype))
    yield root
    multiplier = getattr(config, "embedding_multiplier", None)
    if multiplier is not None:
        yield float(multiplier)


def _logit_rules(config: Any) -> Iterator[LogitRule]:
    cap = getattr(config, "final_logit_softcapping", None)
    for bound in (None, float(cap)) if cap else (None,):
        yield LogitRule(cap=bound)
        for names, field in ((_MULTIPLIERS, "factor"), (_DIVISORS, "divisor")):
            for name in names:
                value = getattr(config, name, None)
                if value is not None:
                    yield LogitRule(cap=bound, **{field: float(value)})


def _best(rules: Sequence[Rule], gives: Callable[[Rule], torch.Tensor], wanted: torch.Tensor) -> Rule | None:
    """Returns the rule that comes nearest, if it comes within rounding; of equals the first."""
    largest = max(float(wanted.abs().max()), 1e-12)
    errors = [float((gives(rule) - wanted).abs().max()) / largest for rule in rules]
    smallest = min(errors)
    # Written so that NaN is no match.
    return rules[errors.index(smallest)] if smallest <= _TOLERANCE[wanted.dtype] else None


def _shown(factors: Sequence[float]) -> str:
    return ", ".join(f"{factor:g}" for factor in sorted(set(factors)))
