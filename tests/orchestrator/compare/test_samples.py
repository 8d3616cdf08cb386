"""Drafts side by side: which anchors, which part is accepted, what is flagged."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.compare.build import Wanted, compare
from orchestrator.compare.load import Source, load
from orchestrator.compare.model import Sample
from orchestrator.compare.samples import pick_samples
from orchestrator.errors import ResultsError
from tests.orchestrator.compare.folders import rows_of, sample_record, write_run

TRUTH = ["def", " f", "(", "x", ")"]


def picked(tmp_path: Path, records: list[dict[str, object]], count: int = 9) -> tuple[Sample, ...]:
    rows = [*rows_of("a", 2.0, range(6)), *rows_of("b", 3.0, range(6))]
    loaded = load([Source(write_run(tmp_path / "run", rows, samples=records))])
    return pick_samples(loaded.runs, compare(loaded, Wanted("a")), count)


def test_the_accepted_part_is_what_equals_the_targets_tokens(tmp_path: Path) -> None:
    records = [sample_record("a", ["def", " g", "(", "x", ")"], TRUTH), sample_record("b", TRUTH, TRUTH)]
    (sample,) = picked(tmp_path, records)
    assert [draft.name for draft in sample.drafts] == ["a", "b"]
    assert [(d.accepted, d.accepted_text, d.rest_text) for d in sample.drafts] == [
        (1, "def", " g(x)"),
        (5, "def f(x)", ""),
    ]
    assert (sample.context, sample.truth, sample.anchor) == ("if x:\n    ", "def f(x)", 32)


def test_largest_disagreement_first_and_only_anchors_that_all_have(tmp_path: Path) -> None:
    wrong = ["no"] * 5
    records = [
        sample_record("a", TRUTH, TRUTH, anchor=0),
        sample_record("b", TRUTH, TRUTH, anchor=0),
        sample_record("a", wrong, TRUTH, anchor=32),
        sample_record("b", TRUTH, TRUTH, anchor=32),
        sample_record("a", wrong, TRUTH, anchor=64),
        sample_record("b", TRUTH, TRUTH, anchor=7, worst=True),
        sample_record("a", TRUTH, TRUTH, anchor=7, worst=True),
    ]
    assert [sample.anchor for sample in picked(tmp_path, records)] == [32, 0]
    assert [sample.anchor for sample in picked(tmp_path / "again", records, 1)] == [32]


@pytest.mark.parametrize(
    ("draft", "repeats"),
    [
        (["elif"] * 3, 2),
        (["Fizz", "Buzz"] * 2, 1),
        (["a", "b", "c"] * 2, 1),
        (["a", "b", "c"], 0),
        (["a", "b", "a"], 0),
    ],
)
def test_loops_are_counted(tmp_path: Path, draft: list[str], repeats: int) -> None:
    (sample,) = picked(tmp_path, [sample_record("a", draft, TRUTH), sample_record("b", TRUTH, TRUTH)])
    assert sample.drafts[0].repeats == repeats


def test_a_loop_that_the_target_writes_too_is_no_fault(tmp_path: Path) -> None:
    spaces = [" "] * 5
    (sample,) = picked(
        tmp_path, [sample_record("a", spaces, spaces), sample_record("b", spaces, TRUTH, anchor=32)]
    )
    assert [draft.repeats for draft in sample.drafts] == [0, 4]


def test_every_prompt_has_its_turn_before_a_second_anchor_of_one(tmp_path: Path) -> None:
    records = [
        sample_record(name, TRUTH if name == "b" else ["no"] * 5, TRUTH, anchor=anchor, **prompt)
        for prompt in ({}, {"prompt_id": "prompt-01", "prompt_hash": "h"})
        for anchor in (0, 32)
        for name in "ab"
    ]
    assert [(s.prompt_id, s.anchor) for s in picked(tmp_path, records)] == [
        ("prompt-00", 0),
        ("prompt-01", 0),
        ("prompt-00", 32),
        ("prompt-01", 32),
    ]


def test_without_a_tokenizer_ids_are_shown(tmp_path: Path) -> None:
    texts = {"draft": None, "draft_pieces": None, "truth": None, "truth_pieces": None, "context": None}
    records = [{**sample_record(name, TRUTH, TRUTH), **texts} for name in "ab"]
    (sample,) = picked(tmp_path, records)
    assert sample.context == "1 2"
    assert sample.drafts[0].accepted_text is None


def test_a_broken_sample_is_refused_with_its_line(tmp_path: Path) -> None:
    records = [sample_record("a", TRUTH, TRUTH), sample_record("b", TRUTH, TRUTH, draft_pieces=["one"])]
    with pytest.raises(ResultsError, match=r"samples\.jsonl:2: draft_pieces"):
        picked(tmp_path, records)
