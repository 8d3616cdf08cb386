"""From evidence to a verdict. The thresholds were frozen on drafters of one training seed and tried on another's.

What always holds:

* A departure is named only if it makes the true tokens clearly more likely (over all prompts, all variants tried
  counted in), by more than sound drafters gain from it, without costing tau; and clearly more than every other
  departure does. Where two cannot be told apart, both are candidates and the verdict is `unknown`.
* Below a tau of `TAU_FLOOR`, under the best variant, everything is noise: undertrained, not a convention.
* `loading` needs positive evidence in the files, never a low tau alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remote_payload.diagnose.paired import student_cdf, student_quantile

if TYPE_CHECKING:
    from remote_payload.diagnose.accounts import Check
    from remote_payload.diagnose.compared import Compared
    from remote_payload.diagnose.variants import Variant

__all__ = ["Tried", "Verdict", "judge"]

TAU_FLOOR, LEAST_PROMPTS = 2.0, 6
LEAST_GAIN = 0.02
"""A gain (`compared.Compared`) below this is not a departure, however significant; half of it, where tau agrees."""
LEAST_GAINS = {"anchor_in_context": 0.08, "block_size": 0.12}
"""Sound drafters gain from these too: the anchor's feature leaks, and a smaller block asks less of a slot."""
_NOT_BY_TAU = frozenset({"block_size", "cross_block", "label_shift"})
"""Slugs whose variants draft other numbers of tokens, or do what no harness can: their tau says nothing against them."""
CROSS_BLOCK_GAIN = 0.2
"""From here on (its interval's lower end) sight of other blocks is named below the floor of tau too: only a drafter that
was trained with it gains so much from it."""
LEVEL, EACH, SEPARATION, SUSPECT = 0.01, 0.06, 0.05, 0.01
"""Chance of naming a departure by noise, over all variants together; of either measure by itself, where both have to
agree; of taking one departure for another; and of suspecting one variant by noise."""
BEHIND = 0.9
"""Against a reference drafter: undertrained where tau is below this share of its, interval and all."""


def agreement(compared: Compared) -> float:
    """Returns both measures' scores as one: their sum over the square root of two (they are nearly independent)."""
    return (compared.gain.score + compared.tau_gain.score) / math.sqrt(2)


@dataclass(frozen=True)
class Tried:
    """A variant and how it compared with the declared way; `reference` is the reference drafter's gain from it."""

    variant: Variant
    compared: Compared
    reference: float | None = None

    @property
    def gain(self) -> float:
        """Its gain, less what the reference drafter gains from it, where that is positive."""
        return self.compared.gain.delta - max(self.reference or 0.0, 0.0)

    @property
    def least(self) -> float:
        """What it has to gain."""
        return LEAST_GAINS.get(self.variant.slug, LEAST_GAIN)

    def fits_better(self, variants: int) -> bool:
        """Whether it is a departure that noise does not explain.

        The likelihood alone, or both measures together; all variants that were tried are counted in.
        """
        gain, tau = self.compared.gain, self.compared.tau_gain
        freedom = gain.clusters - 1
        if freedom < 1:
            return False
        bar = student_quantile(freedom, 1 - LEVEL / variants)
        if self.variant.slug in _NOT_BY_TAU:
            return gain.score >= bar and self.gain >= self.least
        if tau.high < 0:
            return False
        if gain.score >= bar and self.gain >= self.least:
            return True
        each = min(gain.score, tau.score) >= student_quantile(freedom, 1 - EACH)
        return each and agreement(self.compared) >= bar and self.gain >= self.least / 2

    def suspicious(self) -> bool:
        """Whether it may be a departure: both measures lean to it together, or the likelihood of one that tau cannot judge."""
        gain = self.compared.gain
        freedom = gain.clusters - 1
        if freedom < 1 or self.gain <= 0 or self.variant.slug in LEAST_GAINS:
            return False
        bar = student_quantile(freedom, 1 - SUSPECT)
        if self.variant.slug in _NOT_BY_TAU:
            return gain.score >= bar and self.gain >= self.least / 2
        return agreement(self.compared) >= bar and min(gain.score, self.compared.tau_gain.score) > 0


NEXT = {
    "ok": "compare it with a baseline (`orch compare`), or train on",
    "undertrained": "train on; if its training accuracy is high already, look at the checks that are not ok",
    "convention": "change the training code, or declare the convention (both above), then evaluate again",
    "loading": "mend the export; nothing about the model can be said before it loads as it was meant",
    "numerics": "run it in another precision; figures of this one are not to be believed",
    "unknown": "more prompts (--prompts) tell close candidates apart; the checks that are not ok come first",
}
"""Verdict -> the next step."""


@dataclass(frozen=True)
class Verdict:
    """What is the matter: `orch/diagnose/1`'s verdict, cause and confidence, in words, and what else fits.

    `chosen` is the variant that is named; `rivals` those that cannot be told from it: of other slugs where the
    verdict is `unknown`, else the same departure with other parameters. `unmeasured` are slugs of what no variant can
    show.
    """

    verdict: str
    cause: str | None
    confidence: float
    sentence: str
    chosen: Tried | None = None
    rivals: list[Tried] = field(default_factory=list)
    unmeasured: tuple[str, ...] = ()

    @property
    def next(self) -> str:
        """What to do now."""
        return NEXT[self.verdict]


def judge(
    tau: float,
    tried: Sequence[Tried],
    versus: Callable[[Tried, Tried], Compared],
    checks: Sequence[Check],
    *,
    reference: Compared | None = None,
) -> Verdict:
    """Judges a drafter that loaded and ran.

    Args:
        tau: declared.
        tried: all variants.
        versus: compares the first one with the second one: positive gains speak for the first.
        checks: what else was looked at; `numerics` and `parity` faults decide before any convention does.
        reference: the subject against a reference drafter on the same prompts, if there is one.
    """
    for name, cause in (("numerics", "fp16_overflow"), ("parity", None)):
        broken = next((check for check in checks if check.name == name and check.state == "fault"), None)
        if broken is not None:
            slug = cause if broken.values.get("overflow") else None
            return Verdict("numerics", slug, 0.95, f"numerics: {broken.what}")
    still = next((check for check in checks if check.name == "reaction" and check.state == "fault"), None)
    if still is not None:
        return Verdict(
            "unknown", None, 0.5, f"cannot tell: {still.what}; a part of the drafter is not in use"
        )
    prompts = min((one.compared.gain.clusters for one in tried), default=0)
    if prompts < LEAST_PROMPTS:
        return Verdict(
            "unknown",
            None,
            0.0,
            f"cannot tell: {prompts} prompts are too few to tell a convention from noise; it takes {LEAST_PROMPTS}, "
            "better 32",
        )
    count = max(len(tried), 1)
    fits = sorted((one for one in tried if one.fits_better(count)), key=lambda one: -one.gain)
    best = max([tau, *(one.compared.tau for one in fits if one.variant.slug != "cross_block")])
    if best < TAU_FLOOR and not (fits and _sees_other_blocks(fits[0], tau)):
        return _below_the_floor(tau, tried, checks)
    if not fits:
        suspects = sorted(
            (one for one in tried if one.suspicious()), key=lambda one: -agreement(one.compared)
        )
        return _suspected(tau, suspects) if suspects else _no_departure(tau, tried, reference)
    return _departure(fits, versus)


def _sees_other_blocks(top: Tried, tau: float) -> bool:
    """Whether it was clearly trained with blocks in sight of each other, which no harness can give it back."""
    if top.variant.slug != "cross_block":
        return False
    return tau >= TAU_FLOOR or top.compared.gain.low > CROSS_BLOCK_GAIN


def _departure(fits: list[Tried], versus: Callable[[Tried, Tried], Compared]) -> Verdict:
    top = fits[0]
    rivals: list[Tried] = []
    alike: list[Tried] = []
    margins = []
    for other in fits[1:]:
        same = other.variant.slug == top.variant.slug
        against = versus(top, other)
        blunt = {top.variant.slug, other.variant.slug} & _NOT_BY_TAU
        margin = against.gain.score if blunt else max(against.gain.score, agreement(against))
        clusters = against.gain.clusters
        if not same:
            margins.append(_sure(margin, clusters))
        if margin < student_quantile(max(clusters - 1, 1), 1 - SEPARATION / 2):
            (alike if same else rivals).append(other)
    own = top.compared
    score = own.gain.score if top.variant.slug in _NOT_BY_TAU else max(own.gain.score, agreement(own))
    confidence = min([_sure(score, own.gain.clusters), *margins])
    words = top.variant.meaning
    if rivals:
        names = ", ".join(one.variant.meaning.what for one in rivals)
        return Verdict(
            "unknown",
            None,
            round(min(confidence, 0.5), 3),
            f"cannot tell: {words.what} fits better, and so does {names}; these prompts do not tell them apart",
            top,
            rivals,
        )
    if top.variant.slug == "head":
        return Verdict("loading", "head", confidence, f"not loaded as meant: {words.what}", top, alike)
    return Verdict(
        "convention", top.variant.slug, confidence, f"convention mismatch: {words.what}", top, alike
    )


def _suspected(tau: float, suspects: list[Tried]) -> Verdict:
    """Something fits slightly better, but not by enough to be named."""
    names = "; ".join(one.variant.meaning.what for one in suspects[:3])
    confidence = 1 - _sure(agreement(suspects[0].compared), suspects[0].compared.gain.clusters)
    return Verdict(
        "unknown",
        None,
        round(confidence, 3),
        f"cannot tell: tau {tau:.2f} as declared, and slightly better than that, though not by enough to name it: {names}",
        suspects[0],
        suspects[1:],
    )


def _no_departure(tau: float, tried: Sequence[Tried], reference: Compared | None) -> Verdict:
    # How sure: the least sure of all variants that it does not gain what it would have to.
    sure = [
        student_cdf((one.least - one.compared.gain.delta) / error, one.compared.gain.clusters - 1)
        for one in tried
        if (error := _error(one)) > 0
    ]
    confidence = round(min(sure, default=0.5), 3)
    if reference is not None and (1 + reference.tau_change.high) < BEHIND:
        behind = -100 * reference.tau_change.delta
        return Verdict(
            "undertrained",
            None,
            confidence,
            f"harness right, model undertrained: tau {tau:.2f} is {behind:.0f} % below the reference's, and no other "
            "convention fits better",
        )
    return Verdict(
        "ok", None, confidence, f"harness and model fine: tau {tau:.2f}, and no other convention fits better"
    )


def _below_the_floor(tau: float, tried: Sequence[Tried], checks: Sequence[Check]) -> Verdict:
    """Everything is noise: undertrained, unless the weights say that training went far."""
    moved = next((check.values["from_one"] for check in checks if check.name == "scales"), 0.0)
    blind = _blind(tried)
    if blind and moved >= SCALES_TRAINED:
        return Verdict(
            "unknown",
            None,
            0.5,
            f"cannot tell: tau {tau:.2f} whatever is tried, and the drafter does not make use of its context, although "
            "its weights are those of a long training: fc is not the one it was trained with, or the features are not, "
            "or it never learned to use them",
            unmeasured=("fc_random",),
        )
    better = next(
        (check for check in checks if check.name.startswith("template") and check.state == "note"), None
    )
    if better is not None:
        return Verdict(
            "unknown",
            None,
            0.5,
            f"cannot tell: tau {tau:.2f}, and prompts rendered otherwise do better ({better.what}): the template or the "
            "thinking mode of the training may be another one, or it is undertrained",
            unmeasured=("template",),
        )
    return Verdict(
        "undertrained",
        None,
        0.8 if tau < 1.5 else 0.6,
        f"harness right, model undertrained: tau {tau:.2f}, and below {TAU_FLOOR:g} no convention can be told from another",
    )


SCALES_TRAINED = 0.08
"""`accounts.scales_moved` of a drafter whose training went far."""
_CONTEXTS = frozenset({"context_order", "no_context", "layers_reversed"})


def _blind(tried: Sequence[Tried]) -> bool:
    """Whether the drafter is no worse off with its context in disorder."""
    orders = [one.compared.gain.delta for one in tried if one.variant.slug in _CONTEXTS]
    return bool(orders) and min(orders) > -0.05


def _error(one: Tried) -> float:
    gain = one.compared.gain
    if gain.clusters < 2 or not math.isfinite(gain.high):
        return 0.0
    return (gain.high - gain.delta) / student_quantile(gain.clusters - 1)


def _sure(score: float, clusters: int) -> float:
    """Returns 1 - the one-sided p of a score, at most 0.999."""
    return round(min(student_cdf(score, max(clusters - 1, 1)), 0.999), 3)
