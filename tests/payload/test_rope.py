"""Rotary embeddings equal transformers' own, and what depends on the text's length is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from remote_payload.drafters.rope import read_rope, rotation
from remote_payload.errors import CheckpointError

WHERE = Path("config.json")
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 3.0},
        YARN,
        {**YARN, "beta_fast": 16.0, "beta_slow": 2.0},
        {**YARN, "attention_factor": 1.25},
        {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5},
        {**YARN, "truncate": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("form", ["rope_parameters", "rope_scaling"])
def test_rotations_equal_transformers(scaling: dict[str, Any], form: str) -> None:
    theta, head = 1e5, 32
    config = Qwen3Config(
        hidden_size=128, num_attention_heads=4, head_dim=head, max_position_embeddings=1024,
        rope_parameters={**scaling, "rope_theta": theta},
    )  # fmt: skip
    positions = torch.arange(0, 1024, 7)
    cos, sin = Qwen3RotaryEmbedding(config)(torch.zeros(1), positions[None])
    raw: dict[str, Any] = {"max_position_embeddings": 1024}
    if form == "rope_parameters":
        raw["rope_parameters"] = {**scaling, "rope_theta": theta}
    else:
        raw |= {"rope_scaling": scaling, "rope_theta": theta}
    found = rotation(positions, head, read_rope(raw, WHERE))
    assert torch.allclose(found[0], cos[0], atol=2e-5, rtol=0)
    assert torch.allclose(found[1], sin[0], atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "neither rope_parameters.rope_theta nor rope_theta"),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}}, "keep the one that training used"),
        ({"rope_theta": 1e4, "rope_scaling": {"rope_type": "dynamic", "factor": 2}}, "rope type 'dynamic'"),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "longrope"}}, "rope type 'longrope'"),
        ({"rope_theta": 1e4, "rope_scaling": {"type": "yarn"}}, "yarn needs factor"),
        ({"rope_theta": 1e4, "max_position_embeddings": 300, "rope_scaling": YARN}, "readers disagree"),
    ],
)  # fmt: skip
def test_what_cannot_be_computed_exactly_is_refused(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_rope(raw, WHERE)


def test_yarn_is_anotherrotation() -> None:
    plain = read_rope({"rope_theta": 1e5}, WHERE)
    yarn = read_rope({"rope_theta": 1e5, "rope_scaling": YARN, "max_position_embeddings": 1024}, WHERE)
    places = torch.tensor([500])
    assert not torch.allclose(rotation(places, 32, plain)[0], rotation(places, 32, yarn)[0], atol=1e-2)
