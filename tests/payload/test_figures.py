"""Diagnostic figures, by hand and by identity."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_payload.figures import (
    by_context_length,
    by_output_position,
    conditional_survival,
    duplicate_rates,
    repeated_share,
)
from remote_payload.protocol import Row
from remote_payload.summary import summarize
from remote_payload.tau import Walk, survival
from tests.payload.test_protocol import ROW


def _row(prompt_tokens: int, lengths: list[int]) -> Row:
    return Row(**{**ROW, "prompt_tokens": prompt_tokens, "accept_lengths": lengths})


def test_rounds_fall_into_the_bucket_of_their_own_anchor() -> None:
    rows = [_row(14, [1, 3, 8, 2]), _row(64, [4])]
    # Anchors 0, 1, 4, 12 after 14 tokens: contexts 14, 15, 18, 26; and 64.
    assert by_context_length(rows) == {
        "0": {"tau": 2.0, "rounds": 2},
        "16": {"tau": 5.0, "rounds": 2},
        "64": {"tau": 4.0, "rounds": 1},
    }
    assert by_output_position(rows) == {"0": {"tau": 18 / 5, "rounds": 5}}
    assert by_output_position([_row(1, [8, 8, 8, 1])])["16"] == {"tau": 4.5, "rounds": 2}


@given(
    st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=12), min_size=1, max_size=5),
    st.integers(1, 300),
)
def test_buckets_hold_every_round_once(lists: list[list[int]], prompt: int) -> None:
    rows = [_row(prompt, lengths) for lengths in lists]
    for buckets in (by_context_length(rows), by_output_position(rows)):
        assert sum(b["rounds"] for b in buckets.values()) == sum(map(len, lists))
        assert sum(b["tau"] * b["rounds"] for b in buckets.values()) == pytest.approx(
            sum(map(sum, lists)), abs=1e-3
        )


def test_conditional_shares_multiply_to_the_unconditional() -> None:
    walks = [Walk([1, 3, 8, 8, 2], 22)]
    plain = survival(walks, 8)
    product = 1.0
    for share, expected in zip(conditional_survival(plain), plain, strict=True):
        assert share is not None
        product *= share
        assert product == pytest.approx(expected, abs=1e-4)
    assert conditional_survival([0.5, 0.0, 0.0]) == [0.5, 0.0, None]


def test_duplicates_are_counted_in_drafts_and_truth_at_fixed_anchors_only() -> None:
    def sample(draft: list[int], truth: list[int], worst: bool = False) -> dict[str, Any]:
        return {"draft_ids": draft, "truth_ids": truth, "worst": worst}

    samples = [
        sample([5, 5, 5], [5, 6, 7]),
        sample([1, 2, 2], [3, 3, 1]),
        sample([9, 9, 9], [9, 9, 9], worst=True),
    ]
    assert duplicate_rates(samples) == {"draft": 0.75, "truth": 0.25}
    assert duplicate_rates([sample([1], [1])]) is None


def test_looping_text_is_seen() -> None:
    assert repeated_share([[1, 2, 3, 4, 5, 6]]) == 0
    assert repeated_share([[1, 2] * 10]) == pytest.approx(15 / 17, abs=1e-6)
    assert repeated_share([[1, 2]]) is None


def test_the_summary_has_them() -> None:
    (entry,) = summarize([_row(14, [1, 3, 8, 2])])
    chain = entry["shapes"]["chain"]
    assert chain["by_context_length"]["16"]["tau"] == 5.0
    assert chain["conditional_survival"][0] == 0.75
