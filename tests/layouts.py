"""Writes a drafter of `examples/tiny` in every on-disk layout, with the tools that write the real ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

TINY = Path(__file__).parents[1] / "examples" / "tiny"
LAYERS = 2


def plain(name: str = "drafter-b8-final") -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Returns a drafter's config and tensors as z-lab's format has them."""
    return json.loads((TINY / name / "config.json").read_text()), load_file(TINY / name / "model.safetensors")


def write_safetensors(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({key: value.contiguous() for key, value in tensors.items()}, folder / "model.safetensors")
    return folder


def write_sharded(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = sorted(tensors)
    parts = {f"model-0000{i + 1}-of-00003.safetensors": names[i::3] for i in range(3)}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    weights = {name: file for file, part in parts.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    return folder


def optimizer_state(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Returns the state of a real AdamW after a step over these tensors: twice their size and more."""
    parameters = [torch.nn.Parameter(tensor.clone()) for tensor in tensors.values()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer.state_dict()


def training_state(tensors: dict[str, torch.Tensor], step: int = 40) -> dict[str, Any]:
    return {
        "draft_state_dict": tensors,
        "replicated_optimizer_state": optimizer_state(tensors),
        "global_step": step,
        "epoch": 1,
        "strategy": "dflash",
        "run_id": "run",
        "world_size": 2,
    }


def write_raw(
    out: Path,
    config: dict[str, Any] | None,
    tensors: dict[str, torch.Tensor],
    *,
    step: int = 40,
    run: str = "run",
    config_at: str = "draft_config.json",
) -> Path:
    """Writes `<out>/<run>-step<N>/training_state.pt`, rank files, and the link `<run>-latest`."""
    folder = out / f"{run}-step{step}"
    folder.mkdir(parents=True)
    torch.save(training_state(tensors, step), folder / "training_state.pt")
    for rank in range(2):
        torch.save({"rng": torch.get_rng_state()}, folder / f"training_state_rank{rank}.pt")
    if config is not None:
        (out / config_at).write_text(json.dumps(config))
    latest = out / f"{run}-latest"
    latest.unlink(missing_ok=True)
    latest.symlink_to(folder.name)
    return folder


def speculators_config(config: dict[str, Any], draft_vocab: int | None = None, **more: Any) -> dict[str, Any]:
    """Returns a config as speculators writes it: nested sizes, layer ids one more."""
    own = {"dflash_config", "block_size", "num_target_layers", "architectures"}
    dflash = config["dflash_config"]
    return {
        "architectures": ["DFlashSpeculator"],
        "speculators_model_type": "dflash",
        "transformer_layer_config": {key: value for key, value in config.items() if key not in own},
        "draft_vocab_size": draft_vocab or config["vocab_size"],
        "block_size": config["block_size"],
        "aux_hidden_state_layer_ids": [i + 1 for i in dflash["target_layer_ids"]],
        "mask_token_id": dflash["mask_token_id"],
        "sliding_window_non_causal": False,
        "projector_type": "dflash",
        "sample_from_anchor": False,
        "shift_label": False,
        "speculators_config": {"algorithm": "dflash", "verifier": {"name_or_path": "t"}},
        **more,
    }


def target_parts() -> dict[str, torch.Tensor]:
    """Returns the target's embedding and head under the names that speculators gives them."""
    stored = load_file(TINY / "target-tiny" / "model.safetensors")
    return {
        "embed_tokens.weight": stored["model.embed_tokens.weight"],
        "lm_head.weight": stored["lm_head.weight"],
    }


def vocabulary(kept: torch.Tensor, size: int) -> dict[str, torch.Tensor]:
    """Returns t2d and d2t of a draft vocabulary of these target ids (ascending)."""
    t2d = torch.zeros(size, dtype=torch.bool)
    t2d[kept] = True
    return {"t2d": t2d, "d2t": kept - torch.arange(len(kept))}


def write_speculators(
    out: Path,
    config: dict[str, Any],
    tensors: dict[str, torch.Tensor],
    *,
    kept: torch.Tensor | None = None,
    epoch: int = 3,
    own: bool = True,
) -> Path:
    """Writes `<out>/<epoch>/` and the link `checkpoint_best`; `kept` reduces the vocabulary to these ids."""
    parts = target_parts() if own or kept is not None else {}
    size = config["vocab_size"]
    stored = {**tensors, **parts, "verifier_norm.weight": torch.ones(config["hidden_size"])}
    if kept is not None:
        stored["lm_head.weight"] = parts["lm_head.weight"][kept]
        stored |= vocabulary(kept, size)
    folder = write_safetensors(
        out / str(epoch), speculators_config(config, None if kept is None else len(kept)), stored
    )
    best = out / "checkpoint_best"
    best.unlink(missing_ok=True)
    best.symlink_to(folder.name)
    return folder


def fused(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the tensors with q, k, v and gate, up concatenated, as inference engines store them."""
    state = dict(tensors)
    for layer in range(LAYERS):
        at = f"layers.{layer}."
        for into, parts in (
            (f"{at}self_attn.qkv_proj.weight", [f"{at}self_attn.{p}_proj.weight" for p in "qkv"]),
            (f"{at}mlp.gate_up_proj.weight", [f"{at}mlp.{p}_proj.weight" for p in ("gate", "up")]),
        ):
            state[into] = torch.cat([state.pop(part) for part in parts])
    return state


def wrapped(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the tensors under wrapper prefixes, every kind of them, in different orders, also inside."""
    prefixes = [
        "module._orig_mod.", "_orig_mod.module.", "model.", "draft_model._fsdp_wrapped_module.",
        "dflash_module.draft_model.", "_checkpoint_wrapped_module.model.module.", "model.model.", "",
    ]  # fmt: skip
    state = {}
    for number, (name, tensor) in enumerate(sorted(tensors.items())):
        stored = name
        if name.startswith("layers.0."):
            stored = f"midlayer.{name.removeprefix('layers.0.')}"
        elif name.startswith("layers.1.mlp"):
            stored = name.replace("layers.1.", "layers.1._checkpoint_wrapped_module._orig_mod.")
        elif name.startswith("fc."):
            stored = f"encoder.{name}"
        state[prefixes[number % len(prefixes)] + stored] = tensor
    return state
