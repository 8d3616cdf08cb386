"""Who is compared with whom, under which name, and with what verdict."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.compare.build import Wanted, compare
from orchestrator.compare.load import Source, load
from orchestrator.compare.model import Comparison, Entry, Versus
from orchestrator.compare.names import natural_key
from orchestrator.compare.notes import _advice_for_many, _rules_differ
from orchestrator.compare.stats import Estimate
from orchestrator.errors import UsageError
from remote_payload import tau
from remote_payload.protocol import DrafterSpec, Row
from tests.orchestrator.compare.folders import drafter_hash, row, rows_of, walk, write_run


def compared(tmp_path: Path, rows: list[Row], wanted: Wanted | None = None, **job: object) -> Comparison:
    return compare(load([Source(write_run(tmp_path / "run", rows, **job))]), wanted or Wanted())


def by_name(result: Comparison, shape: str = "chain") -> dict[str, Entry]:
    (block,) = [block for block in result.blocks if block.shape == shape]
    return {entry.name: entry for entry in block.entries}


def test_figures_of_an_entry_are_those_of_its_rows(tmp_path: Path) -> None:
    rows = rows_of("d", 2.4)
    entry = by_name(compared(tmp_path, rows))["d"]
    walks = [tau.Walk(one.accept_lengths, one.output_tokens) for one in rows]
    assert entry.figure.value == pytest.approx(tau.tau(walks))
    assert entry.dialects == pytest.approx(
        {name: formula(walks) for name, (formula, _) in tau.DIALECTS.items()}
    )
    assert entry.survival == pytest.approx(tau.survival(walks, 8))
    assert list(entry.histogram) == tau.acceptance_histogram(walks, 8)
    parts = {
        name: tau.tau(w for w, one in zip(walks, rows, strict=True) if one.dataset == name)
        for name in ("code", "prose")
    }
    assert {part.name: part.figure.value for part in entry.datasets} == pytest.approx(parts)
    assert entry.dataset_mean == pytest.approx(sum(parts.values()) / 2)
    assert (entry.clusters, entry.rows, entry.accepted) == (24, 24, sum(sum(w.accept_lengths) for w in walks))


def test_the_dialect_that_was_asked_for_is_the_headline_and_the_compared_figure(tmp_path: Path) -> None:
    rows = rows_of("a", 2.0) + rows_of("b", 3.0)
    result = compared(tmp_path, rows, Wanted("a", dialect="zlab"))
    entries = by_name(result)
    assert entries["b"].figure.value == entries["b"].dialects["zlab"] != entries["b"].dialects["tau"]
    versus = entries["b"].versus_baseline
    assert versus is not None
    assert versus.difference.value == pytest.approx(
        entries["b"].dialects["zlab"] - entries["a"].dialects["zlab"]
    )


def test_each_step_meets_the_baseline_and_the_step_before_in_natural_order(tmp_path: Path) -> None:
    rows = [*rows_of("step_10", 2.6), *rows_of("step_9", 1.6), *rows_of("reference", 4.0)]
    entries = by_name(compared(tmp_path, rows, Wanted(default_baseline="reference")))
    assert list(entries) == ["reference", "step_9", "step_10"]
    assert entries["reference"].is_baseline
    assert entries["reference"].versus_baseline is None
    assert entries["step_9"].versus_previous is None
    previous, against = entries["step_10"].versus_previous, entries["step_10"].versus_baseline
    assert previous is not None
    assert against is not None
    assert (previous.against, previous.verdict) == ("step_9", "better")
    assert (against.against, against.verdict) == ("reference", "worse")


def test_undecided_is_exactly_an_adjusted_p_of_at_least_5_per_cent(tmp_path: Path) -> None:
    rows = [one for step, mean in enumerate((2.0, 2.02, 2.2, 2.6, 2.61)) for one in rows_of(f"s{step}", mean)]
    entries = by_name(compared(tmp_path, rows, Wanted("s0")))
    compared_ones = [v for e in entries.values() for v in (e.versus_baseline, e.versus_previous) if v]
    assert len(compared_ones) == 7
    assert {v.verdict == "~" for v in compared_ones} == {True, False}
    for versus in compared_ones:
        assert (versus.verdict == "~") == (versus.p_adjusted >= 0.05)
        assert versus.p_adjusted >= versus.p


def test_shapes_are_blocks_of_their_own_and_ceilings_come_last_with_their_name(tmp_path: Path) -> None:
    shapes = ("topk:4", "ddtree:16", "chain", "ddtree:4")
    rows = [one for shape in shapes for one in rows_of("d", 2.0, shape=shape)]
    result = compared(tmp_path, rows)
    assert [block.shape for block in result.blocks] == ["chain", "ddtree:4", "ddtree:16", "topk:4"]
    titles = [block.title for block in result.blocks]
    assert titles[1] == "ddtree:4 · tree of 4 nodes, width ≤ 4, depth ≤ 4 · τ ≤ 5"
    assert titles[2] == "ddtree:16 · tree of 16 nodes, width ≤ 16, depth ≤ 7 · τ ≤ 8"
    assert "ORACLE CEILING" in titles[3]
    assert [entry.bound for block in result.blocks for entry in block.entries] == [8, 5, 8, 8]


def test_only_the_shapes_that_were_asked_for(tmp_path: Path) -> None:
    rows = [one for shape in ("chain", "ddtree:4") for one in rows_of("d", 2.0, shape=shape)]
    assert [b.shape for b in compared(tmp_path, rows, Wanted(shapes=("ddtree:4",))).blocks] == ["ddtree:4"]
    with pytest.raises(UsageError, match="no such rows") as caught:
        compared(tmp_path / "again", rows, Wanted(shapes=("ddtree:5",)))
    assert "chain, ddtree:4" in caught.value.hint


def test_two_drafters_under_one_label_are_told_apart_by_their_hash(tmp_path: Path) -> None:
    rows = [*rows_of("d", 2.0), *rows_of("d", 2.5, drafter_hash=drafter_hash("another"))]
    names = set(by_name(compared(tmp_path, rows)))
    assert names == {f"d@{drafter_hash('d')[:6]}", f"d@{drafter_hash('another')[:6]}"}


def test_one_drafter_under_two_labels_is_one_line_and_a_footnote(tmp_path: Path) -> None:
    specs = [
        DrafterSpec("step_9", "/a", drafter_hash("step_9")),
        DrafterSpec("best", "/b", drafter_hash("step_9")),
    ]
    result = compared(tmp_path, rows_of("step_9", 2.0), specs=specs)
    assert list(by_name(result)) == ["step_9"]
    assert any(note.startswith("best: the same drafter as step_9") for note in result.footnotes)


def test_a_baseline_that_is_also_a_step_goes_by_the_baselines_name(tmp_path: Path) -> None:
    specs = [
        DrafterSpec("step_9", "/a", drafter_hash("step_9")),
        DrafterSpec("best", "/b", drafter_hash("step_9")),
    ]
    result = compared(tmp_path, rows_of("step_9", 2.0), Wanted(default_baseline="best"), specs=specs)
    assert result.baseline == "best"
    assert list(by_name(result)) == ["best"]


def test_variants_of_one_checkpoint_say_what_differs(tmp_path: Path) -> None:
    rows = [
        *rows_of("d", 2.0, range(6)),
        *rows_of("d", 2.0, range(6), engine="live"),
        *rows_of("d", 2.0, range(6), convention={"context": "through_anchor"}),
    ]
    result = compared(tmp_path, rows)
    names = set(by_name(result))
    assert names == {
        "d [replay, as published]",
        "d [live, as published]",
        "d [replay, context=through_anchor]",
    }
    assert any("a leak that live decoding cannot have" in note for note in result.footnotes)


def test_an_ambiguous_baseline_asks_which(tmp_path: Path) -> None:
    rows = [*rows_of("d", 2.0, range(6)), *rows_of("d", 2.0, range(6), block_size=4)]
    with pytest.raises(UsageError, match="several drafters") as caught:
        compared(tmp_path, rows, Wanted("d"))
    assert '--baseline "d [B 4]"' in caught.value.hint
    assert compared(tmp_path / "again", rows, Wanted("d [B 4]")).baseline == "d [B 4]"
    assert compared(tmp_path / "none", rows, Wanted("none", "d")).baseline is None


def test_a_baseline_that_is_not_there_names_the_nearest(tmp_path: Path) -> None:
    rows = rows_of("reference", 2.0, range(6))
    with pytest.raises(UsageError) as caught:
        compared(tmp_path, rows, Wanted("refrence"))
    assert "did you mean 'reference'?" in caught.value.hint
    assert compared(tmp_path / "default", rows, Wanted(default_baseline="refrence")).baseline is None


def test_few_prompts_have_no_interval_no_verdict_and_a_footnote(tmp_path: Path) -> None:
    rows = [*rows_of("a", 1.2, range(5)), *rows_of("b", 6.0, range(5))]
    result = compared(tmp_path, rows, Wanted("a"))
    entry = by_name(result)["b"]
    assert (entry.figure.low, entry.figure.high) == (None, None)
    assert entry.versus_baseline is not None
    assert entry.versus_baseline.verdict == "~"
    assert result.footnotes[0].startswith("need ≥ 6 prompts")
    assert result.footnotes[0].endswith(": there are 5"), "once, not once a drafter"


def test_an_undecided_comparison_says_how_many_prompts_would_decide(tmp_path: Path) -> None:
    result = compared(tmp_path, [*rows_of("a", 2.5), *rows_of("b", 2.5)], Wanted("a"))
    versus = by_name(result)["b"].versus_baseline
    assert versus is not None
    assert versus.verdict == "~"
    assert versus.needed is not None
    assert versus.needed > 24
    (note,) = [n for n in result.footnotes if "more prompts would show a 2 % difference (b against a; " in n]
    assert versus.detectable is not None
    shown = float(note[note.index("these show ") :].split()[2])
    assert shown == pytest.approx(100 * versus.detectable, rel=0.05)


def test_many_comparisons_have_a_few_notes(tmp_path: Path) -> None:
    names = [f"step_{number}" for number in range(1, 41)]
    rows = [one for name in names for one in rows_of(name, 2.5, range(20 + names.index(name) % 2))]
    result = compared(tmp_path, rows, Wanted("step_1"))
    assert len(result.footnotes) < 10
    found = [
        re.search(r"chain: ([0-9]+) comparisons are undecided; about (.*) more", n) for n in result.footnotes
    ]
    (match,) = [one for one in found if one]
    versus = [v for e in result.blocks[0].entries for v in (e.versus_baseline, e.versus_previous) if v]
    assert int(match[1]) == sum(v.verdict == "~" for v in versus)
    least, most = (int(text) for text in match[2].split(" to "))
    missing = [v.needed - v.clusters for v in versus if v.verdict == "~" and v.needed is not None]
    assert least == pytest.approx(min(missing), rel=0.1)
    assert most == pytest.approx(max(missing), rel=0.1)
    partial = (
        20 + 38
    )  # every second step has a prompt more than the baseline, and neighbours never have the same
    assert f"chain: {partial} comparisons are on the 20 prompts that both sides have" in result.footnotes


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ((0, 0), "a 2 % difference would show with the prompts that there are"),
        ((0, 40), "up to about 40 more prompts would show a 2 % difference"),
        ((40, 40), "about 40 more prompts would show a 2 % difference"),
        ((20, 40), "about 20 to 40 more prompts would show a 2 % difference"),
    ],
)
def test_the_advice_for_many_comparisons_reads_well(missing: tuple[int, int], says: str) -> None:
    versuses = [
        Versus("a", Estimate(0.0), Estimate(0.0), 0.5, 0.5, "~", 24, 24 + more, detectable=0.1)
        for more in missing
    ]
    assert _advice_for_many(versuses) == says


def test_two_turns_and_two_samples_do_not_count_as_more_prompts(tmp_path: Path) -> None:
    once = rows_of("d", 2.0, range(12))
    turns = [
        row("d", one.prompt_id, one.accept_lengths, turn=1, prompt_hash=f"{one.prompt_id}/1") for one in once
    ]
    twice = [*(row("d", one.prompt_id, one.accept_lengths) for one in once), *turns]
    (alone,) = by_name(compared(tmp_path, [row("d", r.prompt_id, r.accept_lengths) for r in once])).values()
    (doubled,) = by_name(compared(tmp_path / "turns", twice)).values()
    assert doubled.clusters == 12
    assert doubled.rows == 24
    assert doubled.figure.value == pytest.approx(alone.figure.value)
    assert doubled.figure.low == pytest.approx(alone.figure.low, abs=0.02)
    assert doubled.figure.high == pytest.approx(alone.figure.high, abs=0.02)


def test_several_payloads_are_mentioned(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", rows_of("a", 2.0, range(6)))
    second = write_run(tmp_path / "b", rows_of("b", 2.0, range(6)), payload_hash="q" * 64)
    result = compare(load([Source(first), Source(second)]), Wanted())
    assert f"the runs come from 2 payloads: {'p' * 12}, {'q' * 12}" in result.footnotes


def test_nothing_in_common_is_said_not_compared(tmp_path: Path) -> None:
    rows = [*rows_of("a", 2.0, range(6)), *rows_of("b", 2.0, range(6, 12))]
    result = compared(tmp_path, rows, Wanted("a"))
    assert by_name(result)["b"].versus_baseline is None
    assert "chain: no prompt in common, so not compared: b" in result.footnotes


def test_no_rows_say_what_to_do_next(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no rows to compare yet in run") as caught:
        compared(tmp_path, [])
    assert "orch eval" in caught.value.hint


def test_an_unknown_dialect_lists_them(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        compared(tmp_path, [row("d", "p", walk("d", "p", 2.0))], Wanted(dialect="zlabs"))
    assert "zlab" in caught.value.hint


def test_labels_sort_as_people_count() -> None:
    assert sorted(["s10", "s9", "s", "a2b", "a10b"], key=natural_key) == ["a2b", "a10b", "s", "s9", "s10"]


def test_some_drafters_with_few_prompts_are_listed_by_their_number(tmp_path: Path) -> None:
    rows = [*rows_of("a", 1.2, range(8)), *rows_of("b", 1.3, range(5)), *rows_of("c", 1.4, range(5))]
    assert compared(tmp_path, rows, Wanted("a")).footnotes[0].endswith(": b, c have 5")


def test_only_steps_of_one_training_are_compared_with_the_one_before(tmp_path: Path) -> None:
    labels = ("alpha", "beta", "lr1_step_9", "lr1_step_10", "lr2_step_9")
    rows = [one for label in labels for one in rows_of(label, 2.0, range(8))]
    found = by_name(compared(tmp_path, rows, Wanted("alpha")))
    previous = {name: entry.versus_previous for name, entry in found.items()}
    assert {name: v.against for name, v in previous.items() if v} == {"lr1_step_10": "lr1_step_9"}


def test_variants_of_one_step_are_not_steps_of_each_other(tmp_path: Path) -> None:
    rows = [*rows_of("step_9", 2.0, range(8)), *rows_of("step_9", 2.2, range(8), block_size=6)]
    rows += [*rows_of("step_20", 2.0, range(8)), *rows_of("step_20", 2.2, range(8), block_size=6)]
    found = by_name(compared(tmp_path, rows, Wanted("none")))
    assert {n: e.versus_previous.against for n, e in found.items() if e.versus_previous} == {
        "step_20 [B 6]": "step_9 [B 6]",
        "step_20 [B 8]": "step_9 [B 8]",
    }


def test_a_verdict_that_the_interval_seems_to_contradict_is_explained(tmp_path: Path) -> None:
    base = compared(tmp_path, [*rows_of("a", 2.0, range(8)), *rows_of("b", 2.0, range(8))], Wanted("a"))
    (block,) = base.blocks
    first, second = block.entries
    assert second.versus_baseline is not None

    def notes(verdict: str, low: float, high: float) -> list[str]:
        versus = replace(second.versus_baseline, verdict=verdict, change=Estimate(-0.3, low, high))
        return list(_rules_differ([replace(block, entries=(first, replace(second, versus_baseline=versus)))]))

    (undecided,) = notes("~", -0.528, -0.088)
    assert undecided.startswith("~ chain: undecided although the interval leaves out 0 (b against a): ")
    assert "adjusted for all comparisons of the table" in undecided
    (decided,) = notes("worse", -0.5, 0.01)
    assert "decided although the interval holds 0" in decided
    assert notes("~", -0.5, 0.01) == notes("worse", -0.5, -0.1) == []
