"""The main job, end to end, as a person would type it: the real commands, one after the other.

What always holds: the demo has no path of its own. Every step is the `orch` program in its own process, and
the first one that fails ends the demo with its exit code.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from orchestrator.errors import OrchError
from orchestrator.text import human_seconds

if TYPE_CHECKING:
    from orchestrator.inventory import Inventory

__all__ = ["NEXT", "STEPS", "run_demo"]

STEPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("two SSH hosts on this machine", ("sandbox", "up")),
    ("the eval payload, checked and shipped", ("push", "ct129")),
    (
        "three checkpoints of a training on ct200, evaluated on ct129, and the baseline beside them",
        (
            "eval",
            *("--ckpt", "ct200:ckpt/step_0040"),
            *("--ckpt", "ct200:ckpt/step_0160"),
            *("--ckpt", "ct200:ckpt/step_0987"),
            *("--on", "ct129"),
        ),
    ),
    ("are they better?", ("compare",)),
)

NEXT = (
    ("the drafts side by side", ("compare", "--samples", "4")),
    ("a checkpoint that was hardly trained", ("eval", "--ckpt", "ct200:ckpt/step_0000")),
    ("stop the two hosts", ("sandbox", "down")),
)


def run_demo(inventory: Inventory, talk: Callable[[str], None]) -> None:
    """Runs the steps.

    Raises:
        OrchError: a step failed; it said why itself. Carries the step's exit code.
    """
    begun = time.monotonic()
    base = [sys.executable, "-m", "orchestrator"]
    for what, words in STEPS:
        talk(f"\n# {what}\n$ {_shown(words)}")
        done = subprocess.run([*base, *words, "--inventory", str(inventory.path)], check=False)
        if done.returncode:
            failed = OrchError(
                f"the demo stopped at `{_shown(words)}`", "see above; `orch demo` goes on from there"
            )
            failed.exit_code = done.returncode
            raise failed
    talk(f"\ndone in {human_seconds(time.monotonic() - begun)}. Next:")
    width = max(len(_shown(words)) for _, words in NEXT)
    for what, words in NEXT:
        talk(f"  {_shown(words):{width}}   # {what}")


def _shown(words: tuple[str, ...]) -> str:
    """How a person would type it."""
    return shlex.join(["orch", *words])
