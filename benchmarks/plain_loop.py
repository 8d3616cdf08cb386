"""A plain speculative loop, prompt by prompt, as the published benchmarks run it: what replay is measured against.

Written for the benchmark alone, on torch and transformers, sharing no code with the payload: a target with a
key/value cache, a DFlash drafter whose context keys and values grow in a cache of its own, verification of a
chain or of a draft tree in one pass, the cache cut back to what was accepted. Greedy, batch size 1.
"""

from __future__ import annotations

import heapq
import inspect
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, DynamicCache

__all__ = ["Drafter", "Target", "decode_plainly", "speculate"]


class Target:
    """A causal language model with hidden states and a cache that can be cut back."""

    def __init__(self, folder: Path, layers: list[int]) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.layers = layers
        self.embed, self.head = self.model.get_input_embeddings(), self.model.get_output_embeddings()
        known = inspect.signature(self.model.forward).parameters
        self._cache_name = "cache" if "cache" in known else "past_key_values"

    def step(
        self,
        ids: torch.Tensor,
        cache: DynamicCache,
        positions: torch.Tensor,
        mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns (argmax of every position [T], drafter features [1, T, K*H])."""
        output = self.model(
            input_ids=ids[None],
            position_ids=positions[None],
            attention_mask=mask,
            use_cache=True,
            output_hidden_states=True,
            **{self._cache_name: cache},
        )
        states = output.hidden_states
        return output.logits[0].argmax(-1), torch.cat([states[layer + 1] for layer in self.layers], dim=-1)


def keep_rows(cache: DynamicCache, rows: torch.Tensor) -> None:
    """Keeps these positions of a cache, in this order."""
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, rows], layer.values[:, :, rows]


@dataclass
class Drafter:
    """A DFlash drafter with a cache of its context's keys and values."""

    folder: Path
    weights: dict[str, torch.Tensor] = field(init=False)
    config: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.config = json.loads((self.folder / "config.json").read_text())
        self.weights = load_file(self.folder / "model.safetensors")
        self.block = int(self.config["block_size"])
        self.mask = int(self.config["dflash_config"]["mask_token_id"])
        self.layers = [int(layer) for layer in self.config["dflash_config"]["target_layer_ids"]]
        self.start()

    def start(self) -> None:
        """Begins a new prompt."""
        self.cached: list[tuple[torch.Tensor, torch.Tensor] | None] = [None] * self.config[
            "num_hidden_layers"
        ]
        self.seen = 0

    def draft(self, target: Target, features: torch.Tensor, anchor: int, token: int) -> torch.Tensor:
        """Returns the logits of slots 1 ... B-1, [B-1, V]; `features` are those since the last call."""
        ids = torch.full((self.block,), self.mask)
        ids[0] = token
        x = target.embed(ids)[None]
        context = self._norm(F.linear(features, self.weights["fc.weight"]), "hidden_norm")
        places = torch.arange(self.seen, self.seen + context.shape[1])
        self.seen += context.shape[1]
        block_places = torch.arange(anchor, anchor + self.block)
        for number in range(self.config["num_hidden_layers"]):
            x = self._layer(number, x, context, places, block_places)
        return target.head(self._norm(x, "norm")[0, 1:])

    def _layer(
        self,
        number: int,
        x: torch.Tensor,
        context: torch.Tensor,
        places: torch.Tensor,
        block_places: torch.Tensor,
    ) -> torch.Tensor:
        at = f"layers.{number}."
        inner = self._norm(x, at + "input_layernorm")
        new_keys = self._rotate(self._heads(context, at, "k_proj", "k_norm"), places)
        new_values = self._heads(context, at, "v_proj")
        old = self.cached[number]
        keys = new_keys if old is None else torch.cat([old[0], new_keys], dim=2)
        values = new_values if old is None else torch.cat([old[1], new_values], dim=2)
        self.cached[number] = (keys, values)
        queries = self._rotate(self._heads(inner, at, "q_proj", "q_norm"), block_places)
        keys = torch.cat(
            [keys, self._rotate(self._heads(inner, at, "k_proj", "k_norm"), block_places)], dim=2
        )
        values = torch.cat([values, self._heads(inner, at, "v_proj")], dim=2)
        mixed = F.scaled_dot_product_attention(queries, keys, values, enable_gqa=True)
        x = x + F.linear(mixed.transpose(1, 2).flatten(2), self.weights[at + "self_attn.o_proj.weight"])
        inner = self._norm(x, at + "post_attention_layernorm")
        gate = F.silu(F.linear(inner, self.weights[at + "mlp.gate_proj.weight"]))
        wide = gate * F.linear(inner, self.weights[at + "mlp.up_proj.weight"])
        return x + F.linear(wide, self.weights[at + "mlp.down_proj.weight"])

    def _heads(self, x: torch.Tensor, at: str, projection: str, norm: str = "") -> torch.Tensor:
        y = F.linear(x, self.weights[f"{at}self_attn.{projection}.weight"])
        y = y.view(*y.shape[:-1], -1, self.config["head_dim"])
        return (self._norm(y, f"{at}self_attn.{norm}") if norm else y).transpose(1, 2)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.config["rms_norm_eps"])

    def _rotate(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        half = self.config["head_dim"] // 2
        speeds = self.config["rope_theta"] ** -(torch.arange(half) / half)
        angles = places[:, None] * speeds
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin


def decode_plainly(target: Target, prompt: list[int], count: int) -> list[int]:
    """Returns `count` greedy tokens, one forward each: the published benchmarks' baseline run."""
    cache = DynamicCache()
    ids, at = torch.tensor(prompt), 0
    tokens: list[int] = []
    while len(tokens) < count:
        best, _ = target.step(ids, cache, torch.arange(at, at + len(ids)))
        at += len(ids)
        ids = best[-1:]
        tokens.append(int(ids))
    return tokens


def speculate(
    target: Target,
    drafter: Drafter,
    prompt: list[int],
    *,
    max_new_tokens: int,
    stops: set[int],
    budget: int = 0,
) -> list[int]:
    """Runs the loop on one prompt and returns its acceptance lengths; `budget` 0 is the chain, else a tree."""
    cache = DynamicCache()
    drafter.start()
    best, features = target.step(torch.tensor(prompt), cache, torch.arange(len(prompt)))
    tokens, lengths = [int(best[-1])], []
    anchor, limit = len(prompt), len(prompt) + max_new_tokens
    while anchor < limit:
        logits = drafter.draft(target, features, anchor, tokens[-1])
        if budget:
            committed, features = _verify_tree(target, cache, logits, anchor, tokens[-1], budget)
        else:
            committed, features = _verify_chain(target, cache, logits, anchor, tokens[-1])
        lengths.append(len(committed))
        tokens += committed
        anchor += len(committed)
        if stops.intersection(tokens):
            break
    return lengths


def _verify_chain(
    target: Target, cache: DynamicCache, logits: torch.Tensor, anchor: int, token: int
) -> tuple[list[int], torch.Tensor]:
    block = torch.cat([torch.tensor([token]), logits.argmax(-1)])
    best, features = target.step(block, cache, torch.arange(anchor, anchor + len(block)))
    agree = (block[1:] == best[:-1]).cumprod(0)
    length = int(agree.sum()) + 1
    keep_rows(cache, torch.arange(anchor + length))
    return best[:length].tolist(), features[:, :length]


def _verify_tree(
    target: Target, cache: DynamicCache, logits: torch.Tensor, anchor: int, token: int, budget: int
) -> tuple[list[int], torch.Tensor]:
    tokens, parents, depths = _best_first(logits, budget)
    ids = torch.tensor([token, *tokens])
    size = len(ids)
    sees = torch.eye(size, dtype=torch.bool)
    for node in range(1, size):
        sees[node] |= sees[parents[node]]
    mask = torch.cat([torch.ones(size, anchor, dtype=torch.bool), sees], dim=1)
    bias = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    best, features = target.step(ids, cache, anchor + torch.tensor(depths), bias[None, None])
    child = {(parents[node], int(ids[node])): node for node in range(1, size)}
    path = [0]
    while (following := child.get((path[-1], int(best[path[-1]])))) is not None:
        path.append(following)
    rows = torch.tensor(path)
    keep_rows(cache, torch.cat([torch.arange(anchor), anchor + rows]))
    return best[rows].tolist(), features[:, rows]


def _best_first(logits: torch.Tensor, budget: int) -> tuple[list[int], list[int], list[int]]:
    top, ids = logits.topk(min(budget, logits.shape[-1]), dim=-1)
    scores = (top - logits.logsumexp(-1, keepdim=True)).tolist()
    names = ids.tolist()
    tokens: list[int] = []
    parents, depths = [-1], [0]
    heap = [(-scores[0][0], (0,), 0)]
    while heap and len(tokens) < budget:
        cost, ranks, parent = heapq.heappop(heap)
        depth, rank = len(ranks), ranks[-1]
        tokens.append(names[depth - 1][rank])
        parents.append(parent)
        depths.append(depth)
        row = scores[depth - 1]
        if rank + 1 < len(row):
            heapq.heappush(heap, (cost + row[rank] - row[rank + 1], (*ranks[:-1], rank + 1), parent))
        if depth < len(scores):
            heapq.heappush(heap, (cost - scores[depth][0], (*ranks, 0), len(tokens)))
    return tokens, parents, depths
