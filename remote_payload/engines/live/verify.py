"""Verification: one proposal goes through the target, the accepted part stays in its cache, the rest leaves.

Three ways, one result. What always holds after `verify`: the cache stands as if the committed tokens alone
had been decoded; the features returned are those of the committed tokens.

* attention layers only: the whole tree in one pass (`masks`), then the cache is cut to the accepted path.
* recurrent layers: a recurrent state belongs to one sequence, so every root-to-leaf path is its own sequence
  with its own copy of the state, and no node meets a sibling; then the state from before is put back and
  the accepted tokens are run again.
* recurrent layers in a transformers whose multi-token pass forgets the state (before its PR 45513): token by
  token, as far as drafts are accepted; nothing has to be taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from remote_payload.engines.live.caches import (
    check_cache,
    is_recurrent,
    keep_path,
    new_cache,
    restore,
    take_snapshot,
)
from remote_payload.engines.live.forward import CachedForward, Pass
from remote_payload.engines.live.masks import check_trees, tree_mask
from remote_payload.target.passes import pass_length, spans

if TYPE_CHECKING:
    from remote_payload.sampling import Choice
    from remote_payload.shapes import Proposal
    from remote_payload.target import Target

__all__ = ["Verified", "Verifier", "make_verifier", "multi_token_pass_is_exact"]

Choose = Callable[[torch.Tensor, Sequence[int]], "Choice"]
"""(logits [M, V], depths of the M nodes) -> the target's choice after each node."""

PATHS_AT_ONCE = 16
"""Root-to-leaf paths of a recurrent target's tree in one pass: each has its own copy of the cache."""


class Verified(NamedTuple):
    """One round: the accepted nodes (root first), the target's choice after each (the last is the bonus
    token) and how near it was, and the features [len(path), K*H] of the path's tokens."""

    path: list[int]
    choices: list[int]
    gaps: list[float]
    features: torch.Tensor


class Verifier(Protocol):
    """Decodes one sequence after another with one target."""

    def prefill(self, prompt: Sequence[int], indices: Sequence[int]) -> Pass:
        """Starts a sequence: logits [1, 1, V] after the prompt, features [1, T, K*H] of hidden states `indices`."""

    def verify(self, proposal: Proposal, anchor: int, choose: Choose) -> Verified:
        """Runs a round: the anchor's token and the proposal's."""


def make_verifier(target: Target, *, trees: bool = False) -> Verifier:
    """Returns the way that fits the target's layers.

    Args:
        target: the model.
        trees: whether proposals may branch; what cannot verify them is then refused at once.

    Raises:
        TargetError: its cache can be neither cropped nor copied.
        InputError: trees, and an attention implementation that takes no mask of theirs.
    """
    forward = CachedForward(target)
    check_cache(forward.own_cache(), str(target.path))
    if not is_recurrent(new_cache(target.config)):
        if trees:
            check_trees(target.config, target.model.config._attn_implementation)
        return _Attention(target, forward)
    if multi_token_pass_is_exact(target, forward):
        return _Recurrent(target, forward)
    return _TokenByToken(target, forward)


def multi_token_pass_is_exact(target: Target, forward: CachedForward) -> bool:
    """Whether several tokens in one pass after others give what one at a time gives (up to rounding).

    A pass that forgets the recurrent state is off by a large part of the logits' own spread.
    """
    ids = [(7 + 13 * i) % target.vocab_size for i in range(12)]
    split = 7
    logits = []
    for pieces in ([ids[split:]], [[token] for token in ids[split:]]):
        cache, at, given = new_cache(target.config), 0, []
        for piece in [ids[:split], *pieces]:
            given.append(forward.run(cache, [piece], [range(at, at + len(piece))], ()).logits[0])
            at += len(piece)
        logits.append(torch.cat(given[1:]))
    error = (logits[0] - logits[1]).abs().max() / logits[1].std().clamp(min=1e-9)
    return bool(error < (0.01 if target.dtype == torch.float32 else 0.25))


class _Sequence:
    """What the three have in common: a cache, how many positions it holds, which features are wanted."""

    DIVISIBLE = True
    """Whether a long prompt may go in by several passes: wherever a pass may have several tokens at all."""

    def __init__(self, target: Target, forward: CachedForward) -> None:
        self._target, self._forward = target, forward
        self._cache: Any = None
        self._length = 0
        self._indices: tuple[int, ...] = ()

    def prefill(self, prompt: Sequence[int], indices: Sequence[int]) -> Pass:
        self._cache = new_cache(self._target.config)
        self._indices, self._length = tuple(indices), len(prompt)
        pieces = []
        for span in spans(len(prompt), pass_length(len(prompt)) if self.DIVISIBLE else None):
            found = self._run([prompt[span]], [range(span.start, span.stop)], last_only=True)
            pieces.append(found.features)
        return Pass(found.logits, pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1))

    def _run(self, ids: Sequence[Sequence[int]], positions: Sequence[Sequence[int]], **options: Any) -> Pass:
        return self._forward.run(self._cache, ids, positions, self._indices, **options)

    def _round(self, path: list[int], chosen: Choice, features: torch.Tensor) -> Verified:
        """Moves on by a path of node numbers that index `chosen` and `features` [M, K*H]."""
        self._length += len(path)
        whole = len(path) == len(features)
        return Verified(
            path,
            [chosen.tokens[node] for node in path],
            [chosen.gaps[node] for node in path],
            features if whole else features[path],
        )


class _Attention(_Sequence):
    def verify(self, proposal: Proposal, anchor: int, choose: Choose) -> Verified:
        start = self._length
        mask = None if proposal.is_path else self._mask(proposal)
        ids = [anchor, *proposal.tokens[1:]]
        found = self._run([ids], [[start + depth for depth in proposal.depths]], mask=mask)
        chosen = choose(found.logits[0], proposal.depths)
        path = follow(proposal, chosen.tokens)
        keep_path(self._cache, start, path)
        return self._round(path, chosen, found.features[0])

    def _mask(self, proposal: Proposal) -> Any:
        target = self._target
        check_trees(target.config, target.model.config._attn_implementation)
        return tree_mask(
            target.config, proposal.parents, proposal.depths, self._length, target.dtype, target.device
        )


class _Recurrent(_Sequence):
    def verify(self, proposal: Proposal, anchor: int, choose: Choose) -> Verified:
        before, start = take_snapshot(self._cache), self._length
        ids = [anchor, *proposal.tokens[1:]]
        logits, features, branches = self._nodes(proposal, ids, start, before)
        chosen = choose(logits, proposal.depths)
        path = follow(proposal, chosen.tokens)
        # A single branch that was accepted to its end is already what the cache holds.
        if branches > 1 or len(path) < len(ids):
            restore(self._cache, before)
            tokens = [ids[node] for node in path]
            self._run([tokens], [range(start, start + len(tokens))], last_only=True)
        return self._round(path, chosen, features)

    def _nodes(
        self, proposal: Proposal, ids: list[int], start: int, before: Any
    ) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Returns logits [M, V] and features [M, K*H] of every node, and the number of branches."""
        branches = list(_branches(proposal.parents))
        logits: list[torch.Tensor] = [torch.empty(0)] * len(ids)
        features = list(logits)
        for first in range(0, len(branches), PATHS_AT_ONCE):
            group = branches[first : first + PATHS_AT_ONCE]
            if len(branches) > 1:
                restore(self._cache, before, copies=len(group))
            longest = max(len(branch) for branch in group)
            # What fills a shorter branch comes after its last node, which it cannot reach.
            tokens = [[ids[node] for node in [*b, *b[-1:] * (longest - len(b))]] for b in group]
            found = self._run(tokens, [range(start, start + longest)] * len(group))
            for row, branch in enumerate(group):
                for place, node in enumerate(branch):
                    logits[node], features[node] = found.logits[row, place], found.features[row, place]
        return torch.stack(logits), torch.stack(features), len(branches)


class _TokenByToken(_Sequence):
    DIVISIBLE = False

    def verify(self, proposal: Proposal, anchor: int, choose: Choose) -> Verified:
        children = _children(proposal)
        path, node, token = [0], 0, anchor
        chosen: list[tuple[int, float]] = []
        features: list[torch.Tensor] = []
        while True:
            at = self._length + len(features)
            found = self._run([[token]], [[at]], last_only=True)
            choice = choose(found.logits[0], [proposal.depths[node]])
            chosen.append((choice.tokens[0], choice.gaps[0]))
            features.append(found.features[0])
            token = choice.tokens[0]
            following = children.get((node, token))
            if following is None:
                break
            path.append(following)
            node = following
        self._length += len(path)
        tokens, gaps = zip(*chosen, strict=True)
        return Verified(path, list(tokens), list(gaps), torch.cat(features))


def follow(proposal: Proposal, choices: Sequence[int]) -> list[int]:
    """Returns the nodes that the target's choice after each node leads through, the root first."""
    children, path = _children(proposal), [0]
    while (following := children.get((path[-1], choices[path[-1]]))) is not None:
        path.append(following)
    return path


def _children(proposal: Proposal) -> dict[tuple[int, int], int]:
    pairs = zip(proposal.parents, proposal.tokens, strict=True)
    return {pair: node for node, pair in enumerate(pairs) if node}


def _branches(parents: Sequence[int]) -> Iterator[list[int]]:
    """Yields the nodes from the root to each leaf."""
    inner = set(parents)
    for leaf in range(len(parents)):
        if leaf not in inner:
            branch = [leaf]
            while parents[branch[-1]] >= 0:
                branch.append(parents[branch[-1]])
            yield branch[::-1]
