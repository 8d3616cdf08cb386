"""Many checkpoints for many hosts: who evaluates what.

What always holds: every checkpoint goes to exactly one host, and the baseline to every host that has one, so that
each run compares within itself; hosts without a checkpoint are left out. Nothing is sent or started here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator import checkpoints
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.evaluation.plan import EvalOptions
    from orchestrator.evaluation.start import Links

__all__ = ["deal"]


def deal(options: EvalOptions, hosts: Sequence[str], links: Links) -> dict[str, EvalOptions]:
    """Deals the checkpoints out, one after the other, and returns what each host is asked for.

    Raises:
        UsageError: a host is not in the inventory, or a reference names nothing.
        LinkError: a glob's host cannot be reached.
    """
    names = list(dict.fromkeys(name.strip() for name in hosts if name.strip()))
    if not names:
        raise UsageError("--on names no host", "name hosts of the inventory, as in --on gpu1,gpu2")
    for name in names:
        links.inventory.host(name)
    refs = checkpoints.resolve(links.inventory, options.ckpts, links.open)
    shares: dict[str, list[str]] = {name: [] for name in names}
    for number, ref in enumerate(refs):
        shares[names[number % len(names)]].append(ref.name or ref.where)
    return {name: replace(options, on=name, ckpts=tuple(share)) for name, share in shares.items() if share}
