"""Drafts side by side: which anchors, which part is accepted, what is flagged."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.compare.build import Wanted, compare
from orchestrator.compare.load import Source, load
from orchestrator.compare.loops import duplicates, longest_loop
from orchestrator.compare.model import Sample, SampleDraft
from orchestrator.compare.samples import Order, pick_samples, read_order
from orchestrator.errors import ResultsError, UsageError
from tests.orchestrator.compare.folders import row, rows_of, sample_record, write_run

TRUTH = ["def", " f", "(", "x", ")"]


def picked(
    tmp_path: Path,
    records: list[dict[str, object]],
    count: int = 9,
    order: Order = "disagreement",
    search: str = "",
    baseline: str = "a",
) -> tuple[Sample, ...]:
    rows = [*rows_of("a", 2.0, range(6)), *rows_of("b", 3.0, range(6))]
    loaded = load([Source(write_run(tmp_path / "run", rows, samples=records))])
    return pick_samples(loaded.runs, compare(loaded, Wanted(baseline)), count, order, search)


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
    records = [
        sample_record(name, spaces, truth, anchor=anchor)
        for name in "ab"
        for anchor, truth in ((0, spaces), (32, TRUTH))
    ]
    samples = picked(tmp_path, records, order="prompt")
    assert [[draft.repeats for draft in sample.drafts] for sample in samples] == [[0, 0], [4, 4]]


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


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"draft_pieces": ["one"]}, "draft_pieces"),
        ({"draft_pieces": 5}, "draft_pieces"),
        ({"draft_ids": [True] * 5}, "draft_ids"),
        ({"context_ids": None}, "context_ids"),
        ({"anchor": 1.5}, "turn, sample or anchor"),
        ({"prompt_hash": ["x"]}, "drafter_hash, prompt_id, prompt_hash"),
        ({"truth": ["x"]}, "context, truth or engine"),
        ({"engine": [1]}, "context, truth or engine"),
        ({"schema": []}, "schema"),
    ],
)
def test_a_broken_sample_is_refused_with_its_line(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    records = [sample_record("a", TRUTH, TRUTH), {**sample_record("b", TRUTH, TRUTH), **change}]
    with pytest.raises(ResultsError, match=rf"samples\.jsonl:2: .*{said}"):
        picked(tmp_path, records)


def anchors_and_worst() -> list[dict[str, object]]:
    """Two anchors that both drafters have, a worst round of b alone, and an anchor that is a's worst as well."""
    wrong, half = ["no"] * 5, ["def", " f", "no", "no", "no"]
    return [
        sample_record("a", TRUTH, TRUTH, anchor=0),
        sample_record("b", half, TRUTH, anchor=0),
        sample_record("a", half, TRUTH, anchor=32),
        sample_record("b", wrong, TRUTH, anchor=32),
        sample_record("a", half, TRUTH, anchor=32, worst=True),
        sample_record("b", wrong, TRUTH, anchor=41, worst=True),
    ]


def test_the_largest_loss_is_first_and_worst_rounds_are_among_them(tmp_path: Path) -> None:
    samples = picked(tmp_path, anchors_and_worst(), order="worst")
    assert [(s.kind, s.anchor, s.loss) for s in samples] == [
        ("worst", 41, 5),  # alone: against the target's own text
        ("anchor", 0, 3),
        ("anchor", 32, 2),
    ]
    assert [[(d.name, d.worst) for d in s.drafts] for s in samples] == [
        [("b", True)],
        [("a", False), ("b", False)],
        [("a", True), ("b", False)],
    ]


def test_without_the_baseline_a_loss_is_against_the_best(tmp_path: Path) -> None:
    samples = picked(tmp_path, anchors_and_worst(), order="worst", baseline="none")
    assert [(s.anchor, s.loss) for s in samples] == [(41, 5), (0, 3), (32, 2)]
    gains = picked(tmp_path / "gains", anchors_and_worst(), order="worst", baseline="b")
    assert {s.loss for s in gains} == {0}, "where the candidate is better nothing is lost"


def test_in_the_order_of_prompts_everything_has_its_place(tmp_path: Path) -> None:
    other = {"prompt_id": "prompt-2", "prompt_hash": "h2"}
    records = anchors_and_worst() + [sample_record(name, TRUTH, TRUTH, **other) for name in "ab"]
    samples = picked(tmp_path, records, order="prompt")
    assert [(s.prompt_id, s.anchor) for s in samples] == [
        ("prompt-00", 0),
        ("prompt-00", 32),
        ("prompt-00", 41),
        ("prompt-2", 32),
    ]


def test_the_fixed_anchors_stay_those_that_all_drafters_have_whatever_is_worst(tmp_path: Path) -> None:
    assert [(s.kind, s.anchor) for s in picked(tmp_path, anchors_and_worst())] == [
        ("anchor", 0),
        ("anchor", 32),
    ]


@pytest.mark.parametrize(("search", "anchors"), [("NONO", [32]), ("def f(", [32, 0]), ("absent", [])])
def test_samples_are_searched_in_any_case(tmp_path: Path, search: str, anchors: list[int]) -> None:
    records = anchors_and_worst()
    records[1:2] = [sample_record("b", TRUTH, TRUTH, anchor=0)]
    assert [s.anchor for s in picked(tmp_path, records, search=search)] == anchors


def test_a_sample_is_of_the_engine_that_it_names(tmp_path: Path) -> None:
    """Both engines in one run: only one of them kept samples, and the records say which."""
    rows = [one for engine in ("live", "replay") for one in rows_of("a", 2.0, range(6), engine=engine)]
    record = {**sample_record("a", TRUTH, TRUTH), "engine": "replay"}
    loaded = load([Source(write_run(tmp_path / "run", rows, samples=[record]))])
    (sample,) = pick_samples(loaded.runs, compare(loaded, Wanted()), 3)
    assert [draft.name for draft in sample.drafts] == ["a [replay]"]


def test_only_drafts_of_rows_that_pass_the_filters_are_shown(tmp_path: Path) -> None:
    where = ({"dataset": "code", "prompt_id": "p1"}, {"dataset": "prose", "prompt_id": "p2", "turn": 1})
    records = [
        sample_record(name, TRUTH, TRUTH, prompt_hash=own["prompt_id"], **own)
        for name in "ab"
        for own in where
    ]
    rows = [
        row(name, str(own["prompt_id"]), [2, 3], dataset=own["dataset"], turn=own.get("turn", 0))
        for name in "ab"
        for own in where
    ]
    loaded = load([Source(write_run(tmp_path / "run", rows, samples=records))])
    for text, shown in (
        ("dataset=co*", "p1"),
        ("prompt!=p1", "p2"),
        ("turn>=1", "p2"),
        ("sample=0", "p1 p2"),
    ):
        whole = compare(loaded, Wanted("a", filters=(text,)))
        found = {sample.prompt_id for sample in pick_samples(loaded.runs, whole, 9, "prompt")}
        assert found == set(shown.split()), text


def test_drafts_on_another_text_of_the_target_do_not_stand_beside_each_other(tmp_path: Path) -> None:
    other = ["def", " g", "(", "y", ")"]
    sources = []
    for temperature, truth in ((0.0, TRUTH), (0.7, other)):
        rows = [one for name in "ab" for one in rows_of(name, 2.0, range(6), temperature=temperature)]
        records = [sample_record(name, TRUTH, truth) for name in "ab"]
        sources.append(Source(write_run(tmp_path / f"t{temperature}", rows, samples=records)))
    loaded = load(sources)
    whole = compare(loaded, Wanted("a", details=frozenset({"temperature"})))
    samples = pick_samples(loaded.runs, whole, 9, "prompt")
    assert [(s.truth, [d.accepted for d in s.drafts]) for s in samples] == [
        ("def f(x)", [5, 5]),
        ("def g(y)", [1, 1]),
    ]
    records = [sample_record("a", TRUTH, TRUTH), sample_record("b", TRUTH, other)]
    assert picked(tmp_path / "differ", records, order="prompt") == ()
    records = [sample_record("a", TRUTH, TRUTH), sample_record("b", TRUTH[:3], TRUTH[:3], block_size=8)]
    (sample,) = picked(tmp_path / "shorter", records)
    assert [draft.accepted for draft in sample.drafts] == [5, 3]
    records = [sample_record("a", TRUTH, TRUTH), sample_record("b", TRUTH, TRUTH, context_ids=[9, 9])]
    assert picked(tmp_path / "context", records) == ()


def test_another_order_is_refused() -> None:
    assert read_order("worst") == "worst"
    with pytest.raises(UsageError, match="--samples-by random: no such order"):
        read_order("random")


@given(st.lists(st.integers(0, 2), max_size=14))
def test_loops_and_duplicates_are_those_of_a_plain_search(ids: list[int]) -> None:
    found = longest_loop(ids)
    best = 0
    for period in (1, 2, 3):
        for start in range(len(ids)):
            piece, times = ids[start : start + period], 0
            while (
                ids[start + (times + 1) * period : start + (times + 2) * period] == piece
                and len(piece) == period
            ):
                times += 1
            best = max(best, times)
    assert found.repeats == best
    assert (found.period == 0) == (best == 0)
    assert duplicates(ids) == sum(ids[place] == ids[place - 1] for place in range(1, len(ids)))


@pytest.mark.parametrize(
    ("past", "flags"),
    [
        ([5, 6, 7], ()),
        ([5, 5, 5], ("loop ×3",)),
        ([5, 5, 5, 6, 7, 7], ("loop ×3", "1 other duplicate")),
        ([5, 6, 5, 6, 5, 6], ("loop of 2 tokens ×3",)),
        ([5, 6, 5, 6, 5, 6, 9, 9], ("loop of 2 tokens ×3", "1 other duplicate")),
    ],
)
def test_a_duplicate_of_a_loop_is_flagged_once(past: list[int], flags: tuple[str, ...]) -> None:
    loop = longest_loop(past)
    draft = SampleDraft(
        "d", 0, tuple(past), None, None, None, duplicates(past), loop.repeats, loop.period, worst=False
    )
    assert draft.flags == flags
