"""Metrics, curves, contexts, temperatures, everyone against everyone: against figures computed by hand."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path

import pytest

from orchestrator.compare.build import Wanted, compare
from orchestrator.compare.load import Source, load
from orchestrator.compare.model import Comparison
from orchestrator.compare.report.grids import best_step
from orchestrator.compare.report.tables import View, layout, to_plain
from orchestrator.compare.stats import holm
from orchestrator.errors import NotComparableError, UsageError
from remote_payload.figures import by_context_length, conditional_survival
from remote_payload.protocol import Row
from tests.orchestrator.compare.folders import row, rows_of, walk, write_run


def compared(tmp_path: Path, rows: list[Row], wanted: Wanted) -> Comparison:
    return compare(load([Source(write_run(tmp_path / "run", rows))]), wanted)


def test_acceptance_at_a_position_is_the_share_of_rounds(tmp_path: Path) -> None:
    rows = rows_of("d", 2.6)
    lengths = [length for one in rows for length in one.accept_lengths]
    came = [sum(length > k for length in lengths) for k in range(8)]
    for k in (1, 3):
        whole = compared(tmp_path / f"a{k}", rows, Wanted(metric=f"accept@{k}"))
        assert whole.blocks[0].entries[0].figure.value == pytest.approx(came[k] / came[0])
        assert "at least" in whole.metric_words
        part = compared(tmp_path / f"c{k}", rows, Wanted(metric=f"conditional@{k}"))
        assert part.blocks[0].entries[0].figure.value == pytest.approx(came[k] / came[k - 1])


def test_conditional_survival_is_the_payloads_own(tmp_path: Path) -> None:
    entry = compared(tmp_path, rows_of("d", 2.6), Wanted()).blocks[0].entries[0]
    theirs = conditional_survival([None if math.isnan(s) else s for s in entry.survival])
    assert [None if math.isnan(s) else s for s in entry.conditional] == pytest.approx(theirs, abs=1e-6)


def test_the_mean_over_datasets_has_an_interval_and_a_verdict_of_its_own(tmp_path: Path) -> None:
    rows = [*rows_of("a", 2.0), *rows_of("b", 3.0)]
    result = compared(tmp_path, rows, Wanted("a", metric="tau_dataset_mean"))
    a, b = result.blocks[0].entries
    for entry in (a, b):
        assert entry.figure.value == pytest.approx(entry.dataset_mean)
        assert entry.figure.low is not None
        assert entry.figure.low < entry.figure.value < entry.figure.high  # type: ignore[operator]
    assert b.versus_baseline is not None
    assert b.versus_baseline.change.value == pytest.approx(b.dataset_mean / a.dataset_mean - 1)
    assert b.versus_baseline.verdict == "better"


@pytest.mark.parametrize(
    ("metric", "dialect", "said"),
    [
        ("speed", "tau", "no such metric"),
        ("accept@0", "tau", "no such metric"),
        ("accept@2", "zlab", "do not go together"),
        ("tau", "none", "no such dialect"),
    ],
)
def test_what_is_no_metric_is_refused(tmp_path: Path, metric: str, dialect: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        compared(tmp_path, rows_of("d", 2.0, range(6)), Wanted(metric=metric, dialect=dialect))


def test_the_curve_over_steps_names_the_best_with_its_probability(tmp_path: Path) -> None:
    means = {"step_100": 1.5, "step_900": 3.0, "step_1000": 2.9, "reference": 4.0}
    rows = [one for name, mean in means.items() for one in rows_of(name, mean, range(30))]
    result = compared(tmp_path, rows, Wanted(default_baseline="reference"))
    (curve,) = result.curves
    entries = {entry.name: entry for entry in result.blocks[0].entries}
    assert (curve.training, [point.step for point in curve.points]) == ("step_*", [100, 900, 1000])
    assert [point.figure for point in curve.points] == [entries[p.name].figure for p in curve.points]
    assert curve.best == max(curve.points, key=lambda point: point.figure.value).name
    assert sum(point.best or 0 for point in curve.points) == pytest.approx(1)
    assert curve.points[0].best == pytest.approx(0, abs=1e-3)
    assert curve.probability == next(point.best for point in curve.points if point.name == curve.best)
    assert curve.reference == entries["reference"].figure
    assert curve.clusters == 30


def test_the_probability_of_being_best_rests_on_the_prompts_that_all_steps_have(tmp_path: Path) -> None:
    rows = [
        *rows_of("s1", 2.0, range(20)),
        *rows_of("s2", 2.5, range(4, 24)),
        *rows_of("s3", 2.2, range(3, 30)),
    ]
    (curve,) = compared(tmp_path, rows, Wanted()).curves
    assert curve.clusters == 16
    few = [*rows_of("s1", 2.0, range(6)), *rows_of("s2", 2.5, range(3, 9))]
    (curve,) = compared(tmp_path / "few", few, Wanted()).curves
    assert (curve.probability, curve.clusters) == (None, 3)


def test_the_best_step_is_the_best_on_the_prompts_that_all_steps_have(tmp_path: Path) -> None:
    easy = [row("s1", f"easy-{number}", [8] * 6) for number in range(20)]
    rows = [*rows_of("s1", 2.0), *easy, *rows_of("s2", 2.6)]
    result = compared(tmp_path, rows, Wanted())
    first, second = result.blocks[0].entries
    assert first.figure.value > second.figure.value, "on its own prompts, which are easier"
    (curve,) = result.curves
    assert (curve.best, curve.clusters) == ("s2", 24)
    assert curve.probability is not None
    assert curve.probability > 0.95


def test_where_no_step_has_the_figure_none_is_the_best(tmp_path: Path) -> None:
    rows = [one for step in (1, 2, 3) for one in rows_of(f"s{step}", 2.0, range(8))]
    result = compared(tmp_path, rows, Wanted(metric="conditional@9"))
    (curve,) = result.curves
    assert (curve.best, curve.probability) == (None, None)
    assert best_step(curve) == "best step: none, the figure is undefined for all 3 steps"
    assert "best step: none" in to_plain(layout(result, View()))


def test_steps_of_several_epochs_are_one_training(tmp_path: Path) -> None:
    names = {"epoch_1_step_400": 1.8, "epoch_2_step_900": 2.4, "epoch_10_step_1200": 2.6}
    rows = [one for name, mean in names.items() for one in rows_of(name, mean, range(8))]
    result = compared(tmp_path, rows, Wanted())
    (curve,) = result.curves
    assert (curve.training, [p.step for p in curve.points]) == ("epoch_*_step_*", [400, 900, 1200])
    previous = {e.name: e.versus_previous.against for e in result.blocks[0].entries if e.versus_previous}
    assert previous == {"epoch_2_step_900": "epoch_1_step_400", "epoch_10_step_1200": "epoch_2_step_900"}


def test_one_step_alone_and_names_without_steps_make_no_curve(tmp_path: Path) -> None:
    rows = [*rows_of("step_1", 2.0, range(6)), *rows_of("final", 2.5, range(6))]
    assert compared(tmp_path, rows, Wanted()).curves == ()


def test_the_tree_curve_has_trees_only_and_the_chain_beside_them(tmp_path: Path) -> None:
    shapes = ("chain", "ddtree:16", "ddtree:4", "topk:4")
    rows = [one for shape in shapes for one in rows_of("d", 2.0, range(8), shape=shape)]
    rows += rows_of("chain-only", 2.0, range(8))
    result = compared(tmp_path, rows, Wanted())
    (curve,) = result.budgets
    assert (curve.name, [(p.shape, p.size) for p in curve.points]) == (
        "d",
        [("ddtree:4", 4), ("ddtree:16", 16)],
    )
    figures = {block.shape: block.entries[-1].figure for block in result.blocks}
    assert [point.figure for point in curve.points] == [figures["ddtree:4"], figures["ddtree:16"]]
    assert curve.chain == figures["chain"]


def test_figures_by_context_are_the_payloads_own_buckets(tmp_path: Path) -> None:
    rows = [
        row("d", f"p{number}", walk("d", f"p{number}", 2.5), prompt_tokens=3 + 29 * number)
        for number in range(12)
    ]
    (entry,) = compared(tmp_path, rows, Wanted(details=frozenset({"context"}))).blocks[0].entries
    theirs = by_context_length(rows)
    assert {
        str(part.low): {"tau": pytest.approx(part.figure.value, abs=1e-6), "rounds": part.rounds}
        for part in entry.contexts
    } == theirs
    assert all(part.high == (2 * part.low or 16) for part in entry.contexts)
    assert compared(tmp_path / "unasked", rows, Wanted()).blocks[0].entries[0].contexts == ()


def test_temperatures_stand_side_by_side_when_they_are_the_dimension(tmp_path: Path) -> None:
    rows = [
        one
        for temperature in (0.0, 0.7)
        for name, mean in (("a", 2.0), ("b", 3.0))
        for one in rows_of(name, mean - temperature, range(12), temperature=temperature)
    ]
    with pytest.raises(NotComparableError) as caught:
        compared(tmp_path / "no", rows, Wanted("a"))
    assert "--by temperature" in caught.value.hint
    result = compared(tmp_path, rows, Wanted("a", details=frozenset({"temperature"})))
    assert [(block.shape, block.temperature) for block in result.blocks] == [("chain", 0.0), ("chain", 0.7)]
    for block in result.blocks:
        assert [entry.name for entry in block.entries] == ["a", "b"]
        assert {entry.settings["temperature"] for entry in block.entries} == {block.temperature}
        against = block.entries[1].versus_baseline
        assert against is not None
        assert against.change.value == pytest.approx(
            block.entries[1].figure.value / block.entries[0].figure.value - 1
        )
    assert result.allowed == ()


def test_another_difference_is_refused_beside_temperature_too(tmp_path: Path) -> None:
    rows = [
        *rows_of("a", 2.0, range(6)),
        *rows_of("a", 2.0, range(6), temperature=0.7),
        *rows_of("b", 2.0, range(6), temperature=0.7, top_p=0.9),
    ]
    with pytest.raises(NotComparableError, match=r"top_p is 0\.9 in run, 1\.0 in run"):
        compared(tmp_path, rows, Wanted(details=frozenset({"temperature"})))


def test_everyone_against_everyone_is_corrected_for_each_two_once(tmp_path: Path) -> None:
    rows = [one for name, mean in (("a", 2.0), ("b", 2.1), ("c", 2.6)) for one in rows_of(name, mean)]
    (block,) = compared(tmp_path, rows, Wanted(details=frozenset({"baseline"}))).blocks
    found = {(name, versus.against): versus for name, versus in block.everyone}
    assert set(found) == {(x, y) for x in "abc" for y in "abc" if x != y}
    for (x, y), versus in found.items():
        back = found[y, x]
        assert (versus.p, versus.p_adjusted) == (back.p, back.p_adjusted)
        assert (1 + versus.change.value) * (1 + back.change.value) == pytest.approx(1)
    raw = [found[pair].p for pair in (("b", "a"), ("c", "a"), ("c", "b"))]
    assert [found[pair].p_adjusted for pair in (("b", "a"), ("c", "a"), ("c", "b"))] == pytest.approx(
        holm(raw)
    )


def test_every_prompt_of_a_pair_is_there_with_both_figures(tmp_path: Path) -> None:
    rows = [*rows_of("a", 2.0), *rows_of("b", 3.0)]
    result = compared(tmp_path, rows, Wanted("a", details=frozenset({"prompt"})))
    versus = result.blocks[0].entries[1].versus_baseline
    assert versus is not None
    lists: dict[str, dict[str, list[int]]] = defaultdict(dict)
    for one in rows:
        lists[one.prompt_id][one.drafter] = one.accept_lengths
    assert [pair.prompt_id for pair in versus.pairs if pair.dataset == "code"] == [
        f"prompt-{number:02d}" for number in range(0, 24, 2)
    ]
    for pair in versus.pairs:
        own = lists[pair.prompt_id]
        assert pair.reference == pytest.approx(sum(own["a"]) / len(own["a"]))
        assert pair.candidate == pytest.approx(sum(own["b"]) / len(own["b"]))
        assert pair.rounds == len(own["b"])
    weighed = sum(pair.candidate * pair.rounds for pair in versus.pairs) / sum(p.rounds for p in versus.pairs)
    assert weighed == pytest.approx(result.blocks[0].entries[1].figure.value)


def test_turns_of_a_conversation_are_one_cluster_of_a_pair(tmp_path: Path) -> None:
    rows = [
        row(name, f"talk-{number}", [2 + (name == "b"), 3], turn=turn, prompt_hash=f"{number}-{turn}")
        for name in "ab"
        for number in range(7)
        for turn in (0, 1)
    ]
    result = compared(tmp_path, rows, Wanted("a", details=frozenset({"prompt"})))
    versus = result.blocks[0].entries[1].versus_baseline
    assert versus is not None
    assert (versus.clusters, len(versus.pairs)) == (7, 7)
    assert versus.change.value == pytest.approx(6 / 5 - 1)


def test_by_dataset_is_made_for_the_first_shape_and_for_all_on_request(tmp_path: Path) -> None:
    rows = [one for shape in ("chain", "ddtree:4") for one in rows_of("d", 2.0, shape=shape)]
    unasked = compared(tmp_path, rows, Wanted())
    assert [block.entries[0].datasets[0].figure.low is not None for block in unasked.blocks] == [True, False]
    asked = compared(tmp_path / "asked", rows, Wanted(details=frozenset({"dataset"})))
    assert all(part.figure.low is not None for block in asked.blocks for part in block.entries[0].datasets)
    values = [[part.figure.value for part in block.entries[0].datasets] for block in asked.blocks]
    assert values == [[part.figure.value for part in block.entries[0].datasets] for block in unasked.blocks]
