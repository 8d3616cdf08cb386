"""What a drafter's files say of it, beside what its target's say: tensors, config, tokenizer, head.

What always holds: nothing here is a verdict by itself but a fault of the files; a difference of the two configs
(a drafter may have a rope theta of its own) is a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from remote_payload.diagnose.variants import Facts
from remote_payload.drafters.tensors import TensorError
from remote_payload.fingerprint import template_hash

if TYPE_CHECKING:
    from remote_payload.drafters.checkpoint import Checkpoint
    from remote_payload.errors import CheckpointError
    from remote_payload.plan import Candidate
    from remote_payload.prompts import Tokenizing
    from remote_payload.target import Target

__all__ = [
    "Check",
    "config_checks",
    "fault_of",
    "head_checks",
    "target_facts",
    "tensor_checks",
    "text_checks",
]


class Check(NamedTuple):
    """One thing that was looked at: `state` is ok, note or fault; `values` are the figures behind the sentence."""

    name: str
    state: str
    what: str
    values: Mapping[str, Any] = {}

    def to_json(self) -> dict[str, Any]:
        """Returns the record of a document."""
        return {"check": self.name, "state": self.state, "what": self.what, "values": dict(self.values)}


def fault_of(error: CheckpointError) -> tuple[str | None, Check]:
    """Returns the slug of a refused checkpoint's fault (None if it has no name), and the check that failed."""
    if not isinstance(error, TensorError):
        return None, Check("checkpoint", "fault", str(error))
    account = error.account
    kinds = {
        "nan": account.not_finite,
        "tensor_missing": [*account.missing, *account.all_zero],
        "tensor_unknown": [*account.unknown, *account.misshapen],
    }
    # Missing ones first: unknown names beside missing ones are usually the same tensors under other names.
    slug = next((name for name in ("tensor_missing", "tensor_unknown", "nan") if kinds[name]), None)
    return slug, Check(
        "tensors", "fault", str(error), {name: list(names) for name, names in kinds.items() if names}
    )


def tensor_checks(checkpoint: Checkpoint) -> list[Check]:
    """Accounts for the tensors of a checkpoint that loads, and says how far training moved its scales."""
    account = checkpoint.account
    beside = [f"{len(account.unused)} known and not needed" * bool(account.unused)]
    beside += [f"forgiven: {', '.join(account.forgiven)}"] if account.forgiven else []
    said = "".join(f"; {text}" for text in beside if text)
    moved = scales_moved(checkpoint.tensors)
    return [
        Check(
            "tensors",
            "note" if account.forgiven else "ok",
            f"{len(account.loaded)} loaded, none missing, unknown, misshapen, zero or not finite{said}",
            {"loaded": len(account.loaded), "unused": account.unused, "forgiven": account.forgiven},
        ),
        Check(
            "scales",
            "ok",
            f"normalisation weights lie {moved:.3f} (root mean square) from the 1 that they start at",
            {"from_one": round(moved, 6)},
        ),
    ]


def scales_moved(tensors: Mapping[str, torch.Tensor]) -> float:
    """Returns the root mean square distance of all normalisation weights of the layers from 1."""
    norms = [
        t.float() - 1 for name, t in tensors.items() if "layers." in name and name.endswith("norm.weight")
    ]
    return float(torch.cat([part.flatten() for part in norms]).pow(2).mean().sqrt()) if norms else 0.0


def target_facts(target: Target, tokenizer: Any) -> Facts:
    """Returns what the variants depend on of a target."""
    config = target.config
    parameters = getattr(config, "rope_parameters", None) or {}
    if "full_attention" in parameters:
        parameters = parameters["full_attention"] or {}
    theta = parameters.get("rope_theta", getattr(config, "rope_theta", None))
    partial = parameters.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", None))
    named = {name: getattr(tokenizer, f"{name}_token_id", None) for name in ("pad", "eos", "bos")}
    special = {name: int(token) for name, token in named.items() if token is not None}
    if stops := target.stop_ids():
        special.setdefault("eos", stops[0])
    return Facts(
        num_layers=target.num_layers,
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        tied=target.parts.head.weight.data_ptr() == target.parts.embedding.weight.data_ptr(),
        theta=None if theta is None else float(theta),
        partial=None if partial is None else float(partial),
        special=special,
    )


def config_checks(candidate: Candidate, target: Target, facts: Facts) -> list[Check]:
    """Lays a drafter's config beside its target's."""
    config, rope = candidate.config, candidate.config.rope
    mask = config.mask_token_id
    norm = float(target.embed(torch.tensor(mask, device=target.device)).float().norm())
    others = (
        target.embed(torch.arange(min(target.vocab_size, 4096), device=target.device)).float().norm(dim=-1)
    )
    usual = float(others.median())
    checks = [
        Check(
            "config",
            "ok",
            f"{config.num_layers} layers of width {config.hidden_size}, block {candidate.block_size}, reads layers "
            f"{list(config.target_layer_ids)} of the target's {target.num_layers}",
            {"target_layer_ids": list(config.target_layer_ids), "block_size": candidate.block_size},
        ),
        Check(
            "mask row",
            "ok" if norm > 0.1 * usual else "note",
            f"mask token {mask}: its embedding has norm {norm:.3g}, the median token's has {usual:.3g}",
            {"mask_token_id": mask, "norm": norm, "median_norm": usual},
        ),
    ]
    checks += [
        Check(
            "convention",
            "note",
            f"declared: {', '.join(f'{k}={v}' for k, v in candidate.recorded_convention.items())}",
        )
    ] * bool(candidate.recorded_convention)
    differences = {
        "rope theta": (rope.theta, facts.theta),
        "rope partial factor": (rope.partial, facts.partial),
        "eps": (config.rms_norm_eps, getattr(target.config, "rms_norm_eps", None)),
    }
    for name, (own, theirs) in differences.items():
        if theirs is not None and own != theirs:
            checks.append(
                Check(
                    name,
                    "note",
                    f"the drafter's {name} is {own:g}, the target's {theirs:g}: a drafter may have its own",
                    {"drafter": own, "target": theirs},
                )
            )
    if any(config.windows):
        assumed = "assumed, the checkpoint does not say" if config.assumed else "as the checkpoint says"
        checks.append(
            Check(
                "window",
                "note",
                f"{sum(map(bool, config.windows))} sliding layers, rule {config.window_rule} ({assumed})",
            )
        )
    stated = config.raw.get("dtype") or config.raw.get("torch_dtype")
    if stated and stated != target.dtype_name:
        checks.append(
            Check(
                "dtype",
                "note",
                f"stored as {stated}, run in {target.dtype_name}",
                {"stored": stated, "run": target.dtype_name},
            )
        )
    return checks


def head_checks(checkpoint: Checkpoint, target: Target) -> list[Check]:
    """Says what embeds and scores: the target's, or the drafter's own and how far that is from the target's."""
    own = {"embedding": checkpoint.own_embedding, "head": checkpoint.own_head}
    theirs = {"embedding": target.parts.embedding.weight, "head": target.parts.head.weight}
    checks = []
    for name, rows in own.items():
        if rows is None:
            checks.append(Check(name, "ok", f"{name}: the target's"))
            continue
        reference = theirs[name].detach().cpu()
        if name == "head" and checkpoint.draft_to_target is not None:
            reference = reference[checkpoint.draft_to_target]
        reference = reference[: len(rows)].float()
        apart = float((rows.float() - reference).norm() / reference.norm())
        checks.append(
            Check(
                name,
                "ok" if apart < 1e-2 else "note",
                f"{name}: the drafter's own, {100 * apart:.2g} % from the target's",
                {"relative_difference": apart},
            )
        )
    return checks


def text_checks(target: Target, tokenizing: Tokenizing, *, enable_thinking: bool) -> list[Check]:
    """Fingerprints the tokenizer's files and the chat template."""
    from remote_payload.durable import file_sha256

    files = {name: target.path / name for name in ("tokenizer.json", "tokenizer_config.json")}
    prints = {name: file_sha256(path)[:12] for name, path in files.items() if path.is_file()}
    template = template_hash(tokenizing.template, enable_thinking) if tokenizing.template else None
    said = ", ".join(f"{name} {value}" for name, value in prints.items()) or "the target ships none"
    return [
        Check(
            "tokenizer",
            "ok" if prints else "note",
            f"tokenizer: {said}; chat template: {template or 'none'}",
            {**prints, "template_hash": template, "enable_thinking": enable_thinking},
        )
    ]
