"""A drafter's folder on disk -> config, convention and every tensor accounted for.

What always holds: nothing is initialised, renamed by guess or left out silently. A tensor that is missing,
unknown, of another shape, not finite, or all zero refuses the checkpoint, with every such tensor named; only
names given in `forgive` are passed over, and they are listed in the account. No file is unpickled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from remote_payload.drafters.config import DFlashConfig, read_config
from remote_payload.errors import CheckpointError
from remote_payload.protocol import ProtocolError, file_sha256, read_json, tree_hash

if TYPE_CHECKING:
    from remote_payload.drafters.convention import Convention

__all__ = [
    "Account",
    "Checkpoint",
    "check_headers",
    "checkpoint_files",
    "drafter_hash",
    "effective_rule",
    "expected_tensors",
    "load_checkpoint",
    "read_declared",
]

_WRAPPERS = re.compile(
    r"^(?:_orig_mod\.|module\.|_fsdp_wrapped_module\.|_checkpoint_wrapped_module\.|model\.|draft_model\.|dflash_module\.)"
)


@dataclass(frozen=True)
class Account:
    """What became of every tensor of a checkpoint, by name."""

    loaded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)
    not_finite: list[str] = field(default_factory=list)
    all_zero: list[str] = field(default_factory=list)
    forgiven: list[str] = field(default_factory=list)

    def faults(self) -> list[str]:
        """Returns one line per kind of fault, each with all names."""
        kinds = {
            "missing": self.missing,
            "unknown": self.unknown,
            "wrong shape": self.misshapen,
            "NaN or infinite": self.not_finite,
            "all zero": self.all_zero,
        }
        return [f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names]


@dataclass(frozen=True)
class Checkpoint:
    """A loaded drafter: tensors in float precision as stored, under their z-lab names."""

    path: Path
    config: DFlashConfig
    tensors: dict[str, torch.Tensor]
    account: Account


def expected_tensors(config: DFlashConfig) -> dict[str, tuple[int, ...]]:
    """Returns name -> shape of every tensor that a DFlash drafter of this config has."""
    hidden, heads, kv = (
        config.hidden_size,
        config.num_heads * config.head_dim,
        config.num_kv_heads * config.head_dim,
    )
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, hidden * len(config.target_layer_ids)),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for layer in range(config.num_layers):
        at = f"layers.{layer}."
        for name, width in (("q_proj", heads), ("k_proj", kv), ("v_proj", kv)):
            shapes[f"{at}self_attn.{name}.weight"] = (width, hidden)
            if config.attention_bias:
                shapes[f"{at}self_attn.{name}.bias"] = (width,)
        shapes[f"{at}self_attn.o_proj.weight"] = (hidden, heads)
        if config.attention_bias:
            shapes[f"{at}self_attn.o_proj.bias"] = (hidden,)
        shapes[f"{at}self_attn.q_norm.weight"] = (config.head_dim,)
        shapes[f"{at}self_attn.k_norm.weight"] = (config.head_dim,)
        for name in ("gate_proj", "up_proj"):
            shapes[f"{at}mlp.{name}.weight"] = (config.intermediate_size, hidden)
        shapes[f"{at}mlp.down_proj.weight"] = (hidden, config.intermediate_size)
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{at}{name}.weight"] = (hidden,)
    return shapes


def checkpoint_files(folder: Path) -> list[Path]:
    """Returns the files that make up a drafter: config.json, orch.json if there, its safetensors.

    Raises:
        CheckpointError: the folder, its config or its tensors are not there, or its index names a missing file.
    """
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is not a folder: a drafter is a folder with config.json and safetensors"
        )
    files = [folder / "config.json"]
    if (folder / "orch.json").is_file():
        files.append(folder / "orch.json")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files.append(index)
        try:
            shards = sorted(set(read_json(index)["weight_map"].values()))
        except (ProtocolError, KeyError, AttributeError, TypeError) as error:
            raise CheckpointError(f"{index}: not an index of safetensors ({error})") from error
        if any(Path(str(shard)).name != shard for shard in shards):
            raise CheckpointError(f"{index}: names a file outside its folder")
        files += [folder / shard for shard in shards]
    elif (folder / "model.safetensors").is_file():
        files.append(folder / "model.safetensors")
    else:
        raise CheckpointError(f"{folder} has no model.safetensors (and no index of shards)")
    absent = [file.name for file in files if not file.is_file()]
    if absent:
        raise CheckpointError(
            f"{folder}: {', '.join(absent)} not there; is the checkpoint still being written?"
        )
    return files


def drafter_hash(folder: Path) -> str:
    """Returns the drafter's identity: `protocol.tree_hash` over its files."""
    files = checkpoint_files(folder)
    return tree_hash((file.name, file.stat().st_size, file_sha256(file)) for file in files)


def read_declared(folder: Path) -> dict[str, Any]:
    """Returns the convention settings that `orch.json` beside a checkpoint declares; empty without one."""
    path = folder / "orch.json"
    if not path.is_file():
        return {}
    try:
        record = read_json(path)
    except ProtocolError as error:
        raise CheckpointError(str(error)) from error
    if not isinstance(record, dict) or not isinstance(record.get("convention", {}), dict):
        raise CheckpointError(f'{path}: it has to be an object with "convention": {{setting: value}}')
    return dict(record.get("convention", {}))


def check_headers(folder: Path, config: DFlashConfig) -> None:
    """Checks names and shapes of a checkpoint's tensors without reading their data.

    Raises:
        CheckpointError: as `load_checkpoint`, but for what only the data can tell.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for name, piece in _each_tensor(
        file for file in checkpoint_files(folder) if file.suffix == ".safetensors"
    ):
        shapes[name] = tuple(piece.get_shape())
    expected = expected_tensors(config)
    both = sorted(set(expected) & set(shapes))
    account = Account(
        missing=sorted(set(expected) - set(shapes)),
        unknown=sorted(set(shapes) - set(expected)),
        misshapen=[f"{n} {shapes[n]} instead of {expected[n]}" for n in both if shapes[n] != expected[n]],
    )
    _refuse_faults(folder, account)


def load_checkpoint(folder: Path, *, forgive: Iterable[str] = ()) -> Checkpoint:
    """Loads a drafter strictly.

    Args:
        folder: the checkpoint's folder.
        forgive: exact tensor names whose absence, presence or content is passed over. A forgiven missing
            tensor still has to be one that the model can do without, so it is not filled in: only unknown,
            non-finite and all-zero tensors can be forgiven.

    Raises:
        CheckpointError: with the full account of what is wrong, every tensor by name.
    """
    files = checkpoint_files(folder)
    config = read_config(folder / "config.json")
    tensors = {name: piece[:] for name, piece in _each_tensor(f for f in files if f.suffix == ".safetensors")}
    account = _account(config, tensors, set(forgive))
    _refuse_faults(folder, account)
    return Checkpoint(folder, config, {name: tensors[name] for name in account.loaded}, account)


def _refuse_faults(folder: Path, account: Account) -> None:
    faults = account.faults()
    if faults:
        raise CheckpointError(
            f"{folder}: the tensors are not those of its config.json. "
            + "; ".join(faults)
            + ". Fix the export; nothing is initialised in their place"
        )


def _each_tensor(files: Iterable[Path]) -> Iterator[tuple[str, Any]]:
    """Yields (z-lab name, lazily read slice) of every stored tensor, wrapper prefixes removed."""
    seen: set[str] = set()
    for file in files:
        try:
            with safe_open(str(file), framework="pt", device="cpu") as reader:
                for stored in reader.keys():  # noqa: SIM118 - not a mapping
                    name = stored
                    while match := _WRAPPERS.match(name):
                        name = name[match.end() :]
                    if name in seen:
                        raise CheckpointError(
                            f"{file}: {stored} is there twice once wrapper prefixes are removed"
                        )
                    seen.add(name)
                    yield name, reader.get_slice(stored)
        except (SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(
                f"{file}: cannot be read ({error}); it is truncated or still written"
            ) from error


def _account(config: DFlashConfig, tensors: Mapping[str, torch.Tensor], forgive: set[str]) -> Account:
    expected = expected_tensors(config)
    account = Account(forgiven=sorted(forgive))
    account.missing.extend(sorted(set(expected) - set(tensors)))
    account.unknown.extend(sorted(set(tensors) - set(expected) - forgive))
    for name in sorted(set(expected) & set(tensors)):
        tensor = tensors[name]
        if tuple(tensor.shape) != expected[name]:
            account.misshapen.append(f"{name} {tuple(tensor.shape)} instead of {expected[name]}")
        elif not tensor.is_floating_point():
            account.misshapen.append(f"{name} of type {tensor.dtype} instead of a floating-point one")
        elif name not in forgive and not bool(torch.isfinite(tensor).all()):
            account.not_finite.append(name)
        elif name not in forgive and not name.endswith(".bias") and not bool(tensor.any()):
            account.all_zero.append(name)
        else:
            account.loaded.append(name)
    return account


def effective_rule(config: DFlashConfig, convention: Convention) -> tuple[str, bool]:
    """Returns the window rule in force, and whether it was assumed (neither declared nor in the config)."""
    if convention.window_rule:
        return convention.window_rule, False
    return config.window_rule, "window_rule" in config.assumed
