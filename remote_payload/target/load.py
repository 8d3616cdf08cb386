"""A folder -> a model, strictly: what the checkpoint lacks is never filled with random numbers.

transformers only warns where tensors are missing and initialises them at random; here that is an error. A
multimodal checkpoint whose text model transformers can load by itself is loaded without its other towers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.utils import logging as transformers_logging

from remote_payload.errors import TargetError

__all__ = ["Loaded", "load_model"]

_LOADING = (OSError, ValueError, KeyError, ImportError, RuntimeError, AttributeError, TypeError)
_NO_SUCH_MAPPING = "Unrecognized configuration class"
_NAMES_SHOWN = 5


class Loaded(NamedTuple):
    """A model on the CPU, and what a reader of its numbers should know about how it was read."""

    model: Any
    notes: list[str]


def load_model(path: Path, *, dtype: torch.dtype, attn: str, trust_remote_code: bool) -> Loaded:
    """Loads a target.

    As a causal language model where transformers has one for the config; else as the architecture that the
    config names; else as an image-and-text model.

    Raises:
        TargetError: transformers cannot load it, or tensors are missing or misshapen (listed by name).
    """
    quiet: Any = transformers_logging
    quiet.disable_progress_bar()
    options = {"trust_remote_code": trust_remote_code, "local_files_only": True}
    try:
        config = AutoConfig.from_pretrained(path, **options)
        for loader in _loaders(config):
            try:
                model, info = loader.from_pretrained(
                    path,
                    config=config,
                    dtype=dtype,
                    attn_implementation=attn,
                    use_safetensors=True,
                    output_loading_info=True,
                    # A class that is named outright takes no such option; it is transformers' own code anyway.
                    **(options if loader.__name__.startswith("Auto") else {"local_files_only": True}),
                )
            except ValueError as error:
                if _NO_SUCH_MAPPING not in str(error):
                    raise
            else:
                return Loaded(model, _account(path, info))
    except _LOADING as error:
        hint = f". Ask for attn: eager instead of {attn}" if "attn_implementation" in str(error) else ""
        raise TargetError(f"{path}: transformers cannot load this target: {error}{hint}") from error
    raise TargetError(
        f"{path}: transformers {transformers.__version__} has no language model for model_type "
        f"{config.model_type!r}; a newer transformers may have one"
    )


def _loaders(config: Any) -> Iterator[Any]:
    yield AutoModelForCausalLM
    for name in config.architectures or []:
        if hasattr(transformers, name):
            yield getattr(transformers, name)
    yield AutoModelForImageTextToText


def _account(path: Path, info: dict[str, Any]) -> list[str]:
    """Raises for what is missing; returns a note for what was left unused."""
    misshapen = sorted(
        str(entry[0] if isinstance(entry, tuple) else entry) for entry in info["mismatched_keys"]
    )
    for what, names in (
        ("missing", info["missing_keys"]),
        ("of another shape than its config says", misshapen),
    ):
        if names:
            raise TargetError(
                f"{path}: {len(names)} tensors are {what}: {_listed(names)}. transformers would fill them with "
                "random numbers; complete the checkpoint"
            )
    unused = info["unexpected_keys"]
    return (
        [f"{path.name}: {len(unused)} tensors of the target are not used: {_listed(unused)}"]
        if unused
        else []
    )


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    rest = len(ordered) - _NAMES_SHOWN
    return ", ".join(ordered[:_NAMES_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
