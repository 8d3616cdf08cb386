"""Rounds judged all at once equal rounds judged one by one; rows of a pass are arranged soundly."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_payload.drafters.slabs import arrange
from remote_payload.shapes import Draft, accept_many, parse_shape


def _drafts(seed: int, count: int, depth: int, vocab: int, width: int, step: float) -> list[Draft]:
    """Random marginals, sharp and flat ones mixed; `step` > 0 rounds logits so that ties are common."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(count, depth, vocab)) * random.choice(
        [0.3, 3.0, 30.0], size=(count, depth, 1)
    )
    logits = np.round(logits / step) * step if step else logits
    ids = np.argsort(-logits, axis=-1, kind="stable")[:, :, :width]
    logs = np.take_along_axis(logits, ids, -1) - np.log(np.exp(logits).sum(-1, keepdims=True))
    return [Draft(ids[i], logs[i].astype(np.float32)) for i in range(count)]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 12),
    depth=st.integers(1, 7),
    budget=st.integers(1, 40),
    vocab=st.integers(2, 12),
    step=st.sampled_from([0.0, 0.5]),
)
@pytest.mark.parametrize("kind", ["chain", "ddtree", "topk"])
def test_all_at_once_equals_one_by_one(
    kind: str, seed: int, count: int, depth: int, budget: int, vocab: int, step: float
) -> None:
    shape = parse_shape(kind if kind == "chain" else f"{kind}:{budget}")
    drafts = _drafts(seed, count, depth, vocab, min(vocab, shape.candidates + 1), step)
    random = np.random.default_rng(seed + 1)
    truths = []
    for draft in drafts:  # mostly the better candidates, so that rounds go deep
        ranks = np.minimum(random.geometric(0.6, size=depth) - 1, draft.ids.shape[1] - 1)
        truths.append(tuple(int(draft.ids[slot, rank]) for slot, rank in enumerate(ranks)))
    expected = [shape.accept(draft, truth) for draft, truth in zip(drafts, truths, strict=True)]
    assert accept_many(shape, drafts, truths) == expected


def test_trees_are_mostly_judged_without_being_built(monkeypatch: pytest.MonkeyPatch) -> None:
    from remote_payload.shapes import ddtree

    drafts = _drafts(5, 64, 7, 200, 33, 0.0)
    truths = [tuple(int(i) for i in draft.ids[:, 0]) for draft in drafts]
    shape = parse_shape("ddtree:32")
    expected = [shape.accept(draft, truth) for draft, truth in zip(drafts, truths, strict=True)]
    built = []
    real = ddtree.build_tree
    monkeypatch.setattr(ddtree, "build_tree", lambda *args: built.append(1) or real(*args))
    assert accept_many(shape, drafts, truths) == expected
    assert len(built) <= 3
    assert len({one.length for one in expected}) > 2


@settings(max_examples=80, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4000)), min_size=1, max_size=60),
    block=st.integers(1, 16),
)
def test_every_row_is_in_one_slab_and_masks_stay_bounded(rows: list[tuple[int, int]], block: int) -> None:
    trajectories, ends = [t for t, _ in rows], [e for _, e in rows]
    slabs = arrange(trajectories, ends, block)
    assert Counter(row for slab in slabs for row in slab.rows) == Counter(range(len(rows)))
    for slab in slabs:
        assert len(slab.rows) == slab.each * len(slab.trajectories)
        for place, row in enumerate(slab.rows):
            assert trajectories[row] == slab.trajectories[place // slab.each]
            assert ends[row] <= slab.seen
        longest = max(ends[row] for row in slab.rows)
        assert slab.seen == longest
        assert slab.seen + slab.each * block <= 2 * (longest + block)
