"""What may be compared with what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.compare.build import Wanted, compare
from orchestrator.compare.comparability import FIELDS
from orchestrator.compare.load import Source, load
from orchestrator.compare.model import Comparison
from orchestrator.errors import NotComparableError, UsageError
from remote_payload.durable import write_json
from remote_payload.protocol import SUMMARY_SCHEMA, Row
from tests.orchestrator.compare.folders import rows_of, write_run

DIFFERENT = {
    "target_hash": "u" * 64,
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 20,
    "seed": 5,
    "acceptance": "rejection",
    "dtype": "bfloat16",
    "max_new_tokens": 128,
    "stop_ids": [],
    "template_hash": "chat",
}


def compare_two(
    tmp_path: Path, change: dict[str, object], allow: tuple[str, ...] = (), **job: object
) -> Comparison:
    ours = write_run(tmp_path / "run-a", rows_of("a", 2.0, range(8)))
    theirs = write_run(tmp_path / "run-b", rows_of("b", 3.0, range(8), **change), **job)
    return compare(load([Source(ours), Source(theirs)]), Wanted("a", allow=allow))


@pytest.mark.parametrize("field", DIFFERENT)
def test_a_differing_field_is_refused_by_name_with_values_and_runs(tmp_path: Path, field: str) -> None:
    with pytest.raises(NotComparableError) as caught:
        compare_two(tmp_path, {field: DIFFERENT[field]})
    assert caught.value.exit_code == 9
    assert f"{field} is " in caught.value.message
    assert "in run-a" in caught.value.message
    assert "in run-b" in caught.value.message
    assert f"--allow {field}" in caught.value.hint
    assert list(caught.value.details["fields"]) == [field]


@pytest.mark.parametrize("field", DIFFERENT)
def test_an_allowed_field_marks_the_result_and_the_pairs_stay(tmp_path: Path, field: str) -> None:
    result = compare_two(tmp_path, {field: DIFFERENT[field]}, (field,))
    assert len(result.allowed) == 1
    assert result.allowed[0].startswith(f"{field} is ")
    (block,) = result.blocks
    assert [entry.versus_baseline.clusters for entry in block.entries if entry.versus_baseline] == [8]
    assert all(f"{field}=" in entry.name for entry in block.entries)


def test_every_key_field_is_a_drafters_own_or_a_unit_or_must_agree() -> None:
    own = {"drafter_hash", "engine", "block_size", "convention"}
    unit = {"prompt_hash", "turn", "sample", "shape"}
    assert set(Row.KEY_FIELDS) - own - unit == set(FIELDS) - {
        "template_hash",
        "attn",
        "prompts",
    }
    assert set(DIFFERENT) == set(FIELDS) - {"attn", "prompts"}


def test_engine_block_size_and_convention_may_differ(tmp_path: Path) -> None:
    change = {"engine": "live", "block_size": 16, "convention": {"block_position_offset": 1}}
    result = compare_two(tmp_path, change)
    assert result.allowed == ()
    assert result.blocks[0].entries[1].versus_baseline is not None


def test_all_differing_fields_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(NotComparableError) as caught:
        compare_two(tmp_path, {"dtype": "bfloat16", "seed": 3}, ("seed",), prompts_hash="other")
    assert set(caught.value.details["fields"]) == {"dtype", "prompts"}
    assert "--allow dtype --allow prompts" in caught.value.hint


def test_two_steps_of_one_drafter_under_allowed_settings_are_told_apart(tmp_path: Path) -> None:
    ours = write_run(tmp_path / "run-a", rows_of("a", 2.0, range(8)))
    theirs = write_run(tmp_path / "run-b", rows_of("a", 3.0, range(8), temperature=1.0))
    result = compare(load([Source(ours), Source(theirs)]), Wanted(allow=("temperature",)))
    assert [entry.name for entry in result.blocks[0].entries] == [
        "a [temperature=0.0]",
        "a [temperature=1.0]",
    ]


def test_other_prompts_need_allow_and_are_paired_on_what_is_common(tmp_path: Path) -> None:
    ours = write_run(tmp_path / "run-a", rows_of("a", 2.0, range(16)))
    theirs = write_run(tmp_path / "run-b", rows_of("b", 3.0, range(6, 24)), prompts_hash="other")
    loaded = load([Source(ours), Source(theirs)])
    with pytest.raises(NotComparableError, match=r"of 24 prompts, all of them have 10"):
        compare(loaded, Wanted("a"))
    result = compare(loaded, Wanted("a", allow=("suite",)))
    versus = result.blocks[0].entries[1].versus_baseline
    assert versus is not None
    assert versus.clusters == 10
    assert any("compared on 10 common prompts (b has 18, a 16)" in note for note in result.footnotes)


def test_a_run_that_has_not_come_far_is_paired_on_what_it_has(tmp_path: Path) -> None:
    ours = write_run(tmp_path / "run-a", rows_of("a", 2.0, range(16)))
    theirs = write_run(tmp_path / "run-b", rows_of("b", 3.0, range(9)), complete=False, state="running")
    result = compare(load([Source(ours), Source(theirs)]), Wanted("a"))
    versus = result.blocks[0].entries[1].versus_baseline
    assert versus is not None
    assert versus.clusters == 9
    assert "run-b is not complete" in result.warnings[0]


@pytest.mark.parametrize("summary", [None, {"real": 0}, {"real": 2}, "garbage"])
def test_a_run_whose_engines_differ_comes_with_a_warning(tmp_path: Path, summary: Any) -> None:
    ours = write_run(tmp_path / "run-a", rows_of("a", 2.0, range(9)), engine="live")
    if isinstance(summary, dict):
        lossless = {"outputs": 9, "equal": 7, "near_ties": 0, **summary}
        write_json(ours / "summary.json", {"schema": SUMMARY_SCHEMA, "lossless": lossless})
    elif summary:
        (ours / "summary.json").write_text(summary)
    warned = [text for text in compare(load([Source(ours)]), Wanted("a")).warnings if "do not agree" in text]
    assert len(warned) == (summary == {"real": 2})
    assert all("run-a: its engines do not agree (2 of 9 live outputs" in text for text in warned)


def test_an_unknown_field_to_allow_lists_the_fields(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        compare_two(tmp_path, {}, ("colour",))
    assert "max_new_tokens" in caught.value.hint
