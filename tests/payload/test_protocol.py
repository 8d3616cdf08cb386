"""The contract: records round-trip, other versions are refused, crashes leave nothing half-read."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_payload import durable
from remote_payload.durable import (
    ProtocolError,
    append_lines,
    canonical_path,
    iter_jsonl,
    tree_hash,
    trim_torn_line,
    write_atomic,
)
from remote_payload.protocol import DrafterSpec, Job, Row, State, TargetSpec, build_manifest, verify_manifest


def _job(**changes: Any) -> Job:
    drafters = [DrafterSpec("d", "/d", "h", convention={"context": "through_anchor"})]
    return Job("id", "hash", "eval", TargetSpec("t", "/t"), drafters, "prompts.jsonl", "p", **changes)


def test_a_job_survives_the_trip_through_its_file() -> None:
    job = _job(stop_ids=[1, 2], shapes=["chain", "ddtree:8"], block_size=4)
    assert Job.from_json(json.loads(json.dumps(job.to_json()))) == job


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "orch/job/9"}, "schema 'orch/job/9', this orch reads orch/job/1"),
        ({"schema": None}, "schema None"),
        ({"surprise": 1}, "unknown fields surprise"),
        ({"target": {"name": "t"}}, "path"),
        ({"target": [1]}, "target: not a JSON object"),
        ({"drafters": {"a": 1}}, "drafters is not a list"),
        ({"seed": "7"}, "seed is '7', which it cannot be"),
        ({"created": None}, "created is 'None'"),
        ({"save_outputs": 1}, "save_outputs is '1'"),
        ({"drafters": [{"label": "d", "path": "/d", "hash": "h", "odd": 1}]}, "unknown fields odd"),
    ],
)
def test_another_version_or_field_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ProtocolError, match=r"job\.json") as caught:
        Job.from_json({**_job().to_json(), **change}, "job.json")
    assert message in str(caught.value)


@pytest.mark.parametrize("record", [None, [], "running", 3])
def test_json_that_is_no_object_is_no_record(record: Any) -> None:
    for read in (Job.from_json, State.from_json, Row.from_json):
        with pytest.raises(ProtocolError, match="here: not a JSON object"):
            read(record, "here")


def test_brackets_without_end_are_broken_json_and_not_a_crash(tmp_path: Path) -> None:
    deep = b"[" * 200_000
    (tmp_path / "x.json").write_bytes(deep)
    with pytest.raises(ProtocolError, match=r"x\.json: not valid JSON"):
        durable.read_json(tmp_path / "x.json")
    (tmp_path / "x.jsonl").write_bytes(deep + b"\n")
    with pytest.raises(ProtocolError, match=r"x\.jsonl:1: not valid JSON"):
        list(iter_jsonl(tmp_path / "x.jsonl"))


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    for write in (lambda p: write_atomic(p, b"x"), lambda p: append_lines(p, [{"a": 1}])):
        with pytest.raises(OSError, match="No space left") as caught:
            write(tmp_path / "f")
        assert caught.value.filename == str(tmp_path / "f")


def test_a_state_survives_the_trip() -> None:
    state = State("running", pid=7, pid_started="9", boot_id="b", gpu_uuids=["GPU-1"], heartbeat=1.5)
    assert State.from_json(json.loads(json.dumps(state.to_json()))) == state


ROW: dict[str, Any] = {
    "drafter": "d", "drafter_hash": "dh", "target_hash": "th", "prompt_id": "p", "prompt_hash": "ph",
    "dataset": "", "turn": 0, "sample": 0, "shape": "chain", "engine": "replay", "temperature": 0.0,
    "top_p": 1.0, "top_k": 0, "seed": 0, "acceptance": "exact", "block_size": 8, "convention": {},
    "dtype": "float32", "max_new_tokens": 96, "stop_ids": [257], "template_hash": "", "prompt_tokens": 3,
    "output_tokens": 5, "stop": "eos", "accept_lengths": [3, 2],
}  # fmt: skip


def test_rows_of_one_measurement_share_a_key_and_others_do_not() -> None:
    row = Row(**ROW)
    assert Row.from_json(json.loads(json.dumps(row.to_json()))).key == row.key
    assert Row(**{**ROW, "drafter": "another label", "seconds": 3.0, "accept_lengths": [1]}).key == row.key
    for name in Row.KEY_FIELDS:
        changed: Any = {"convention": {"x": 1}, "stop_ids": []}.get(name, f"other {name}")
        assert Row(**{**ROW, name: changed}).key != row.key, name


def test_a_torn_last_line_is_passed_over_and_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append_lines(path, [{"a": 1}, {"a": 2}])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"a": 3')
    assert [record["a"] for record in iter_jsonl(path)] == [1, 2]
    assert trim_torn_line(path) == 7
    assert path.read_bytes() == whole
    append_lines(path, [{"a": 3}])
    assert [record["a"] for record in iter_jsonl(path)] == [1, 2, 3]


@given(st.binary(max_size=300))
def test_trimming_keeps_exactly_the_whole_lines(data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f"
        path.write_bytes(data)
        trim_torn_line(path)
        assert path.read_bytes() == data[: data.rfind(b"\n") + 1]


def test_a_broken_whole_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n{oops}\n')
    with pytest.raises(ProtocolError, match=r"rows\.jsonl:2: not valid JSON"):
        list(iter_jsonl(path))


def test_an_atomic_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    write_atomic(path, b"old")

    def no_space(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable.os, "fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]


def test_a_manifest_tells_what_is_wrong(tmp_path: Path) -> None:
    for name in ("rows.jsonl", "summary.json", "worker.log"):
        (tmp_path / name).write_text(name)
    manifest = build_manifest(tmp_path)
    assert verify_manifest(tmp_path, manifest) == []
    (tmp_path / "rows.jsonl").write_text("rows.jsonX")
    (tmp_path / "summary.json").write_text("short")
    (tmp_path / "worker.log").unlink()
    assert verify_manifest(tmp_path, manifest) == [
        "rows.jsonl has another hash than its manifest",
        "summary.json has 5 bytes, its manifest says 12",
        "worker.log is missing",
    ]


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../b", "a//b", ".", "a/.", "a\\b", "a\0b"])
def test_a_path_that_could_leave_its_folder_is_refused(path: str) -> None:
    with pytest.raises(ProtocolError):
        canonical_path(path)


def test_a_tree_hash_does_not_depend_on_order() -> None:
    entries = [("b", 1, "x"), ("a", 2, "y")]
    assert tree_hash(entries) == tree_hash(reversed(entries))
    assert tree_hash(entries) != tree_hash([("b", 1, "x"), ("a", 2, "z")])
