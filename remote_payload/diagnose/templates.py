"""Template and thinking: how the prompts are rendered, tried on a few of them.

Another rendering gives another continuation, so nothing is paired token by token: tau is compared prompt by prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from remote_payload.diagnose.accounts import Check
from remote_payload.diagnose.paired import ratio_difference
from remote_payload.prompts import Prompt, Tokenizing

__all__ = ["PROMPTS", "renderings", "template_checks"]

PROMPTS = 4


def renderings(tokenizing: Tokenizing, prompts: Sequence[Prompt], thinking: bool) -> dict[str, list[Prompt]]:
    """Returns the other ways to render the first prompts: name -> prompts; empty where there is no chat template."""
    chat = [prompt for prompt in prompts if prompt.input_ids is None and prompt.text is None][:PROMPTS]
    if not chat or not tokenizing.template:
        return {}
    plain = [
        Prompt(id=prompt.id, where=prompt.where, dataset=prompt.dataset, text=_words(prompt))
        for prompt in chat
    ]
    return {"thinking off" if thinking else "thinking on": list(chat), "no template": plain}


def _words(prompt: Prompt) -> str:
    messages = prompt.messages or [{"role": "user", "content": prompt.turns[0]}]
    return "\n\n".join(str(message["content"]) for message in messages)


def template_checks(
    declared: Sequence[Sequence[int]], others: Mapping[str, Sequence[Sequence[int]]]
) -> list[Check]:
    """Compares tau of other renderings with the declared one's.

    Args:
        declared: acceptance lists of the first prompts.
        others: rendering -> the lists of the same prompts.
    """
    checks = []
    for name, lists in others.items():
        difference = ratio_difference(_sums(declared), _sums(lists))
        checks.append(
            Check(
                f"template: {name}",
                "note" if difference.low > 0 else "ok",
                f"tau {difference.delta:+.2f} [{difference.low:+.2f}, {difference.high:+.2f}] with {name}, on "
                f"{len(lists)} prompts",
                {
                    "slug": "template",
                    "delta": difference.delta,
                    "low": difference.low,
                    "high": difference.high,
                },
            )
        )
    return checks


def _sums(lists: Sequence[Sequence[int]]) -> tuple[list[float], list[float]]:
    return [float(sum(one)) for one in lists], [float(len(one)) for one in lists]
