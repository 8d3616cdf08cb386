"""The rules by themselves: what is named, what is not, on measurements that are made up."""

from __future__ import annotations

import pytest

from remote_payload.diagnose.accounts import Check
from remote_payload.diagnose.compared import Compared
from remote_payload.diagnose.paired import Difference
from remote_payload.diagnose.probe import Alteration
from remote_payload.diagnose.rules import TAU_FLOOR, Tried, Verdict, judge
from remote_payload.diagnose.variants import Variant
from remote_payload.drafters.convention import Convention

PROMPTS = 33
LOADED = [Check("scales", "ok", "", {"from_one": 0.2})]


def _difference(delta: float, score: float) -> Difference:
    error = abs(delta / score) if score else 1.0
    return Difference(delta, delta - 2 * error, delta + 2 * error, score, PROMPTS)


def _tried(slug: str, gain: float, score: float, *, tau: float = 3.0, tau_score: float = 0.0) -> Tried:
    variant = Variant(slug, Convention(), Alteration(), 8, 0, {"value": True, "offset": 1, "id": 1})
    compared = Compared(
        tau,
        1.0,
        _difference(tau - 3.0, tau_score),
        _difference(0.1 * tau_score, tau_score),
        _difference(gain, score),
    )
    return Tried(variant, compared)


def _worse() -> list[Tried]:
    return [_tried("no_final_norm", -0.2, -6.0, tau=2.5, tau_score=-3.0) for _ in range(30)] + [
        _tried("context_order", -0.9, -9.0, tau=1.2, tau_score=-8.0)
    ]


def _judge(
    *tried: Tried, tau: float = 3.0, margin: float = 9.0, checks: list[Check] | None = None
) -> Verdict:
    def versus(_first: Tried, _second: Tried) -> Compared:
        return Compared(
            3.0, 1.0, _difference(0.1, margin), _difference(0.1, margin), _difference(0.1, margin)
        )

    return judge(tau, [*tried, *_worse()], versus, checks or LOADED)


def test_nothing_fits_better_and_the_drafter_is_fine() -> None:
    found = _judge()
    assert (found.verdict, found.cause) == ("ok", None)
    assert found.confidence > 0.99


def test_what_stands_out_is_named() -> None:
    found = _judge(_tried("positions_plus1", 0.15, 6.0, tau=3.6, tau_score=4.0))
    assert (found.verdict, found.cause) == ("convention", "positions_plus1")
    assert found.confidence > 0.99


def test_both_measures_together_name_what_neither_would_alone() -> None:
    found = _judge(_tried("layer_minus1", 0.03, 1.9, tau=3.2, tau_score=4.1))
    assert (found.verdict, found.cause) == ("convention", "layer_minus1")
    assert _judge(_tried("layer_minus1", 0.03, 1.9, tau=3.0, tau_score=0.5)).verdict == "ok"


def test_a_gain_that_costs_tau_is_no_departure() -> None:
    assert _judge(_tried("mask_token", 0.06, 6.0, tau=2.4, tau_score=-3.0)).verdict == "ok"


@pytest.mark.parametrize(("slug", "gain"), [("anchor_in_context", 0.05), ("block_size", 0.1)])
def test_what_sound_drafters_gain_from_too_has_to_gain_more(slug: str, gain: float) -> None:
    assert _judge(_tried(slug, gain, 8.0)).verdict == "ok"
    assert _judge(_tried(slug, 2 * gain, 8.0, tau=3.5, tau_score=3.0)).cause == slug


def test_two_that_are_not_told_apart_are_both_candidates() -> None:
    first = _tried("label_shift", 0.2, 6.0, tau=3.5, tau_score=4.0)
    second = _tried("positions_minus1", 0.19, 6.0, tau=3.5, tau_score=4.0)
    found = _judge(first, second, margin=0.4)
    assert (found.verdict, found.cause) == ("unknown", None)
    assert [found.chosen, *found.rivals] == [first, second]
    assert _judge(first, second, margin=5.0).cause == "label_shift"


def test_below_the_floor_all_is_noise() -> None:
    noisy = _tried("rope_theta", 0.06, 5.0, tau=1.7, tau_score=3.0)
    assert _judge(noisy, tau=1.6).verdict == "undertrained"
    # What lifts it above the floor is no noise.
    lifts = _tried("label_shift", 0.3, 6.0, tau=TAU_FLOOR + 0.5, tau_score=5.0)
    assert _judge(lifts, tau=1.6).cause == "label_shift"


def test_sight_of_other_blocks_is_named_below_the_floor_if_much_comes_back_with_it() -> None:
    assert _judge(_tried("cross_block", 0.35, 17.0, tau=2.4), tau=1.99).cause == "cross_block"
    assert _judge(_tried("cross_block", 0.1, 17.0, tau=2.4), tau=1.99).verdict == "undertrained"


def test_a_blind_drafter_with_the_weights_of_a_long_training_is_not_called_undertrained() -> None:
    blind = [_tried("context_order", -0.01, -0.5, tau=1.1), _tried("no_context", 0.0, 0.1, tau=1.1)]

    def versus(_first: Tried, _second: Tried) -> Compared:
        raise AssertionError("nothing to compare")

    trained = [Check("scales", "ok", "", {"from_one": 0.2})]
    found = judge(1.1, blind, versus, trained)
    assert (found.verdict, found.unmeasured) == ("unknown", ("fc_random",))
    fresh = [Check("scales", "ok", "", {"from_one": 0.01})]
    assert judge(1.1, blind, versus, fresh).verdict == "undertrained"


def test_a_harness_that_disagrees_with_itself_judges_nobody() -> None:
    broken = [*LOADED, Check("parity", "fault", "they part for a real reason")]
    found = _judge(_tried("positions_plus1", 0.3, 9.0, tau=4.0, tau_score=5.0), checks=broken)
    assert (found.verdict, found.cause) == ("numerics", None)


def test_overflow_has_its_name() -> None:
    broken = [*LOADED, Check("numerics", "fault", "NaN", {"overflow": True})]
    found = _judge(checks=broken)
    assert (found.verdict, found.cause) == ("numerics", "fp16_overflow")


def test_two_prompts_name_nothing() -> None:
    variant = Variant("positions_plus1", Convention(), Alteration(), 8, 0)
    few = Difference(0.2, 0.1, 0.3, 5.0, 2)
    assert not Tried(variant, Compared(4.0, 1.0, few, few, few)).fits_better(37)


def test_below_the_floor_another_rendering_is_a_candidate() -> None:
    rendered = Check("template: thinking on", "note", "tau +0.9 with thinking on")
    found = _judge(tau=1.4, checks=[*LOADED, rendered])
    assert (found.verdict, found.unmeasured) == ("unknown", ("template",))
    assert _judge(tau=3.0, checks=[*LOADED, rendered]).verdict == "ok"


def test_a_handful_of_prompts_tells_nothing() -> None:
    variant = Variant("no_final_norm", Convention(), Alteration(), 8, 0, {"value": False})
    few = Difference(-0.2, -0.3, -0.1, -5.0, 5)

    def versus(_first: Tried, _second: Tried) -> Compared:
        raise AssertionError("nothing to compare")

    found = judge(3.0, [Tried(variant, Compared(2.5, 1.0, few, few, few))], versus, LOADED)
    assert (found.verdict, found.cause) == ("unknown", None)
    assert "5 prompts are too few" in found.sentence


def test_an_output_that_does_not_react_is_said() -> None:
    dead = [*LOADED, Check("reaction", "fault", "the output does not move where the context is shuffled")]
    found = _judge(checks=dead)
    assert (found.verdict, found.cause) == ("unknown", None)
    assert "does not move" in found.sentence
