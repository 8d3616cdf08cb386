"""Masks against dense ones, written out position by position from the formulas in the module's table."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_payload.drafters.convention import WINDOW_RULES, Convention
from remote_payload.drafters.masks import block_mask, context_mask


def _sees(kv: int, anchor: int, slot: int, context: str, rule: str, window: int | None) -> bool:
    end = anchor if context == "through_anchor" else anchor - 1
    if kv > end:
        return False
    if window is None or rule == "none":
        return True
    if rule == "specforge":
        return kv >= anchor + slot - (window - 1)
    return kv >= anchor - window


@settings(max_examples=80, deadline=None)
@given(
    anchors=st.lists(st.integers(0, 12), min_size=1, max_size=3),
    length=st.integers(0, 14),
    block=st.integers(1, 5),
    window=st.one_of(st.none(), st.integers(1, 8)),
    rule=st.sampled_from(WINDOW_RULES),
    context=st.sampled_from(["before_anchor", "through_anchor"]),
    in_block=st.sampled_from(["bidirectional", "causal"]),
)
def test_masks_equal_the_written_out_formula(
    anchors: list[int], length: int, block: int, window: int | None, rule: str, context: str, in_block: str
) -> None:
    convention = Convention(context=context, in_block=in_block)
    found = context_mask(torch.tensor(anchors), length, block, convention, rule, window)
    for row, anchor in enumerate(anchors):
        for slot in range(block):
            expected = [_sees(kv, anchor, slot, context, rule, window) for kv in range(length)]
            assert found[row, slot].tolist() == expected
    causal = in_block == "causal" or (window is not None and rule in {"specforge", "speculators"})
    inside = block_mask(block, convention, rule, window, torch.device("cpu"))
    assert inside.tolist() == [[not causal or key <= query for key in range(block)] for query in range(block)]


def test_an_anchor_at_zero_sees_no_context() -> None:
    mask = context_mask(torch.tensor([0]), 4, 3, Convention(), "none", None)
    assert not mask.any()
