"""Evidence that takes measurements of its own: precision, reaction to other inputs, other renderings of the prompts.

What always holds: the drafter is run as it was declared, but for the one thing that is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch

from remote_payload.diagnose.accounts import Check
from remote_payload.diagnose.compared import Compared
from remote_payload.diagnose.probe import Alteration
from remote_payload.diagnose.sweep import Measured
from remote_payload.diagnose.variants import Variant

__all__ = ["numerics", "reactions"]

REACTS = 1e-6
"""Mean change of a slot's log-likelihood, nats, below which an output does not react."""
BETTER = 0.04
"""A gain in another precision beyond which the declared one is at fault."""


def numerics(
    declared: Measured,
    dtype: torch.dtype,
    measure: Callable[[torch.dtype], Measured],
    against: Callable[[Measured, Measured], Compared],
) -> Check:
    """Runs the drafter in another precision: float32, or bfloat16 where it runs in float32.

    Args:
        declared: as it was declared to run, in `dtype`.
        dtype: of target and drafter.
        measure: measures the drafter in a precision.
        against: compares the second one with the first one.
    """
    name = str(dtype).removeprefix("torch.")
    if declared.not_finite:
        slots = sum(part.size for part in declared.nll)
        return Check(
            "numerics",
            "fault",
            f"{declared.not_finite} of {slots} slots have NaN or infinite logits in {name}; run it in bfloat16 or "
            "float32",
            {"not_finite": declared.not_finite, "overflow": dtype == torch.float16},
        )
    other = torch.float32 if dtype != torch.float32 else torch.bfloat16
    compared = against(declared, measure(other))
    said = (
        f"in {str(other).removeprefix('torch.')} instead of {name} the drafter's tau is {compared.tau:.3f} "
        f"({compared.tau_change.delta:+.3f})"
    )
    fault = other == torch.float32 and compared.gain.low > BETTER
    return Check(
        "numerics", "fault" if fault else "ok", said, {"tau": compared.tau, "gain": compared.gain.delta}
    )


def reactions(
    declared: Measured,
    base: Variant,
    measure: Callable[[Variant], Measured],
    swept: Mapping[str, tuple[Variant, Measured]],
) -> Check:
    """Says how far the output moves when the context, the anchor's token or the mask's row is another one.

    Args:
        declared, base: the declared way, measured.
        measure: measures a variant.
        swept: what the sweep has measured already, by name.
    """
    anchor = replace(base, alteration=Alteration(anchor_changed=True))
    moves = {"the anchor's token is another one": _moved(declared, measure(anchor))}
    for words, slug, value in (
        ("the context is shuffled", "context_order", "shuffled"),
        ("the mask's row is zero", "mask_token", "zero"),
    ):
        for variant, measured in swept.values():
            if variant.slug == slug and variant.parameters.get("value") == value:
                moves[words] = _moved(declared, measured)
    dead = [words for words, move in moves.items() if move < REACTS]
    if dead:
        return Check("reaction", "fault", f"the output does not move where {', '.join(dead)}", moves)
    said = "; ".join(f"{move:.2g} nats where {words}" for words, move in moves.items())
    return Check("reaction", "ok", f"the output moves: {said}", moves)


def _moved(first: Measured, second: Measured) -> float:
    """Mean absolute change of the true tokens' log-likelihood, nats."""
    changes = [
        np.abs(np.minimum(a, 50.0) - np.minimum(b, 50.0)) for a, b in zip(first.nll, second.nll, strict=True)
    ]
    return float(np.nanmean(np.concatenate([change.ravel() for change in changes])))
