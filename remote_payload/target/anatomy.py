"""The parts of a model that a drafter needs, found through the model's own accessors, never by a path.

A multimodal model wraps its text model: sizes are in the text config, the embedding and the decoder belong to
the text model, the head sits at the top. What always holds: `decoder` is the module whose `layers` run one
after another on [N, T, H], and its last hidden state is what `head` scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from remote_payload.errors import TargetError

__all__ = ["Anatomy", "find_parts"]


@dataclass(frozen=True)
class Anatomy:
    """A target's text model: its config, and the modules that are used one by one."""

    config: Any
    decoder: Any
    layers: nn.ModuleList
    embedding: Any
    head: Any


def find_parts(model: Any, path: Path) -> Anatomy:
    """Finds a model's parts.

    Raises:
        TargetError: it is not built of an embedding, a list of decoder layers and a head.
    """
    config = model.config.get_text_config()
    name = type(model).__name__
    # transformers 4 knows only decoders that are called `decoder` or `model`; others are the base model.
    candidates = [
        (part, _layers(part, config.num_hidden_layers)) for part in (model.get_decoder(), model.base_model)
    ]
    decoder, layers = next((found for found in candidates if found[1] is not None), (None, None))
    if decoder is None or layers is None:
        raise TargetError(
            f"{path}: {name} has no list of {config.num_hidden_layers} decoder layers to read features from; a "
            "target has to be a decoder-only language model, or wrap one"
        )
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    for part, found in (("input embedding", embedding), ("output head", head)):
        if getattr(found, "weight", None) is None:
            raise TargetError(f"{path}: {name} has no {part} for a drafter to share")
    widths = {int(embedding.weight.shape[-1]), int(head.weight.shape[-1]), int(config.hidden_size)}
    if len(widths) > 1:
        raise TargetError(
            f"{path}: embedding, layers and head of {name} are not of one width ({sorted(widths)}), so a drafter "
            "cannot share them"
        )
    return Anatomy(config, decoder, layers, embedding, head)


def _layers(decoder: Any, count: int) -> nn.ModuleList | None:
    """Returns the list of decoder layers; it is called `layers` nearly everywhere, `h` or `blocks` elsewhere."""
    lists = {n: m for n, m in decoder.named_children() if isinstance(m, nn.ModuleList) and len(m) == count}
    return lists.get("layers") or next(iter(lists.values()), None)
