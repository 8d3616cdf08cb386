"""Figures along a drafter's path on real prompts: what goes in, what each stage makes of it, what comes out.

They say where a path breaks (a layer of zeros, a projection that explodes, an output that does not react to its
input), never by themselves whether a convention fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from remote_payload.diagnose.material import Material
    from remote_payload.diagnose.probe import ProbeDrafter

__all__ = ["path_statistics"]

_ANCHORS = 256


@torch.no_grad()
def path_statistics(material: Material, drafter: ProbeDrafter) -> list[dict[str, Any]]:
    """Returns one record per stage: mean, std and largest magnitude of its values.

    Stages: every auxiliary layer's feature, fc, hidden_norm, the block's input, each layer's output, the final
    norm. Taken over the first batch's context positions, and over up to 256 of its anchors.
    """
    batch = material.batches[0]
    features = material.features(batch, drafter.feature_indices)
    kept = torch.arange(features.shape[1]) < torch.tensor([item.length for item in batch.items])[:, None]
    width = features.shape[-1] // len(drafter.feature_indices)
    stages = [
        _stage(f"hidden_states[{index}]", features[..., i * width : (i + 1) * width][kept])
        for i, index in enumerate(drafter.feature_indices)
    ]
    projected = torch.nn.functional.linear(
        features.to(drafter.device, drafter.dtype), drafter.weight("fc.weight")
    )
    stages.append(_stage("fc", projected[kept]))
    if drafter.convention.hidden_norm:
        stages.append(_stage("hidden_norm", drafter.project(features)[kept]))
    context = drafter.prepare(features)
    step = max(1, len(batch.rows) // _ANCHORS)
    places = list(range(0, len(batch.rows), step))[:_ANCHORS]
    device = drafter.device
    rows, anchors, tokens = (
        torch.tensor([values[place] for place in places], device=device)
        for values in (batch.rows, batch.anchors(), batch.tokens())
    )
    stages.append(_stage("block input", drafter.block_input(tokens)))
    with drafter.watching() as outputs:
        last = drafter.slots(context, rows, anchors, tokens)
    stages += [_stage(f"layer {number}", output) for number, output in enumerate(outputs)]
    stages.append(_stage("final norm", drafter.finish(last)))
    return stages


def _stage(name: str, values: torch.Tensor) -> dict[str, Any]:
    wide = values.float()
    return {
        "stage": name,
        "mean": round(float(wide.mean()), 6),
        "std": round(float(wide.std()), 6),
        "max": round(float(wide.abs().max()), 6),
        "not_finite": int((~wide.isfinite()).sum()),
    }
