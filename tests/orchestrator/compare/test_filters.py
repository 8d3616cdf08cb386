"""`--filter`: what passes, what is spared, and what is said where nothing does."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.compare.build import Wanted, compare
from orchestrator.compare.filters import FIELDS, read_filter
from orchestrator.compare.load import Measurements, Source, load
from orchestrator.compare.model import Comparison
from orchestrator.errors import UsageError
from remote_payload import tau
from tests.orchestrator.compare.folders import rows_of, write_run

MEANS = {"step_100": 1.8, "step_400": 2.4, "step_900": 2.6, "other": 2.0, "reference": 3.5}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Measurements:
    rows = [one for name, mean in MEANS.items() for one in rows_of(name, mean, range(20), seed=3)]
    return load([Source(write_run(tmp_path_factory.mktemp("filters") / "run", rows))])


def compared(loaded: Measurements, *filters: str, baseline: str | None = "reference") -> Comparison:
    return compare(loaded, Wanted(default_baseline=baseline, filters=filters))


def names(result: Comparison) -> list[str]:
    return [entry.name for entry in result.blocks[0].entries]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["step>=400"], ["reference", "step_400", "step_900"]),
        (["step>100", "step<900"], ["reference", "step_400"]),
        (["step=100"], ["reference", "step_100"]),
        (["step!=100"], ["reference", "step_400", "step_900"]),
        (["drafter=step_*"], ["reference", "step_100", "step_400", "step_900"]),
        (["drafter=other|step_1*"], ["reference", "other", "step_100"]),
        (["drafter=other", "drafter=step_9*"], ["reference", "other", "step_900"]),
        (["drafter!=step_*"], ["reference", "other"]),
        (["drafter=step_*", "drafter!=*_900"], ["reference", "step_100", "step_400"]),
    ],
)
def test_drafters_are_chosen_and_the_baseline_is_spared(
    loaded: Measurements, filters: list[str], expected: list[str]
) -> None:
    result = compared(loaded, *filters)
    assert names(result) == expected
    assert result.filters == tuple(filters)


def test_without_a_baseline_nobody_is_spared(loaded: Measurements) -> None:
    assert names(compared(loaded, "drafter=other", baseline=None)) == ["other"]


def test_rows_are_chosen_and_every_figure_is_of_those_alone(loaded: Measurements) -> None:
    entry = compared(loaded, "dataset=code").blocks[0].entries[1]
    rows = [one for one in rows_of(entry.name, MEANS[entry.name], range(20)) if one.dataset == "code"]
    walks = [tau.Walk(one.accept_lengths, one.output_tokens) for one in rows]
    assert entry.figure.value == pytest.approx(tau.tau(walks))
    assert list(entry.histogram) == tau.acceptance_histogram(walks, 8)
    assert (entry.clusters, [part.name for part in entry.datasets]) == (10, ["code"])
    assert entry.dialects == pytest.approx(
        {name: formula(walks) for name, (formula, _) in tau.DIALECTS.items()}
    )


@pytest.mark.parametrize(
    ("filters", "prompts"),
    [
        (["prompt=prompt-0[0-4]"], 5),
        (["prompt!=prompt-1*", "dataset=prose"], 5),
        (["turn=0", "sample<1"], 20),
    ],
)
def test_prompts_turns_and_samples(loaded: Measurements, filters: list[str], prompts: int) -> None:
    assert {entry.clusters for entry in compared(loaded, *filters).blocks[0].entries} == {prompts}


def test_where_nothing_is_left_the_error_says_what_there_is(loaded: Measurements) -> None:
    with pytest.raises(UsageError, match="--filter dataset=math: no row is left") as caught:
        compared(loaded, "dataset=math")
    assert "dataset: code, prose" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("colour=red", "no such filter"),
        ("dataset", "no such filter"),
        ("dataset>code", "dataset is a text"),
        ("step=many", "'many' is no number"),
    ],
)
def test_what_is_no_filter_is_refused_with_what_would_be(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_filter(text)
    assert said in caught.value.message
    assert caught.value.hint


def test_every_field_can_be_read() -> None:
    assert all(read_filter(f"{field}=1").field == field for field in FIELDS)


def test_engine_block_size_temperature_and_shape_are_of_whole_series(tmp_path: Path) -> None:
    rows = [
        *rows_of("a", 2.0, range(6)),
        *rows_of("a", 2.0, range(6), block_size=4),
        *rows_of("a", 2.0, range(6), engine="live"),
        *rows_of("a", 2.0, range(6), shape="ddtree:4"),
    ]
    mixed = load([Source(write_run(tmp_path / "run", rows))])
    for text, count in (("block_size<8", 1), ("engine=live", 1), ("shape=ddtree*", 1), ("temperature=0", 4)):
        result = compared(mixed, text, baseline=None)
        assert sum(len(block.entries) for block in result.blocks) == count, text


def test_a_baseline_that_is_a_variant_of_a_checkpoint_is_spared_too(tmp_path: Path) -> None:
    rows = [
        *rows_of("base", 2.0, range(6)),
        *rows_of("base", 2.0, range(6), block_size=4),
        *rows_of("other", 2.0, range(6)),
    ]
    mixed = load([Source(write_run(tmp_path / "run", rows))])
    result = compare(mixed, Wanted(baseline="base [B 4]", filters=("drafter=other",)))
    assert names(result) == ["base [B 4]", "base [B 8]", "other"]
