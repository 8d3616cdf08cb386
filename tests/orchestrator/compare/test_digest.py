"""A run's digest: the same rows, quicker; never a way around the manifest, never trusted where it is broken."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.compare import digest
from orchestrator.compare.build import Wanted, compare
from orchestrator.compare.digest import NAME, prepare, read_digest
from orchestrator.compare.load import Source, load
from orchestrator.compare.report.documents import to_document
from orchestrator.compare.table import RunTable, parse_rows
from orchestrator.errors import ResultsError
from remote_payload.durable import append_lines, file_sha256, write_json
from remote_payload.protocol import build_manifest
from tests.orchestrator.compare.folders import row, rows_of, write_run

LATER_NS = 60_000_000_000


@pytest.fixture
def run(tmp_path: Path) -> Path:
    rows = [one for shape in ("chain", "ddtree:4") for one in rows_of("d", 2.4, range(9), shape=shape)]
    return write_run(tmp_path / "run", rows)


def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a minute pass: rows that were just written have settled."""
    now = digest.time.time_ns
    monkeypatch.setattr(digest.time, "time_ns", lambda: now() + LATER_NS)


def forbid(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def fail(*_: object) -> None:
        raise AssertionError(f"{name} was called")

    monkeypatch.setattr(digest, name, fail)


def same(ours: RunTable, theirs: RunTable) -> bool:
    columns = ("item", "prompt_tokens", "output_tokens", "lengths", "offsets")
    return (ours.parts, ours.items, ours.doubles) == (theirs.parts, theirs.items, theirs.doubles) and all(
        np.array_equal(getattr(ours, name), getattr(theirs, name)) for name in columns
    )


def test_the_second_reading_parses_nothing_and_says_the_same(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = read_digest(run)
    assert (run / NAME).is_file()
    forbid(monkeypatch, "parse_rows")
    assert same(read_digest(run).table, first.table)
    assert same(first.table, parse_rows(run / "rows.jsonl"))


def test_settled_rows_are_not_even_hashed_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read_digest(run)
    later(monkeypatch)
    read_digest(run)
    forbid(monkeypatch, "file_sha256")
    again = read_digest(run)
    assert (again.sha256, again.size) == (first.sha256, first.size)


def test_rows_that_changed_in_the_last_moment_are_hashed_every_time(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_digest(run)
    forbid(monkeypatch, "file_sha256")
    with pytest.raises(AssertionError, match="file_sha256"):
        read_digest(run)


def test_an_edit_that_keeps_size_and_time_is_seen(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later(monkeypatch)
    load([Source(run)])
    rows = run / "rows.jsonl"
    before = rows.stat()
    rows.write_text(rows.read_text().replace('"accept_lengths":[1,', '"accept_lengths":[2,', 1))
    os.utime(rows, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert rows.stat().st_size == before.st_size
    with pytest.raises(ResultsError, match="another hash than its manifest"):
        load([Source(run)])


def test_rows_that_grew_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later(monkeypatch)
    run = write_run(tmp_path / "run", [row("d", "p1", [3])], state="running", complete=False)
    assert len(load([Source(run)]).series[0].unit) == 1
    append_lines(run / "rows.jsonl", [row("d", "p2", [4]).to_json()])
    assert len(load([Source(run)]).series[0].unit) == 2


def test_rows_that_are_pulled_again_while_they_are_read_are_read_again(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = write_run(run.parent / "newer", [row("d", "p9", [4])])
    calls = []

    def parse(path: Path) -> RunTable:
        calls.append(path)
        if len(calls) == 1:
            (newer / "rows.jsonl").replace(path)
        return parse_rows(path)

    monkeypatch.setattr(digest, "parse_rows", parse)
    found = read_digest(run)
    assert len(calls) == 2
    assert found.sha256 == file_sha256(run / "rows.jsonl")
    assert found.table.lengths.tolist() == [4]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255))
def test_a_digest_with_any_byte_changed_is_made_anew(run: Path, place: float, change: int) -> None:
    expected = read_digest(run).table
    data = bytearray((run / NAME).read_bytes())
    data[int(place * len(data))] ^= change
    (run / NAME).write_bytes(bytes(data))
    assert same(read_digest(run).table, expected)
    assert (run / NAME).read_bytes() != bytes(data)


@pytest.mark.parametrize("junk", [b"", b"orch/digest/9 00\n{}\n", b"\xff" * 300, b"orch/digest/1 "])
def test_what_is_no_digest_is_made_anew(run: Path, junk: bytes) -> None:
    (run / NAME).write_bytes(junk)
    assert same(read_digest(run).table, parse_rows(run / "rows.jsonl"))


def test_where_none_can_be_kept_the_comparison_says_so_and_works(run: Path) -> None:
    (run / NAME).mkdir()
    loaded = load([Source(run)])
    assert len(loaded.series) == 2
    (warning,) = loaded.warnings
    assert str(run / NAME) in warning
    assert "reads all rows again" in warning
    assert not list(run.glob(".*.tmp"))


rows_drawn = st.lists(
    st.tuples(
        st.integers(0, 6),
        st.integers(0, 1),
        st.integers(0, 1),
        st.sampled_from(["a", "b"]),
        st.sampled_from(["chain", "topk:3"]),
        st.lists(st.integers(1, 8), max_size=5),
    ),
    max_size=25,
    unique_by=lambda one: one[:5],
)


@settings(max_examples=40, deadline=None)
@given(drawn=rows_drawn)
def test_any_rows_survive_the_digest(
    drawn: list[tuple[int, int, int, str, str, list[int]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = [
        row(label, f"p{number}", lengths, turn=turn, sample=sample, shape=shape, dataset=str(number % 2))
        for number, turn, sample, label, shape, lengths in drawn
    ]
    folder = write_run(tmp_path_factory.mktemp("run") / "run", rows)
    parsed = read_digest(folder).table
    assert same(read_digest(folder).table, parsed)
    found = {
        (part.label, part.key.shape, *parsed.items[parsed.item[place]][:3]): parsed.lengths[
            parsed.offsets[place] : parsed.offsets[place + 1]
        ].tolist()
        for part in parsed.parts
        for place in range(part.start, part.end)
    }
    assert found == {
        (one.drafter, one.shape, one.prompt_hash, one.turn, one.sample): one.accept_lengths for one in rows
    }


def test_a_comparison_is_the_same_cold_and_warm_and_in_any_order_of_runs(tmp_path: Path) -> None:
    runs = [
        write_run(
            tmp_path / f"run-{step}",
            [*rows_of(f"step_{step}", 1 + step / 4, range(20)), *rows_of("base", 3.0)],
        )
        for step in (1, 2, 3)
    ]
    cold = to_document(compare(load(map(Source, runs)), Wanted("base")))
    warm = to_document(compare(load(map(Source, runs)), Wanted("base")))
    assert cold == warm
    turned = to_document(compare(load(map(Source, runs[::-1])), Wanted("base")))
    assert [block["entries"] for block in turned["blocks"]] == [
        [{**entry, "runs": entry["runs"][::-1]} for entry in block["entries"]] for block in cold["blocks"]
    ]
    assert any("48 measurements are in several runs" in note for note in cold["footnotes"])


def test_many_missing_digests_are_made_by_several_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest, "_WORTH_IT", 0)
    monkeypatch.setattr(digest.os, "cpu_count", lambda: 2)
    runs = [write_run(tmp_path / f"run-{n}", rows_of(f"d{n}", 2.0, range(6))) for n in range(3)]
    (runs[2] / "rows.jsonl").write_text('{"schema": "orch/row/1"}\n')
    write_json(runs[2] / "MANIFEST.json", build_manifest(runs[2]))
    prepare(runs)
    assert [(run / NAME).is_file() for run in runs] == [True, True, False]
    with pytest.raises(ResultsError, match=r"run-2/rows\.jsonl:1: missing fields"):
        load(map(Source, runs))
