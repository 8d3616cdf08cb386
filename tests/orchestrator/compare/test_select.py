"""Which runs are compared when they are named by what people remember, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.compare.load import Source
from orchestrator.compare.select import select
from orchestrator.errors import ResultsError, UsageError
from orchestrator.runs import RunStore, Where
from remote_payload.durable import append_lines, write_json
from remote_payload.protocol import DrafterSpec, Job, State, TargetSpec
from tests.orchestrator.compare.folders import drafter_hash, row, write_run


def record(store: RunStore, job_id: str, labels: list[str], *, rows: bool = True, **changes: object) -> Path:
    values: dict[str, object] = {
        "job_id": job_id,
        "payload_hash": "p",
        "kind": "eval",
        "target": TargetSpec("tiny", "/m", "float32"),
        "drafters": [DrafterSpec(label, f"/{label}", drafter_hash(label)) for label in labels],
        "prompts": "prompts.jsonl",
        "prompts_hash": "s",
        "created": float(len(list(store.folder.glob("*")))),
        **changes,
    }
    run = store.create(Job(**values), Where("ct129", "/work"), {"prompts.jsonl": b""})  # type: ignore[arg-type]
    if rows:
        append_lines(run.path / "rows.jsonl", [row(label, "p1", [3]).to_json() for label in labels])
    return run.path


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path)


def test_without_names_the_last_eval_with_its_baseline_and_the_step_before(store: RunStore) -> None:
    reference = record(store, "20260101-a", ["reference", "other"])
    earlier = record(store, "20260102-b", ["step_90", "step_100"])
    record(store, "20260103-other-suite", ["step_150", "reference"], prompts_hash="t")
    last = record(store, "20260104-c", ["step_200", "step_300"])
    assert select([], store, "reference").sources == [
        Source(last),
        Source(earlier, frozenset({"step_100"})),
        Source(reference, frozenset({"reference"})),
    ]


def test_what_the_last_eval_has_itself_is_not_brought_in(store: RunStore) -> None:
    record(store, "20260101-a", ["reference"])
    last = record(store, "20260102-b", ["reference", "final"])
    assert select([], store, "reference").sources == [Source(last)]
    assert select([], store, None).sources == [Source(last)]


def test_drafters_of_two_trainings_have_no_step_before(store: RunStore) -> None:
    record(store, "20260101-a", ["a_1"])
    last = record(store, "20260102-b", ["a_2", "b_2"])
    assert select([], store, None).sources == [Source(last)]


def test_a_run_without_results_is_passed_over_and_mentioned(store: RunStore) -> None:
    done = record(store, "20260101-a", ["x"])
    record(store, "20260102-b", ["y"], rows=False)
    selection = select([], store, None)
    assert selection.sources == [Source(done)]
    assert selection.notes == ["20260102-b has no results here yet: `orch runs attach 20260102-b`"]


def ended(store: RunStore, job_id: str, state: str, reason: str) -> None:
    path = record(store, job_id, ["final"], rows=False)
    store.open(path.name).saw(state, State(state, reason=reason))


def test_runs_that_failed_for_good_are_ignored_in_one_sentence(store: RunStore) -> None:
    ended(store, "20260101-old", "failed", "older than the results: nobody asks")
    first = record(store, "20260102-a", ["final"])
    ended(store, "20260103-b", "cancelled", "cancelled on request")
    ended(store, "20260104-c", "failed", "rejected: prompts.jsonl:2: an empty prompt")
    selection = select([], store, None)
    assert selection.sources == [Source(first)]
    (note,) = selection.notes
    assert note.startswith("20260104-c ended as failed without results (rejected: prompts.jsonl:2: an empty")
    assert note.endswith("; ignored (2 such runs)")


def test_a_run_that_failed_is_refused_by_name_with_its_reason(store: RunStore) -> None:
    ended(store, "20260101-a", "failed", "rejected: an empty prompt")
    with pytest.raises(UsageError, match=r"ended as failed without results \(rejected: an empty prompt\)"):
        select(["20260101-a"], store, None)


def test_a_diagnosis_is_no_eval_whose_rows_never_came(store: RunStore) -> None:
    record(store, "20260101-a", ["x"], kind="diagnose", rows=False)
    with pytest.raises(UsageError, match="run 20260101-a is a diagnosis") as caught:
        select(["20260101-a"], store, None)
    assert "20260101-a/diagnosis.json" in caught.value.hint


def test_a_run_that_is_done_and_not_fetched_is_fetched_with_pull(store: RunStore) -> None:
    ended(store, "20260101-a", "done", "")
    with pytest.raises(UsageError) as caught:
        select(["20260101-a"], store, None)
    assert "orch runs pull 20260101-a" in caught.value.hint


def test_rows_that_were_pulled_and_are_gone_are_not_results_that_never_came(store: RunStore) -> None:
    done = record(store, "20260101-a", ["x"])
    gone = record(store, "20260102-b", ["y"])
    files = {"rows.jsonl": {"size": 1, "sha256": "0"}}
    about = {"host": "h", "job_dir": "d", "at": 1.0, "complete": True, "files": files, "problems": []}
    write_json(gone / "pulled.json", {"schema": "orch/pulled/1", **about})
    (gone / "rows.jsonl").unlink()
    with pytest.raises(ResultsError, match=r"was pulled with its rows, and .* is gone") as caught:
        select(["20260102-b"], store, None)
    assert "orch runs pull 20260102-b" in caught.value.hint
    selection = select([], store, None)
    assert selection.sources == [Source(done)]
    assert "is gone" in selection.notes[0]


def test_runs_are_named_by_id_beginning_label_last_or_folder(store: RunStore, tmp_path: Path) -> None:
    first = record(store, "20260101-a", ["x"], label="night")
    second = record(store, "20260202-b", ["y"])
    elsewhere = write_run(tmp_path / "copied", [row("z", "p1", [3])])
    names = ["20260101-a", "night", "202602", "last", str(elsewhere)]
    assert [source.folder for source in select(names, store, None).sources] == [
        first,
        first,
        second,
        second,
        elsewhere,
    ]


def test_a_drafters_label_takes_its_newest_run_and_that_drafter_only(store: RunStore) -> None:
    record(store, "20260101-a", ["x", "y"])
    newest = record(store, "20260102-b", ["x", "z"])
    assert select(["x"], store, None).sources == [Source(newest, frozenset({"x"}))]


def test_named_runs_get_the_baseline_too(store: RunStore) -> None:
    reference = record(store, "20260101-a", ["reference"])
    record(store, "20260102-b", ["x"])
    assert select(["x"], store, "reference").sources[1:] == [Source(reference, frozenset({"reference"}))]


def test_folders_alone_need_no_record(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [row("z", "p1", [3])])
    assert select([str(folder)], None, None).sources == [Source(folder)]


def test_an_unknown_name_lists_the_drafters(store: RunStore) -> None:
    record(store, "20260101-a", ["x"])
    with pytest.raises(UsageError, match="no drafter or folder of that name") as caught:
        select(["nope"], store, None)
    assert "drafters with results: x" in caught.value.hint


def test_nothing_recorded_says_what_to_run(store: RunStore) -> None:
    with pytest.raises(UsageError, match="no results to compare") as caught:
        select([], store, None)
    assert "orch eval --ckpt" in caught.value.hint


def test_a_named_run_without_results_says_how_to_fetch_them(store: RunStore) -> None:
    record(store, "20260101-a", ["x"], rows=False)
    with pytest.raises(UsageError) as caught:
        select(["20260101-a"], store, None)
    assert "orch runs attach 20260101-a" in caught.value.hint
