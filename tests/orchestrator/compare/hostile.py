"""What models, names and documents may hold: text that would act on a page, a terminal or a reader's eyes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from orchestrator.compare.build import Wanted, compare
from orchestrator.compare.load import Source, load
from orchestrator.compare.model import Comparison
from orchestrator.compare.page.drafts import Picked, pick
from remote_payload.durable import sha256_hex, write_json
from remote_payload.protocol import DrafterSpec, build_manifest
from tests.orchestrator.compare.folders import drafter_hash, rows_of, sample_record, write_run

IMAGE = "<img src=x onerror=\"document.title='owned'\">"
SCRIPT = "</script><script>document.title='owned'</script><!--"
RIGHT_TO_LEFT = "\u202egnisrever\u2066"
ANSI = "\x1b[31mred\x1b]0;owned\x07"
HALF = "\ud800"
HUGE = "A" * 100_000
HOSTILE = (
    IMAGE,
    SCRIPT,
    RIGHT_TO_LEFT,
    ANSI,
    HALF + "\u2028\u2029\x00\ufeff",
    HUGE,
    "{{ 7 * 7 }}",
    "&lt;b&gt;",
)
BASELINE = f"ref{IMAGE}"
CANDIDATES = ("step_100", "step_200", f"step_300 {SCRIPT}")
DATASETS = ("code", f'">{IMAGE}')
SHAPES = ("chain", "ddtree:8", "ddtree:16", "topk:4")


def diagnosis(label: str) -> dict[str, Any]:
    """A document of `orch/diagnose/1` with the fields that every one has."""
    return {
        "schema": "orch/diagnose/1",
        "verdict": "loading",
        "cause": None,
        "confidence": 0.9,
        "sentence": f"a tensor is called {IMAGE}{ANSI}",
        "drafter": {"label": label},
        "target": {"name": "tiny", "dtype": "float32"},
        "prompts": 3,
        "candidates": [],
        "sweep": [],
        "checks": [{"state": "fault", "what": f"tensor {SCRIPT}"}],
        "next": "mend the file",
    }


def samples(count: int = 30) -> Iterable[dict[str, Any]]:
    """Places of which every third has one of the hostile texts in a draft; loops in every fifth."""
    for number in range(count):
        truth = ["def", " f", "(", "x", ")", ":", "\n"]
        hostile = HOSTILE[number // 3 % len(HOSTILE)] if number % 3 == 0 else " g"
        where: dict[str, Any] = {
            "prompt_id": f"prompt-{number:02d}",
            "prompt_hash": sha256_hex(f"prompt-{number:02d}"),
            "dataset": DATASETS[number % 2],
            "context": f"{hostile[:200]} context {number}\n    ",
        }
        loop = [" elif"] * 6 if number % 5 == 0 else ["(", "y", ")", ":", "\n", "  "]
        yield sample_record(BASELINE, truth, truth, **where)
        for place, name in enumerate(CANDIDATES):
            kept = (number + place) % 3
            yield sample_record(name, [*truth[:kept], hostile, *loop][:7], truth, **where)


def write_hostile(folder: Path) -> Path:
    """Writes the folder of a run in which whatever can be hostile is."""
    means = {BASELINE: 3.0, **{name: 2.4 + 0.4 * place for place, name in enumerate(CANDIDATES)}}
    rows = [
        row
        for shape in SHAPES
        for name, mean in means.items()
        for row in rows_of(name, mean + (0.5 if shape != "chain" else 0), shape=shape)
    ]
    rows = [type(row)(**{**row.__dict__, "dataset": DATASETS[row.dataset == "prose"]}) for row in rows]
    specs = [DrafterSpec(name, f"/ckpt/{IMAGE}", drafter_hash(name)) for name in means]
    run = write_run(folder, rows, specs=specs, suite=f"quick {IMAGE}", complete=False)
    # Escaped by hand: half a surrogate pair has no UTF-8, and JSON can hold one all the same.
    (run / "samples.jsonl").write_text("".join(json.dumps(one) + "\n" for one in samples()), encoding="ascii")
    write_json(run / "MANIFEST.json", build_manifest(run))
    write_json(run / "diagnosis.json", diagnosis(BASELINE))
    return run


def comparison_of(folder: Path, **wanted: Any) -> tuple[Comparison, Picked]:
    """The comparison that a page shows, and its samples."""
    measurements = load([Source(folder)])
    details = frozenset({"context", "dataset", "prompt"})
    comparison = compare(measurements, Wanted(**{"baseline": BASELINE, "details": details, **wanted}))
    return comparison, pick(measurements.runs, comparison)
