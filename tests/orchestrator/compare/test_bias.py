"""The short-output bias on columns equals the payload's own figure on the same rows."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from orchestrator.compare.bias import short_output_bias
from orchestrator.compare.load import Source, load
from remote_payload.tau import DIALECTS, Walk
from remote_payload.tau import short_output_bias as payloads_own
from tests.orchestrator.compare.folders import row, write_run


@pytest.mark.parametrize(
    "lists",
    [
        [[3, 1, 4], [8], [2], [1, 1, 1, 5]],
        [[2], [3]],
        [[4, 4], [1, 7, 2, 2]],
    ],
)
def test_it_equals_the_payloads_own(tmp_path: Path, lists: list[list[int]]) -> None:
    rows = [row("d", f"p{number}", lengths) for number, lengths in enumerate(lists)]
    folder = write_run(tmp_path / "run", rows)
    (series,) = load([Source(folder, None)]).series
    found = short_output_bias(series)
    expected = payloads_own([Walk(row.accept_lengths, row.output_tokens) for row in rows])
    for name in DIALECTS:
        if expected[name] is None:
            assert math.isnan(found[name])
        else:
            assert found[name] == pytest.approx(expected[name])
