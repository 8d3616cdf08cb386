"""How the target chooses its next token: greedily, or by recorded, counter-based noise.

At temperature 0 the choice is the best logit, the smallest id among equal ones. Above it, it is the inverse
of the cumulative distribution at one uniform number, which depends on (seed, prompt, sample, position) and on
nothing else: not on the batch, the device, the engine, or how often the position is visited. Two engines that
compute the same logits therefore choose the same tokens, and a discarded verification leaves no trace.

The distribution is softmax(logits / temperature) restricted to the top-k and then the top-p (nucleus) set
(Holtzman et al., arXiv 1904.09751): the smallest set of most probable tokens whose mass reaches top_p.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch

from remote_payload.errors import InputError, TargetError

__all__ = ["Choice", "Sampling", "Spot", "uniform"]

NEAR_LOGITS = 1e-4
"""A gap between two logits below which float32 rounding could turn a greedy choice."""
NEAR_PROBABILITY = 1e-5
"""A distance from an interval's edge below which rounding of the logits could turn a sampled choice."""


class Spot(NamedTuple):
    """Where a token is chosen: which prompt (by hash), which of its samples, which generated index."""

    prompt: str
    sample: int
    position: int


class Choice(NamedTuple):
    """Chosen tokens, and for each how near the decision was.

    Greedy: the gap of the two best logits. Sampled: the distance of the uniform number from the nearer edge
    of the chosen token's interval (a probability).
    """

    tokens: list[int]
    gaps: list[float]


def uniform(seed: int, spot: Spot) -> float:
    """Returns the uniform number of a spot, in [0, 1): the first 53 bits of a SHA-256."""
    words = f"{seed}\0{spot.prompt}\0{spot.sample}\0{spot.position}".encode()
    (bits,) = struct.unpack(">Q", hashlib.sha256(words).digest()[:8])
    return float(bits >> 11) / float(1 << 53)


@dataclass(frozen=True)
class Sampling:
    """The target's rule. temperature 0 is greedy; top_k 0 and top_p 1 restrict nothing."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise InputError(f"temperature is {self.temperature}, it has to be 0 or more")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p}, it has to be above 0 and at most 1")
        if self.top_k < 0:
            raise InputError(f"top_k is {self.top_k}, it has to be 0 (no limit) or more")

    @property
    def greedy(self) -> bool:
        """Whether no noise is involved."""
        return self.temperature == 0

    @property
    def near(self) -> float:
        """The gap of a `Choice` below which rounding could have turned it."""
        return NEAR_LOGITS if self.greedy else NEAR_PROBABILITY

    def identity(self) -> dict[str, Any]:
        """Returns what a continuation depends on: for greedy decoding nothing but the temperature."""
        return {"temperature": 0.0} if self.greedy else asdict(self)

    def choose(self, logits: torch.Tensor, spots: Sequence[Spot]) -> Choice:
        """Chooses a token for every row.

        Args:
            logits: [N, V] float32.
            spots: N places; they key the noise.

        Raises:
            TargetError: a row's best logit is not finite.
        """
        if not bool(torch.isfinite(logits.amax(-1)).all()):
            raise TargetError("the target's logits are NaN or infinite; try --dtype bfloat16 or float32")
        if self.greedy:
            return _best(logits)
        probabilities = self.probabilities(logits)
        edges = probabilities.cumsum(-1)
        numbers = torch.tensor([uniform(self.seed, spot) for spot in spots], dtype=torch.float64)
        # The last edge is the total, 1 but for rounding: scaling keeps the number inside.
        aim = numbers.to(edges.device)[:, None] * edges[:, -1:]
        tokens = torch.searchsorted(edges, aim, right=True).clamp(max=edges.shape[-1] - 1)
        upper = edges.gather(-1, tokens)
        lower = upper - probabilities.gather(-1, tokens)
        gaps = torch.minimum(upper - aim, aim - lower)[:, 0]
        return Choice(tokens[:, 0].tolist(), gaps.clamp(min=0).tolist())

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns the distribution that is sampled from: [N, V] float64, zero outside the top-k and top-p sets."""
        scaled = logits.double() / self.temperature
        if self.top_k and self.top_k < scaled.shape[-1]:
            least = scaled.topk(self.top_k, dim=-1).values[:, -1:]
            scaled = scaled.masked_fill(scaled < least, float("-inf"))
        probabilities = scaled.softmax(-1)
        if self.top_p < 1:
            ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
            before = ordered.cumsum(-1) - ordered
            kept = torch.zeros_like(probabilities, dtype=torch.bool).scatter(-1, order, before < self.top_p)
            probabilities = probabilities.masked_fill(~kept, 0.0)
            probabilities = probabilities / probabilities.sum(-1, keepdim=True)
        return probabilities


def _best(logits: torch.Tensor) -> Choice:
    best = logits.topk(min(2, logits.shape[-1]), dim=-1).values
    tokens = (logits == best[:, :1]).to(torch.uint8).argmax(-1)
    gaps = best[:, 0] - best[:, -1] if best.shape[-1] > 1 else torch.full_like(best[:, 0], float("inf"))
    return Choice(tokens.tolist(), gaps.tolist())
