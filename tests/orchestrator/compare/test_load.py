"""Run folders to columns: what is taken, what is refused, and that the columns say what the lists say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.compare.columns import DIALECT_TERMS, Series, Shape
from orchestrator.compare.load import Source, load
from orchestrator.errors import ResultsError
from remote_payload import tau
from remote_payload.durable import append_lines
from remote_payload.protocol import DrafterSpec
from tests.orchestrator.compare.folders import drafter_hash, row, rows_of, write_run

walks = st.lists(
    st.tuples(st.lists(st.integers(1, 8), max_size=12), st.integers(1, 60)), min_size=1, max_size=12
)


def one_series(folder: Path) -> Series:
    (series,) = load([Source(folder)]).series
    return series


@settings(max_examples=60, deadline=None)
@given(data=walks)
def test_every_figure_of_the_columns_is_that_of_the_lists(
    data: list[tuple[list[int], int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = [(lengths, min(tokens, 1 + sum(lengths))) for lengths, tokens in data]
    rows = [
        row("d", f"p{i}", lengths, output_tokens=tokens, prompt_hash=f"{i:02d}")
        for i, (lengths, tokens) in enumerate(data)
    ]
    series = one_series(write_run(tmp_path_factory.mktemp("runs") / "run", rows))
    reference = [tau.Walk(lengths, tokens) for lengths, tokens in data]
    for name, (formula, _) in tau.DIALECTS.items():
        terms = series.terms(name)
        total = terms.den.sum()
        ours = terms.num.sum() / total if total else float("nan")
        assert ours == pytest.approx(formula(reference), nan_ok=True), name
    assert series.histogram.tolist() == tau.acceptance_histogram(reference, 8)
    assert series.survival.tolist() == pytest.approx(tau.survival(reference, 8), nan_ok=True)
    assert series.truncated_rounds.tolist() == [len(tau.truncate(walk)) for walk in reference]


def test_every_dialect_has_its_columns() -> None:
    assert DIALECT_TERMS.keys() == tau.DIALECTS.keys()


def test_a_row_in_two_runs_is_taken_once_and_a_disagreement_is_counted(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", [row("d", "p1", [3, 2]), row("d", "p2", [4])])
    again = write_run(tmp_path / "b", [row("d", "p1", [3, 2]), row("d", "p2", [1, 1]), row("d", "p3", [5])])
    loaded = load([Source(first), Source(again)])
    (series,) = loaded.series
    assert (loaded.repeats, loaded.conflicts) == (2, 1)
    assert sorted(series.lengths.tolist()) == [2, 3, 4, 5]


def test_a_row_that_is_twice_in_its_run_is_taken_once_and_another_measurement_is_corruption(
    tmp_path: Path,
) -> None:
    same = write_run(tmp_path / "a", [row("d", "p1", [3, 2]), row("d", "p1", [3, 2])])
    loaded = load([Source(same)])
    assert (loaded.repeats, loaded.doubles) == (0, 1)
    other = write_run(tmp_path / "b", [row("d", "p1", [3, 2]), row("d", "p1", [3, 3])])
    with pytest.raises(ResultsError, match=r"rows\.jsonl:2: this measurement is in the run before"):
        load([Source(other)])


@pytest.mark.parametrize(("lengths", "tokens"), [([], 2), ([3, 2], 7)])
def test_rounds_that_do_not_reach_the_output_are_corruption(
    tmp_path: Path, lengths: list[int], tokens: int
) -> None:
    rows = [row("d", "p1", [3]), row("d", "p2", lengths, output_tokens=tokens)]
    with pytest.raises(ResultsError, match=r"rows\.jsonl:2: accept_lengths commit .* output_tokens is"):
        load([Source(write_run(tmp_path / "a", rows))])


def test_a_file_without_one_whole_row_is_corruption(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", [row("d", "p1", [3])], complete=False)
    (folder / "rows.jsonl").write_bytes(b"\x00\xff junk without an end")
    with pytest.raises(ResultsError, match="no whole row"):
        load([Source(folder)])


def test_rows_that_their_manifest_does_not_know_are_shown_with_the_line_that_is_broken(
    tmp_path: Path,
) -> None:
    folder = write_run(tmp_path / "a", [row("d", "p1", [3]), row("d", "p2", [3])])
    data = (folder / "rows.jsonl").read_bytes()
    (folder / "rows.jsonl").write_bytes(data[:-20] + b"\x00" + data[-19:])
    with pytest.raises(
        ResultsError, match=r"another hash than its manifest; .*rows\.jsonl:2: not valid JSON"
    ):
        load([Source(folder)])


@pytest.mark.parametrize(
    ("seen", "state"), [('{"verdict": "lost"}', "lost"), ("[]", "running"), (None, "running")]
)
def test_a_run_without_an_end_is_what_the_client_saw_of_it(
    tmp_path: Path, seen: str | None, state: str
) -> None:
    folder = write_run(tmp_path / "a", [row("d", "p1", [3])], complete=False, state="running")
    if seen is not None:
        (folder / "seen.json").write_text(seen)
    loaded = load([Source(folder)])
    assert loaded.runs[0].state == state
    assert f"it is {state}" in loaded.warnings[0]


def test_a_run_that_is_given_twice_is_read_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", [row("d", "p1", [3, 2])])
    loaded = load([Source(folder), Source(folder)])
    assert (len(loaded.runs), loaded.repeats) == (1, 0)


def test_two_drafters_of_one_run_can_be_asked_for_one_by_one(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", [row(name, "p1", [3]) for name in ("x", "y", "z")])
    loaded = load([Source(folder, frozenset({"x"})), Source(folder, frozenset({"z"}))])
    assert [series.labels for series in loaded.series if series.labels != ("x",)] == [("z",)]
    assert len(loaded.series) == 2


def test_a_checkpoint_under_two_names_is_one_drafter_with_both(tmp_path: Path) -> None:
    same = drafter_hash("first")
    specs = [DrafterSpec("first", "/a", same), DrafterSpec("second", "/b", same)]
    folder = write_run(tmp_path / "a", [row("first", "p1", [3])], specs=specs)
    assert one_series(folder).labels == ("first", "second")
    (asked,) = load([Source(folder, frozenset({"second"}))]).series
    assert asked.lengths.tolist() == [3]


def test_shape_engine_block_size_and_convention_make_series_of_their_own(tmp_path: Path) -> None:
    rows = [
        row("d", "p1", [3]),
        row("d", "p1", [3], shape="ddtree:4"),
        row("d", "p1", [3], engine="live"),
        row("d", "p1", [3], block_size=4),
        row("d", "p1", [3], convention={"context": "through_anchor"}),
    ]
    assert len(load([Source(write_run(tmp_path / "a", rows))]).series) == 5


def test_turns_of_a_conversation_and_samples_of_a_prompt_are_one_cluster(tmp_path: Path) -> None:
    rows = [
        row("d", "talk", [3], prompt_hash="h1", turn=0),
        row("d", "talk", [2], prompt_hash="h2", turn=1),
        row("d", "alone", [3], prompt_hash="h3", sample=0),
        row("d", "alone", [4], prompt_hash="h3", sample=1),
        row("d", "other", [4], prompt_hash="h4"),
    ]
    series = one_series(write_run(tmp_path / "a", rows))
    assert len(set(series.unit.tolist())) == 5
    first, second, third, fourth, fifth = series.cluster.tolist()
    assert first == second
    assert third == fourth
    assert len({first, third, fifth}) == 3


def test_numbers_do_not_depend_on_the_order_of_the_rows(tmp_path: Path) -> None:
    rows = rows_of("d", 2.5, range(9))
    ours = one_series(write_run(tmp_path / "a", rows))
    theirs = one_series(write_run(tmp_path / "b", rows[::-1]))
    order = np.argsort(theirs.unit)
    assert ours.unit[np.argsort(ours.unit)].tolist() == theirs.unit[order].tolist()
    assert ours.accepted[np.argsort(ours.unit)].tolist() == theirs.accepted[order].tolist()
    assert ours.cluster[np.argsort(ours.unit)].tolist() == theirs.cluster[order].tolist()


@pytest.mark.parametrize(
    ("state", "complete", "said"),
    [("cancelled", True, "it is cancelled"), ("running", False, "it is running")],
)
def test_a_run_that_is_not_complete_is_used_with_a_warning(
    tmp_path: Path, state: str, complete: bool, said: str
) -> None:
    folder = write_run(tmp_path / "a", [row("d", "p1", [3])], state=state, complete=complete)
    loaded = load([Source(folder)])
    assert len(loaded.series) == 1
    assert said in loaded.warnings[0]


def test_a_torn_last_line_of_a_running_job_is_passed_over(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", [row("d", "p1", [3])], state="running", complete=False)
    with (folder / "rows.jsonl").open("a") as stream:
        stream.write('{"schema": "orch/row/1", "draf')
    assert one_series(folder).lengths.tolist() == [3]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"accept_lengths": [3, 9]}, "accept_lengths has 9; chain with block size 8 allows 1 ... 8"),
        ({"accept_lengths": [0]}, "accept_lengths has 0"),
        ({"accept_lengths": [2.5]}, "accept_lengths is not a list of whole numbers"),
        ({"accept_lengths": "x"}, "accept_lengths is 'x', not a list"),
        ({"shape": "ddtree:2", "accept_lengths": [4]}, "ddtree:2 with block size 8 allows 1 ... 3"),
        ({"shape": "bush:2"}, "unknown shape 'bush:2'"),
        ({"block_size": 10**9}, "block_size is 1000000000"),
        ({"prompt_tokens": 2**70}, "prompt_tokens or output_tokens cannot be so large"),
        ({"accept_lengths": [2**70]}, "accept_lengths is not a list of whole numbers"),
        ({"prompt_tokens": -1}, "is negative"),
        ({"turn": "first"}, "turn is 'first', not a whole number"),
        ({"temperature": [1]}, "temperature is [1], not a number"),
        ({"temperature": -1}, "temperature or top_p is no number from 0 on"),
        ({"top_p": 10**400}, "temperature or top_p is no number from 0 on"),
        ({"stop_ids": [None]}, "stop_ids is not a list of token ids"),
        ({"stop_ids": [[1]]}, "stop_ids is not a list of token ids"),
        ({"schema": "orch/row/9"}, "schema 'orch/row/9'"),
        ({"surprise": 1}, "unknown fields surprise"),
        ({"prompt_hash": None}, "prompt_hash is None, not a text"),
    ],
)
def test_a_row_that_cannot_be_is_refused_with_its_line(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    good = row("d", "p1", [3]).to_json()
    folder = write_run(tmp_path / "a", [], complete=False, state="running")
    append_lines(folder / "rows.jsonl", [good, {**good, "prompt_hash": "h2", **change}])
    with pytest.raises(ResultsError) as caught:
        load([Source(folder)])
    assert f"{folder / 'rows.jsonl'}:2: " in caught.value.message
    assert said in caught.value.message
    assert caught.value.exit_code == 7


def test_a_missing_field_and_broken_json_are_refused_with_their_line(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", [row("d", "p1", [3])], complete=False)
    record = row("d", "p2", [3]).to_json()
    del record["dtype"]
    append_lines(folder / "rows.jsonl", [record])
    with pytest.raises(ResultsError, match=r"rows\.jsonl:2: missing fields dtype"):
        load([Source(folder)])
    (folder / "rows.jsonl").write_text("{}\n{,\n")
    with pytest.raises(ResultsError, match=r"rows\.jsonl:1: .*schema None"):
        load([Source(folder)])


def test_rows_that_do_not_match_their_manifest_are_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", [row("d", "p1", [3])])
    text = (folder / "rows.jsonl").read_text()
    (folder / "rows.jsonl").write_text(text.replace("[3]", "[4]"))
    with pytest.raises(ResultsError, match=r"rows\.jsonl has another hash"):
        load([Source(folder)])


def test_a_folder_that_is_no_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"no job\.json"):
        load([Source(tmp_path)])
    (tmp_path / "job.json").write_text(json.dumps({"schema": "orch/job/1"}))
    with pytest.raises(ResultsError, match=r"job\.json"):
        load([Source(tmp_path)])


def test_a_block_whose_slot_0_predicts_too_may_accept_one_more(tmp_path: Path) -> None:
    series = one_series(write_run(tmp_path / "a", [row("d", "p1", [9, 1], convention={"label_offset": 1})]))
    assert (series.slots, series.histogram.tolist()[-1], len(series.survival)) == (8, 1, 8)


@given(st.integers(1, 40), st.integers(0, 20))
def test_the_bound_of_a_tree_is_the_smaller_of_block_and_nodes(nodes: int, slots: int) -> None:
    assert Shape.parse(f"ddtree:{nodes}").bound(slots) == min(slots + 1, nodes + 1)
    assert Shape.parse("topk:3").bound(slots) == Shape.parse("chain").bound(slots) == slots + 1
