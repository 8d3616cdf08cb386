"""The gate: what passes, what fails, and that doubt falls on the right side."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.compare.build import Wanted, compare
from orchestrator.compare.gate import FAIL_IF_WORSE, REQUIRE_NOT_WORSE, judge, read_margin
from orchestrator.compare.load import Source, load
from orchestrator.compare.model import Comparison
from orchestrator.compare.stats import Estimate
from orchestrator.errors import UsageError
from tests.orchestrator.compare.folders import row, rows_of, write_run


@pytest.fixture
def result(tmp_path: Path) -> Comparison:
    rows = [
        one
        for name, mean in (("a", 2.0), ("b", 2.1))
        for shape in ("chain", "topk:4")
        for one in rows_of(name, mean, shape=shape)
    ]
    return compare(load([Source(write_run(tmp_path / "run", rows))]), Wanted("a"))


def with_change(result: Comparison, low: float | None, high: float | None) -> Comparison:
    """The same comparison with another interval of the change of b under the chain."""
    block = result.blocks[0]
    a, b = block.entries
    assert b.versus_baseline is not None
    value = math.nan if low is None or high is None else (low + high) / 2
    versus = replace(b.versus_baseline, change=Estimate(value, low, high))
    entries = (a, replace(b, versus_baseline=versus))
    return replace(result, blocks=(replace(block, entries=entries), *result.blocks[1:]))


@pytest.mark.parametrize(
    ("low", "high", "fails_if_worse", "required"),
    [
        (-0.05, -0.03, True, True),  # surely worse by more than 2 %
        (-0.05, -0.02, False, True),  # its upper end is not below -2 %
        (-0.05, 0.01, False, True),  # undecided
        (-0.02, 0.01, False, True),  # its lower end is not above -2 %
        (-0.019, 0.01, False, False),  # surely not worse by 2 %
        (0.01, 0.05, False, False),
        (None, None, False, True),  # nothing is known
    ],
)
def test_doubt_passes_fail_if_worse_and_fails_require_not_worse(
    result: Comparison, low: float | None, high: float | None, fails_if_worse: bool, required: bool
) -> None:
    changed = with_change(result, low, high)
    assert judge(changed, FAIL_IF_WORSE, 0.02).passed is not fails_if_worse
    assert judge(changed, REQUIRE_NOT_WORSE, 0.02).passed is not required


def test_a_verdict_says_why(result: Comparison) -> None:
    (verdict,) = judge(with_change(result, -0.05, -0.03), FAIL_IF_WORSE, 0.02).verdicts
    assert (verdict.name, verdict.against, verdict.shape) == ("b", "a", "chain")
    assert verdict.why == "the upper end of the interval, -3.00 %, lies below -2 %"
    (verdict,) = judge(with_change(result, -0.05, 0.01), REQUIRE_NOT_WORSE, 0.02).verdicts
    assert verdict.why == "the lower end of the interval, -5.00 %, does not lie above -2 %"


def test_few_prompts_and_none_in_common_are_said(tmp_path: Path) -> None:
    rows = [
        *(row("a", f"p{n}", [2]) for n in range(3)),
        *(row("b", f"p{n}", [3]) for n in range(3)),
        row("c", "q", [3]),
    ]
    few = compare(load([Source(write_run(tmp_path / "run", rows))]), Wanted("a"))
    whys = {v.name: (v.passed, v.why) for v in judge(few, REQUIRE_NOT_WORSE, 0.02).verdicts}
    assert whys["b"][0] is False
    assert whys["b"][1].startswith("no interval: 3 common prompts, 6 are needed")
    assert whys["c"][1].startswith("no prompt in common with a")
    assert judge(few, FAIL_IF_WORSE, 0.02).passed


def test_ceilings_are_judged_only_where_there_is_nothing_else(result: Comparison) -> None:
    assert {v.shape for v in judge(result, FAIL_IF_WORSE, 0.02).verdicts} == {"chain"}
    ceilings = replace(result, blocks=result.blocks[1:])
    assert {v.shape for v in judge(ceilings, FAIL_IF_WORSE, 0.02).verdicts} == {"topk:4"}


def test_without_a_baseline_or_a_candidate_there_is_no_gate(result: Comparison) -> None:
    with pytest.raises(UsageError, match="needs a baseline"):
        judge(replace(result, baseline=None), FAIL_IF_WORSE, 0.02)
    alone = replace(result.blocks[0], entries=result.blocks[0].entries[:1])
    with pytest.raises(UsageError, match="nothing here but the baseline 'a'"):
        judge(replace(result, blocks=(alone,)), FAIL_IF_WORSE, 0.02)


@pytest.mark.parametrize(("text", "margin"), [("2%", 0.02), ("0.5 %", 0.005), ("0%", 0.0), (" 12.5%", 0.125)])
def test_a_margin_is_a_percentage(text: str, margin: float) -> None:
    assert read_margin(FAIL_IF_WORSE, text) == pytest.approx(margin)


@pytest.mark.parametrize("text", ["2", "0.02", "-2%", "100%", "two%", "%", "nan%", "1e1%"])
def test_anything_else_is_refused_with_how_to_write_it(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_margin(FAIL_IF_WORSE, text)
    assert "--fail-if-worse 2%" in caught.value.hint
