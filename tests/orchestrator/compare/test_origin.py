"""Where numbers come from: runs, differences that are told, diagnoses, the command again."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from orchestrator.compare.build import Wanted, compare
from orchestrator.compare.load import Source, load
from orchestrator.compare.origin import command_line
from orchestrator.errors import ResultsError
from remote_payload.durable import write_json
from remote_payload.protocol import DrafterSpec, State
from tests.orchestrator.compare.folders import drafter_hash, rows_of, write_run

VERSIONS = {"python": "3.11.7", "torch": "2.8.0", "transformers": "4.57.0"}


def run(folder: Path, label: str, *, torch: str = "2.8.0", **job: object) -> Path:
    spec = DrafterSpec(label, f"/staged/{label}", drafter_hash(label), source=f"ct200:/ckpt/{label}", step=9)
    written = write_run(folder, rows_of(label, 2.0, range(6)), specs=[spec], **job)
    write_json(
        folder / "summary.json", {"device": "cuda:0", "host": "vm", "versions": {**VERSIONS, "torch": torch}}
    )
    write_json(folder / "state.json", State("done", host="ct129", gpu_uuids=["GPU-1"]).to_json())
    return written


def test_a_run_tells_where_its_drafters_came_from_and_what_measured_them(tmp_path: Path) -> None:
    loaded = load([Source(run(tmp_path / "run", "step_9", created=5.0))])
    (origin,) = compare(loaded, Wanted(arguments=("run", "--baseline", "a b"))).provenance.runs
    assert (origin.host, origin.device, origin.gpus) == ("ct129", "cuda:0", ("GPU-1",))
    assert (origin.versions, origin.created, origin.complete) == (VERSIONS, 5.0, True)
    assert origin.target == {
        "name": "tiny",
        "path": "/models/target-tiny",
        "dtype": "float32",
        "attn": "sdpa",
    }
    (drafter,) = origin.drafters
    assert (drafter.source, drafter.step, drafter.hash) == ("ct200:/ckpt/step_9", 9, drafter_hash("step_9"))


def test_the_command_is_quoted_for_a_shell() -> None:
    words = ["a run", "--filter", "step>=4", "--baseline", "it's"]
    assert shlex.split(command_line(words)) == ["orch", "compare", *words]


def test_payloads_and_versions_that_differ_are_told_and_not_refused(tmp_path: Path) -> None:
    runs = [
        run(tmp_path / "one", "a"),
        run(tmp_path / "two", "b", torch="2.9.1", payload_hash="q" * 64),
    ]
    result = compare(load(map(Source, runs)), Wanted("a"))
    assert result.allowed == ()
    assert {d.field: (d.allowed, d.values) for d in result.differences} == {
        "payload": (False, (("p" * 12, ("one",)), ("q" * 12, ("two",)))),
        "torch": (False, (("2.8.0", ("one",)), ("2.9.1", ("two",)))),
    }


def test_a_difference_that_was_allowed_is_among_the_differences(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / n, rows_of(n, 2.0, range(6), seed=s)) for n, s in (("a", 0), ("b", 1))]
    result = compare(load(map(Source, runs)), Wanted("a", allow=("seed",)))
    assert [(d.field, d.allowed, d.values) for d in result.differences] == [
        ("seed", True, ((0, ("a",)), (1, ("b",))))
    ]


def test_another_attention_of_the_target_is_not_comparable(tmp_path: Path) -> None:
    from orchestrator.errors import NotComparableError
    from remote_payload.protocol import TargetSpec

    runs = [
        write_run(tmp_path / n, rows_of(n, 2.0, range(6)), target=TargetSpec("tiny", "/m", "float32", attn))
        for n, attn in (("a", "sdpa"), ("b", "eager"))
    ]
    with pytest.raises(NotComparableError, match="attn is 'sdpa' in a, 'eager' in b"):
        compare(load(map(Source, runs)), Wanted("a"))
    assert compare(load(map(Source, runs)), Wanted("a", allow=("attn",))).allowed


def test_a_diagnosis_in_a_runs_folder_comes_along_as_it_is(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", "a")
    record = {
        "schema": "orch/diagnose/1",
        "verdict": "convention",
        "cause": "anchor_in_context",
        "confidence": 0.9,
    }
    write_json(folder / "diagnosis.json", record)
    (diagnosis,) = compare(load([Source(folder)]), Wanted()).diagnoses
    assert (diagnosis.run, diagnosis.record) == ("run", record)
    assert (diagnosis.label, diagnosis.drafter_hash) == ("a", drafter_hash("a"))


def test_a_diagnosis_is_of_the_drafter_that_it_names(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [*rows_of("a", 2.0, range(6)), *rows_of("b", 3.0, range(6))])
    named = {"label": "b", "hash": drafter_hash("b"), "source": "/b"}
    write_json(folder / "diagnosis.json", {"schema": "orch/diagnose/1", "verdict": "ok", "drafter": named})
    (diagnosis,) = compare(load([Source(folder)]), Wanted()).diagnoses
    assert (diagnosis.label, diagnosis.drafter_hash) == ("b", drafter_hash("b"))


def test_the_last_diagnosis_of_a_drafter_comes_from_the_record_of_runs(tmp_path: Path) -> None:
    folder = run(tmp_path / "eval", "a", created=5.0)
    record = {"schema": "orch/diagnose/1", "verdict": "ok"}
    for name, label, created in (("d1", "a", 9.0), ("d2", "a", 7.0), ("d3", "other", 8.0)):
        spec = DrafterSpec(label, f"/{label}", drafter_hash(label))
        other = write_run(tmp_path / name, [], specs=[spec], kind="diagnose", created=created)
        write_json(other / "diagnosis.json", {**record, "cause": name})
    assert compare(load([Source(folder)]), Wanted()).diagnoses == (), (
        "a folder by itself has no record beside it"
    )
    (folder / "where.json").write_text("{}")
    (diagnosis,) = compare(load([Source(folder)]), Wanted()).diagnoses
    assert (diagnosis.run, diagnosis.record["cause"]) == ("d1", "d1")


def test_where_a_summary_cannot_be_read_device_and_versions_are_unknown(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", "a")
    (folder / "summary.json").write_text("{")
    (origin,) = compare(load([Source(folder)]), Wanted()).provenance.runs
    assert (origin.device, origin.versions, origin.host) == ("", {}, "ct129")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("diagnosis.json", '{"schema": "orch/diagnose/9"}', "orch/diagnose/9"),
        ("diagnosis.json", "[]", "not a JSON object"),
        ("diagnosis.json", "{", "cannot be read"),
    ],
)
def test_a_record_that_cannot_be_read_is_named(tmp_path: Path, name: str, text: str, said: str) -> None:
    folder = run(tmp_path / "run", "a")
    (folder / name).write_text(text)
    with pytest.raises(ResultsError) as caught:
        compare(load([Source(folder)]), Wanted())
    assert str(folder / name) in caught.value.message
    assert said in caught.value.message
