"""By how much short outputs move each dialect: `remote_payload.tau.short_output_bias` on columns.

What always holds: the figures equal those of the payload's own function on the same rows; not known is NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from remote_payload.tau import DIALECTS

if TYPE_CHECKING:
    from orchestrator.compare.columns import Series

__all__ = ["short_output_bias"]


def short_output_bias(series: Series) -> dict[str, float]:
    """Returns dialect -> relative bias; all NaN where no response has two rounds."""
    accepted, rounds = series.whole_terms
    some = rounds > 0
    freedom = float((rounds[some] - 1).sum())
    if freedom == 0:
        return dict.fromkeys(DIALECTS, float("nan"))
    squares = float((series.histogram * np.arange(1, len(series.histogram) + 1) ** 2).sum())
    variance = (squares - float((accepted[some] ** 2 / rounds[some]).sum())) / freedom
    mean = accepted[some] / rounds[some]
    long_run = np.zeros(len(rounds))
    long_run[some] = mean / (1 + variance / (mean**2 * rounds[some]))
    pooled = float(accepted.sum() / rounds.sum())
    bias = dict.fromkeys(("tau", "vllm", "no_bonus"), 0.0)
    eagle = series.terms("eagle")
    bias["eagle"] = float(eagle.num.sum() / eagle.den.sum()) / pooled - 1
    for name in ("zlab", "sglang", "sglang_decode"):
        terms = series.terms(name)
        counted = some & (terms.den > 0)
        yardstick = float(long_run[counted].sum())
        bias[name] = float(terms.num[counted].sum()) / yardstick - 1 if yardstick else float("nan")
    return {name: bias[name] for name in DIALECTS}
