"""The document of a diagnosis, `orch/diagnose/1`: for programs, and, with `report`, for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from remote_payload.diagnose.meanings import meaning
from remote_payload.vocabulary import DIAGNOSE_SCHEMA

if TYPE_CHECKING:
    from remote_payload.diagnose.accounts import Check
    from remote_payload.diagnose.rules import Tried, Verdict
    from remote_payload.protocol import Job

__all__ = ["document"]


def document(
    job: Job,
    verdict: Verdict,
    checks: Sequence[Check],
    *,
    tried: Sequence[Tried] = (),
    facts: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the document.

    Args:
        job: what was asked.
        verdict: what came of it.
        checks: everything that was looked at.
        tried: the sweep; empty where the drafter did not load.
        facts: what else the run learnt (`declared`, `statistics`, `reference`, `cost` ...).
    """
    spec = job.drafters[0]
    # What is named stands first; without a name the candidates stand in the order of their tau.
    chosen = [verdict.chosen] if verdict.chosen else []
    found = [*chosen, *verdict.rivals]
    if verdict.cause is None:
        found.sort(key=lambda one: -one.compared.tau)
    candidates = [_candidate(one) for one in found]
    candidates += [
        {
            "variant": slug,
            "tau": None,
            "delta": None,
            "low": None,
            "high": None,
            "what": meaning(slug, {}).what,
        }
        for slug in verdict.unmeasured
    ]
    record = {
        "schema": DIAGNOSE_SCHEMA,
        "verdict": verdict.verdict,
        "cause": verdict.cause,
        "confidence": verdict.confidence,
        "sentence": verdict.sentence,
        "next": verdict.next,
        "mends": _mends(verdict),
        "candidates": candidates,
        "checks": [check.to_json() for check in checks],
        "sweep": [_candidate(one) for one in sorted(tried, key=lambda one: -one.compared.gain.delta)],
        "drafter": {"label": spec.label, "hash": spec.hash, "source": spec.source or spec.path},
        "target": {"name": job.target.name, "dtype": job.target.dtype},
        "settings": {
            "max_new_tokens": job.max_new_tokens,
            "prompts_hash": job.prompts_hash,
            "enable_thinking": job.enable_thinking,
        },
        "payload_hash": job.payload_hash,
        **(facts or {}),
    }
    return dict(_finite(record))


def _candidate(one: Tried) -> dict[str, Any]:
    variant, compared = one.variant, one.compared
    words = variant.meaning
    change, gain = compared.tau_change, compared.gain
    return {
        "variant": variant.slug,
        **variant.parameters,
        "restores": variant.restores,
        "tau": compared.tau,
        "delta": change.delta,
        "low": change.low,
        "high": change.high,
        "nll": compared.nll,
        "gain": gain.delta,
        "gain_low": gain.low,
        "gain_high": gain.high,
        "score": gain.score,
        "reference_gain": one.reference,
        "what": words.what,
        "training": words.training,
        "script": words.script,
    }


def _mends(verdict: Verdict) -> dict[str, Any] | None:
    """Says both mends of a convention mismatch: the training code, or how this checkpoint is to be run."""
    if verdict.chosen is None or verdict.verdict != "convention":
        return None
    variant = verdict.chosen.variant
    words, settings = variant.meaning, variant.settings
    flags = [f"--convention {name}={_word(value)}" for name, value in (settings or {}).items()]
    if variant.slug == "block_size":
        flags = [f"--block-size {variant.block_size}"]
    return {
        "training": words.mend,
        "flags": flags,
        "convention": settings,
        "config": words.config or None,
        "live": None if settings is None else settings.get("context") != "through_anchor",
    }


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _finite(value: Any) -> Any:
    """Replaces what JSON cannot hold (no interval, no number) by null, and rounds to six places."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value
