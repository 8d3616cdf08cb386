"""What each departure would mean: in the training code, in an evaluation script, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

__all__ = ["SLUGS", "Meaning", "meaning"]


class Meaning(NamedTuple):
    """Sentences about a departure.

    what: what was done to the drafter. training: what its training code would have done. script: what an
    evaluation script that does the opposite gets wrong. mend: what to change in the training code. config: what to
    change in config.json instead, where that makes it the declared way; else "".
    """

    what: str
    training: str
    script: str
    mend: str
    config: str = ""


def _layers(p: Mapping[str, Any]) -> Meaning:
    offset = p["offset"]
    layer = f"layer id {p['layer']}" if "layer" in p else "every layer id"
    entry = {-1: "hidden_states[id]", 0: "hidden_states[id + 1]", 1: "hidden_states[id + 2]"}.get(
        offset, f"hidden_states[id + 1 + ({offset})]"
    )
    # A single layer's offset is relative to how the others are read.
    return Meaning(
        f"{layer} read as {entry}",
        f"training read {entry} for {layer}: hidden_states[0] is the embedding, so the output of layer `id` is hidden_states[id + 1]",
        "reads the output of another layer than training did (speculators' ids are one more than z-lab's)",
        "read hidden_states[id + 1], or state the ids that were really read",
        f"add {offset} to {layer} in target_layer_ids" if offset else "",
    )


def _mask(p: Mapping[str, Any]) -> Meaning:
    what = "a zero row" if p["id"] < 0 else f"token {p['id']} ({p['value']})"
    return Meaning(
        f"mask slots hold {what}",
        f"training filled the mask slots with {what}",
        "looks the mask token up elsewhere (tokenizer, an embedding row that was added later)",
        "use one mask token id in training and in config.json",
        "" if p["id"] < 0 else f"set mask_token_id to {p['id']}",
    )


def _label(p: Mapping[str, Any]) -> Meaning:
    offset = p["offset"]
    if not offset:
        return Meaning(
            "slot k predicts the token at anchor + k",
            "training's slot k predicted the token at its own position",
            "reads every row one token too early",
            "nothing: this is the published convention",
        )
    where = "k + 1" if offset > 0 else "k - 1"
    return Meaning(
        f"slot k predicts the token at anchor + {where}",
        f"training's labels were shifted: slot k was compared with the token at anchor + {where} (a next-token loss "
        "shifts labels once more)"
        if offset > 0
        else f"training's labels were shifted: slot k was compared with the token at anchor + {where}",
        "takes the rows one slot off",
        "compare slot k with the token at anchor + k, without a further shift",
    )


def _theta(p: Mapping[str, Any]) -> Meaning:
    return Meaning(
        f"rope theta {p['value']:g}",
        f"training rotated with theta {p['value']:g}, whatever the config says (a reader that does not know "
        "rope_parameters falls back to its default)",
        "reads rope_theta where the config has rope_parameters, or the other way round",
        "write the theta that was used into config.json, in both spellings",
        f"set rope_theta to {p['value']:g} (and rope_parameters.rope_theta, where it is there)",
    )


def _simple(
    what: str, training: str, script: str, mend: str, config: str = ""
) -> Callable[[Mapping[str, Any]], Meaning]:
    def fill(parameters: Mapping[str, Any]) -> Meaning:
        return Meaning(*(text.format(**parameters) for text in (what, training, script, mend, config)))

    return fill


_MEANINGS: dict[str, Callable[[Mapping[str, Any]], Meaning]] = {
    "anchor_in_context": _simple(
        "the anchor's own feature is in the context",
        "training let the block see the anchor's own feature (kv <= anchor, where kv < anchor is meant): decoding "
        "cannot have it, it is what the verification of the anchor computes",
        "slices the context through the anchor",
        "attend to context positions strictly before the anchor; a drafter that has learned otherwise has to be trained on",
    ),
    "context_short": _simple(
        "the newest feature, of anchor - 1, is not in the context",
        "training's context ended one position early (kv < anchor - 1)",
        "drops the feature that came last (one forward pass behind)",
        "attend to all positions before the anchor",
    ),
    "no_context": _simple(
        "only the newest context feature is seen",
        "training showed one feature, not the whole context",
        "passes the last hidden state alone, or does not grow its cache",
        "give the block all positions before the anchor",
    ),
    "context_order": _simple(
        "the context's features at {value} positions",
        "training had its context in another order ({value})",
        "concatenates or sorts the context wrongly",
        "keep features at their own positions",
    ),
    "positions_plus1": _simple(
        "block positions + 1: slot k at anchor + k + {offset}",
        "training's block began one position late (ctx_len + 1, counting the anchor twice)",
        "counts the anchor into the context's length",
        "let the block's positions begin at the anchor's own, the context's length",
    ),
    "positions_minus1": _simple(
        "block positions - 1: slot k at anchor + k + {offset}",
        "training's block began one position early",
        "counts positions from the last context token",
        "let the block's positions begin at the anchor's own, the context's length",
    ),
    "positions_zero": _simple(
        "block positions from 0",
        "training numbered the slots of every block from 0",
        "builds position ids from the block alone",
        "pass absolute positions, anchor ... anchor + B - 1",
    ),
    "layer_minus1": _layers,
    "layer_plus1": _layers,
    "layers_reversed": _simple(
        "the layers' features in reverse order",
        "training concatenated the layers in the opposite order",
        "concatenates features in the order of its hooks, not of target_layer_ids",
        "concatenate in the order of target_layer_ids",
        "reverse target_layer_ids",
    ),
    "label_shift": _label,
    "causal_block": _simple(
        "attention inside the block {value}",
        "training's block was {value} inside",
        "passes the other mask (is_causal) for the block",
        "let every slot of a block see all of it",
    ),
    "cross_block": _simple(
        "blocks of one sequence see each other ({value})",
        "training packed many blocks of a sequence into one pass without a mask between them: slots read the answer "
        "off the anchors of other blocks. No harness can run it: decoding has one block",
        "nothing: the script is right, the training accuracy is not",
        "mask every block's slots against all other blocks, and train again",
    ),
    "no_hidden_norm": _simple(
        "hidden_norm applied: {value}",
        "training's hidden_norm after fc was applied: {value}",
        "leaves hidden_norm out, or applies it twice",
        "apply hidden_norm after fc in training and in decoding",
    ),
    "no_final_norm": _simple(
        "final norm applied: {value}",
        "training's final norm was applied: {value}",
        "leaves the last norm out",
        "apply the final norm before the head",
    ),
    "rope_theta": _theta,
    "rope_partial": _simple(
        "rope turns {value:g} of a head's dimensions",
        "training rotated a share of {value:g} of each head (partial_rotary_factor)",
        "ignores partial_rotary_factor, or takes the target's",
        "write the factor that was used into config.json",
        "set partial_rotary_factor to {value:g}",
    ),
    "rope_interleaved": _simple(
        "rope pairs neighbouring dimensions",
        "training rotated interleaved pairs (2i, 2i + 1)",
        "uses the other rotary kernel",
        "rotate halves, as Qwen3 does",
    ),
    "mask_token": _mask,
    "window_rule": _simple(
        "window rule {value}",
        "training's sliding layers followed the rule {value}",
        "counts the window otherwise, or ignores it (sdpa without a mask)",
        "state the rule beside the checkpoint",
    ),
    "block_size": _simple(
        "blocks of {value}",
        "training had blocks of {value}",
        "drafts with another number of mask slots",
        "write the block size that was used into config.json",
        "set block_size to {value}",
    ),
    "embedding_scale": _simple(
        "the block's embeddings times {value}",
        "training scaled the block's embeddings by {value}",
        "takes embeddings without the scale that the target's forward applies, or with one",
        "use the target's embeddings as they enter its first layer",
    ),
    "head": _simple(
        "the {value} scores",
        "training scored with the target's {value}",
        "ties the head to the embedding although the target does not",
        "score with the target's own head",
    ),
}

_OF_FILES: dict[str, Meaning] = {
    "tensor_missing": Meaning(
        "a tensor of the config is missing or all zero",
        "the export left it out, or it was never loaded when it was saved",
        "fills it at random without a word",
        "export it",
    ),
    "tensor_unknown": Meaning(
        "a tensor is unknown or has another shape",
        "the model had a part that its config does not state",
        "skips it without a word",
        "state it in the config, or export what the config states",
    ),
    "nan": Meaning(
        "a tensor is not finite", "training diverged", "drafts noise", "go back to a checkpoint before it"
    ),
    "fc_random": Meaning(
        "fc is not the one that the layers were trained with",
        "fc was not saved with the rest, or was initialised again",
        "initialises fc at random without a word",
        "export fc from the same step; a random fc has no signature in its weights",
    ),
    "fp16_overflow": Meaning(
        "float16 overflows", "", "runs a bfloat16 model in float16", "run it in bfloat16 or float32"
    ),
    "template": Meaning(
        "another chat template or thinking mode than in training",
        "training rendered its conversations otherwise",
        "renders prompts otherwise than training did",
        "render prompts as in training",
    ),
}
SLUGS = frozenset(_MEANINGS) | frozenset(_OF_FILES)


def meaning(slug: str, parameters: Mapping[str, Any], *, restores: bool = False) -> Meaning:
    """Returns the sentences of a variant.

    Args:
        slug: its slug.
        parameters: its parameters.
        restores: it is the published value of a setting that was declared otherwise.
    """
    if slug == "declared":
        return Meaning("as declared", "", "", "")
    if slug in _OF_FILES:
        return _OF_FILES[slug]
    found = _MEANINGS[slug](parameters)
    if restores:
        return found._replace(
            what=f"{found.what} (the published way)",
            training="training was as published; the declared setting is not this drafter's",
            mend="nothing: drop the declared setting",
        )
    return found
