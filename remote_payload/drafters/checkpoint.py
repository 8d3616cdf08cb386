"""A drafter's folder on disk -> config, convention and every tensor accounted for.

What always holds: nothing is initialised, renamed by guess or left out silently. A tensor that is missing,
unknown, of another shape, not finite, or all zero refuses the checkpoint, with every such tensor named; only
names given in `forgive` are passed over, and they are listed in the account. No file can run code: pickles
are opened with weights_only. Where the files lie and what they call things: `layouts`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from remote_payload.drafters.config import DFlashConfig, read_config
from remote_payload.drafters.heads import target_ids
from remote_payload.drafters.layouts import Source, StoredTensor, find_source
from remote_payload.drafters.layouts.names import resolve
from remote_payload.drafters.layouts.variants import refuse_by_tensors
from remote_payload.drafters.tensors import (
    EMBEDDING,
    HEAD,
    TO_DRAFT,
    TO_TARGET,
    UNUSED,
    Account,
    TensorError,
    expected_tensors,
    own_tensors,
)
from remote_payload.durable import ProtocolError, read_json, tree_hash
from remote_payload.errors import CheckpointError

if TYPE_CHECKING:
    from remote_payload.drafters.convention import Convention

__all__ = [
    "EMBEDDING",
    "Account",
    "Checkpoint",
    "Stamps",
    "check_headers",
    "checkpoint_files",
    "drafter_hash",
    "effective_rule",
    "expected_tensors",
    "file_stamps",
    "load_checkpoint",
    "read_declared",
]

Stamps = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True)
class Checkpoint:
    """A loaded drafter: tensors in float precision as stored, under their z-lab names.

    `own_embedding` [V, H] and `own_head` [V', H] are set where the checkpoint has its own instead of the
    target's; `draft_to_target` [V'] where its head scores a reduced vocabulary.
    """

    path: Path
    config: DFlashConfig
    tensors: dict[str, torch.Tensor]
    account: Account
    own_embedding: torch.Tensor | None = None
    own_head: torch.Tensor | None = None
    draft_to_target: torch.Tensor | None = None


def checkpoint_files(folder: Path, draft_config: Path | None = None) -> list[Path]:
    """Returns the files that a drafter is read from, the config first.

    Raises:
        CheckpointError: the folder, its config or its tensors are not there, or its index names a missing file.
    """
    return list(find_source(folder, draft_config).files)


def drafter_hash(folder: Path, draft_config: Path | None = None) -> str:
    """Returns the drafter's identity: `durable.tree_hash` over what staging makes of its files."""
    return tree_hash(find_source(folder, draft_config).entries())


def file_stamps(folder: Path, draft_config: Path | None = None) -> Stamps:
    """Returns (path, inode, size, modification time in ns) of a drafter's files: they change when it does."""
    statuses = [(str(file), file.stat()) for file in find_source(folder, draft_config).files]
    return tuple((name, s.st_ino, s.st_size, s.st_mtime_ns) for name, s in statuses)


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


def check_headers(
    folder: Path, config: DFlashConfig, *, forgive: Iterable[str] = (), draft_config: Path | None = None
) -> frozenset[str]:
    """Checks names and shapes of a checkpoint's tensors without reading their data, and returns the names.

    Raises:
        CheckpointError: as `load_checkpoint`, but for what only the data can tell.
    """
    stored, account = _stored(find_source(folder, draft_config), config, forgive)
    _refuse_faults(folder, account)
    return frozenset(stored)


def load_checkpoint(
    folder: Path,
    *,
    forgive: Iterable[str] = (),
    draft_config: Path | None = None,
    unchanged_since: Stamps | None = None,
) -> Checkpoint:
    """Loads a drafter strictly.

    Args:
        folder: the checkpoint's folder.
        forgive: exact tensor names whose presence or content is passed over: unknown, non-finite and all-zero
            tensors can be forgiven. A missing one cannot: nothing is filled in.
        draft_config: the config of a raw checkpoint that has none beside it.
        unchanged_since: `file_stamps` of when it was hashed.

    Raises:
        CheckpointError: with the full account of what is wrong, every tensor by name.
    """
    source = find_source(folder, draft_config)
    config = read_config(source.config)
    stored, account = _stored(source, config, forgive)
    _refuse_faults(folder, account)
    tensors = {name: _read(tensor, folder) for name, tensor in stored.items()}
    if unchanged_since is not None and file_stamps(folder, draft_config) != unchanged_since:
        raise CheckpointError(
            f"{folder}: its files changed since they were hashed; evaluate a copy, or wait until it is finished"
        )
    _judge_content(tensors, account, set(forgive))
    _refuse_faults(folder, account)
    own = {name: tensors.pop(name, None) for name in own_tensors(config)}
    if (rows := own[EMBEDDING]) is not None and float(rows[config.mask_token_id].float().norm()) < 1e-6:
        raise CheckpointError(
            f"{folder}: row {config.mask_token_id} of its own {EMBEDDING} (the mask token's) is zero; every mask slot "
            "would be blank. Export the embedding that training used"
        )
    ids = None
    if (d2t := own[TO_TARGET]) is not None:
        ids = target_ids(d2t, own[TO_DRAFT], config.vocab_size, folder, forgive)
    if config.draft_vocab_size is None:
        if ids is not None and not torch.equal(ids, torch.arange(config.vocab_size)):
            raise CheckpointError(
                f"{folder}: d2t maps a vocabulary, but {source.config.name} declares no draft_vocab_size; add it"
            )
        ids = None
    return Checkpoint(folder, config, tensors, account, own[EMBEDDING], own[HEAD], ids)


def _stored(
    source: Source, config: DFlashConfig, forgive: Iterable[str]
) -> tuple[dict[str, StoredTensor], Account]:
    """Returns the tensors that are to be loaded, and the account as far as names and shapes tell."""
    expected, own = expected_tensors(config), own_tensors(config)
    found = resolve(source.tensors(), expected, source.folder)
    refuse_by_tensors(found, source.folder)
    shapes = {**expected, **own}
    needed = set(expected) | ({HEAD, TO_TARGET} if config.draft_vocab_size else set())
    unused = {name for name in found if UNUSED.fullmatch(name)}
    known = sorted(set(found) & set(shapes))
    allowed = set(forgive)
    account = Account(
        missing=sorted(needed - set(found)),
        unknown=sorted(set(found) - set(shapes) - unused - allowed),
        misshapen=[
            f"{name} {found[name].shape} instead of {shapes[name]}"
            for name in known
            if found[name].shape != shapes[name]
        ],
        forgiven=sorted(allowed),
        unused=sorted(unused),
    )
    return {name: found[name] for name in known}, account


def _read(tensor: StoredTensor, folder: Path) -> torch.Tensor:
    try:
        return tensor.load()
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"{folder}: {tensor.name} cannot be read ({error}); is the file still written?"
        ) from error


def _judge_content(tensors: dict[str, torch.Tensor], account: Account, forgive: set[str]) -> None:
    """Fills in what only the data can tell. The vocabulary maps are judged by `target_ids`."""
    for name in sorted(tensors):
        tensor = tensors[name]
        if name in (TO_DRAFT, TO_TARGET):
            account.loaded.append(name)
        elif not tensor.is_floating_point():
            account.misshapen.append(f"{name} of type {tensor.dtype} instead of a floating-point one")
        elif name not in forgive and not bool(torch.isfinite(tensor).all()):
            account.not_finite.append(name)
        elif name not in forgive and not name.endswith(".bias") and not bool(tensor.any()):
            account.all_zero.append(name)
        else:
            account.loaded.append(name)


def _refuse_faults(folder: Path, account: Account) -> None:
    faults = account.faults()
    if faults:
        raise TensorError(
            f"{folder}: the tensors are not those of its config.json. "
            + "; ".join(faults)
            + ". Fix the export; nothing is initialised in their place (--forgive NAME passes over one that is "
            "unknown, not finite or all zero)",
            account,
        )


def effective_rule(config: DFlashConfig, convention: Convention) -> tuple[str, bool]:
    """Returns the window rule in force, and whether it was assumed (neither declared nor in the config)."""
    if convention.window_rule:
        return convention.window_rule, False
    return config.window_rule, "window_rule" in config.assumed
