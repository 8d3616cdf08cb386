"""How quickly and in how much memory `orch compare` answers over many runs.

Two records are made, of rows as a job writes them: 200 runs (steps of one training and its baseline) of 1,000
prompts and 3 shapes, compared once with no digest there (cold: every row is read) and several times with them
(warm), also with `--html`, which writes a page; and one record of 1,000,000 rows (sampled runs), compared cold. Every figure is of a process of its
own, the whole command as a person runs it; peak memory is the largest process's, as the kernel counts it.
Usage: `python -m benchmarks.compare [RUNS] [PROMPTS] [ROWS]`. The last line printed is one line of JSON.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from remote_payload.durable import canonical_json, sha256_hex, write_json
from remote_payload.protocol import DrafterSpec, Job, State, TargetSpec, build_manifest

ROOT = Path(__file__).resolve().parents[1]
SHAPES = {"chain": 1.0, "ddtree:16": 1.25, "ddtree:64": 1.4}
BLOCK = 16
TOKENS = 160
DATASETS = ("code", "chat", "math", "prose")
WARM = 5
INVENTORY = """\
schema: orch/inventory/1
defaults: {baseline: reference}
hosts: {}
targets: {}
baselines: {reference: {ckpt: /nowhere}}
suites: {}
"""


def lengths_of(rng: np.random.Generator, mean: float, hard: float) -> list[int]:
    """Acceptance lengths that cover an output: geometric, cut at the block's size."""
    rate = min(0.97, 1 - 1 / max(1.05, mean * hard))
    drawn = np.minimum(rng.geometric(1 - rate, size=TOKENS), BLOCK)
    return drawn[: int(np.searchsorted(np.cumsum(drawn), TOKENS - 1)) + 1].tolist()


def write_run(folder: Path, labels: dict[str, float], prompts: int, samples: int = 1) -> int:
    """Writes the folder of a run whose drafters have these means. Returns the number of its rows."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(int(sha256_hex(folder.name)[:8], 16))
    hard = np.random.default_rng(7).lognormal(0.0, 0.3, size=prompts)
    count = 0
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as stream:
        for label, mean in labels.items():
            common = {
                "acceptance": "exact", "block_size": BLOCK, "convention": {}, "drafter": label,
                "drafter_hash": sha256_hex(f"drafter {label}"), "dtype": "bfloat16", "engine": "replay",
                "max_new_tokens": TOKENS, "near_ties": 0, "schema": "orch/row/1", "seed": 0, "stop": "length",
                "stop_ids": [151643, 151645], "target_hash": "t" * 64, "temperature": 0.0 if samples == 1 else 0.7,
                "template_hash": "0c36492343fe1e1a", "top_k": 0, "top_p": 1.0, "turn": 0,
            }  # fmt: skip
            for prompt in range(prompts):
                own = {
                    "dataset": DATASETS[prompt % len(DATASETS)], "prompt_hash": sha256_hex(f"prompt {prompt}"),
                    "prompt_id": f"prompt-{prompt:05d}", "prompt_tokens": 40 + prompt % 300,
                }  # fmt: skip
                for sample in range(samples):
                    for shape, gain in SHAPES.items():
                        accepted = lengths_of(rng, mean * gain, float(hard[prompt]))
                        record = {
                            **common,
                            **own,
                            "sample": sample,
                            "shape": shape,
                            "accept_lengths": accepted,
                        }
                        record |= {"output_tokens": TOKENS, "seconds": round(len(accepted) * 1e-4, 6)}
                        stream.write(canonical_json(record) + "\n")
                        count += 1
    write_samples(folder / "samples.jsonl", list(labels), rng)
    job = Job(
        job_id=folder.name,
        payload_hash="p" * 64,
        kind="eval",
        target=TargetSpec("qwen", "/models/qwen"),
        drafters=[DrafterSpec(name, f"/ckpt/{name}", sha256_hex(f"drafter {name}")) for name in labels],
        prompts="prompts.jsonl",
        prompts_hash="s" * 64,
        suite="bench",
        shapes=list(SHAPES),
    )
    write_json(folder / "job.json", job.to_json())
    write_json(folder / "where.json", {"schema": "orch/where/1", "host": "gpu7", "workdir": "/w"})
    write_json(folder / "MANIFEST.json", build_manifest(folder))
    write_json(folder / "state.json", State("done").to_json())
    return count


def write_samples(path: Path, labels: list[str], rng: np.random.Generator) -> None:
    """Writes what a run keeps unasked: the drafts of 8 prompts at fixed anchors, and each one's worst round."""
    with path.open("w", encoding="utf-8") as stream:
        for label in labels:
            for prompt in range(8):
                truth = np.random.default_rng(prompt).integers(0, 9999, TOKENS + BLOCK).tolist()
                for anchor in (*range(0, TOKENS, 32), 7):
                    ids = truth[anchor : anchor + BLOCK - 1]
                    accepted = int(rng.integers(0, BLOCK))
                    draft = [*ids[:accepted], *rng.integers(0, 99, BLOCK - 1 - accepted).tolist()]
                    record = {
                        "schema": "orch/sample/1", "drafter": label, "drafter_hash": sha256_hex(f"drafter {label}"),
                        "block_size": BLOCK, "convention": {}, "prompt_id": f"prompt-{prompt:05d}",
                        "prompt_hash": sha256_hex(f"prompt {prompt}"), "dataset": DATASETS[prompt % len(DATASETS)],
                        "turn": 0, "sample": 0, "anchor": anchor, "worst": anchor == 7, "draft_ids": draft,
                        "draft_pieces": [f" {token}" for token in draft], "truth_ids": ids,
                        "truth": " ".join(map(str, ids)), "context": " ".join(map(str, truth[:anchor])),
                    }  # fmt: skip
                    stream.write(canonical_json(record) + "\n")


def compare(project: Path, names: list[str]) -> tuple[float, int, str]:
    """Runs `orch compare` on some runs. Returns wall time, peak memory in bytes, what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "NO_COLOR": "1"}
    for name in ("ORCH_INVENTORY", "PYTHONDONTWRITEBYTECODE"):  # bytecode is kept, as a person's is
        environment.pop(name, None)
    command = [sys.executable, "-m", "orchestrator", "compare", *names]
    with tempfile.TemporaryFile() as out:
        started = time.perf_counter()
        process = subprocess.Popen(command, cwd=project, env=environment, stdout=out)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        printed = out.read().decode()
    if process.returncode:
        raise SystemExit(f"orch compare ended with {process.returncode}")
    return seconds, usage.ru_maxrss * 1024, printed


def measure(runs: int, prompts: int, large: int) -> dict[str, Any]:
    """Returns the benchmark's record."""
    with tempfile.TemporaryDirectory() as name:
        project = Path(name)
        (project / "inventory.yaml").write_text(INVENTORY)
        steps = [
            (f"20260101-{i:06d}-bench-{i:06x}", {f"step_{200 * i:06d}": 6 - 4 * 0.985**i})
            for i in range(1, runs)
        ]
        many = [("20260101-000000-base-000000", {"reference": 5.2}), *steps]
        rows = sum(write_run(project / "runs" / job, means, prompts) for job, means in many)
        names = [job for job, _ in many]
        cold_s, cold_bytes, cold = compare(project, names)
        warm = [compare(project, names) for _ in range(WARM + 1)][1:]
        assert all(printed == cold for _, _, printed in warm), "a digest must not change a figure"
        assert f"step_{200 * (runs - 1):06d}" in cold, "every run is in the table"
        paged = [compare(project, [*names, "--html", "page.html"]) for _ in range(WARM)]
        assert all(printed == cold for _, _, printed in paged), "a page must not change the tables"
        page_bytes = (project / "page.html").stat().st_size
        folder = project / "large"
        labels = {f"step_{200 * i:06d}": 2 + i / 10 for i in range(10)}
        samples = max(1, large // (len(labels) * len(SHAPES) * prompts) + 1)
        large_rows = write_run(folder, labels, prompts, samples)
        large_s, large_bytes, _ = compare(project, [str(folder), "--baseline", next(iter(labels))])
    warm_s = round(statistics.median(seconds for seconds, _, _ in warm), 3)
    page_s = round(statistics.median(seconds for seconds, _, _ in paged), 3)
    limited = {
        "runs_200_warm_s": warm_s,
        "runs_200_cold_s": round(cold_s, 3),
        "runs_200_page_s": page_s,
        "rows_1e6_peak_mb": round(large_bytes / 1e6, 1),
    }
    return {
        "benchmark": "compare",
        "ratios": limited,  # no ratios: the figures that have limits, where all benchmarks have theirs
        "medians_s": {
            "runs_200_warm_s": warm_s,
            "runs_200_cold_s": limited["runs_200_cold_s"],
            "runs_200_page_s": page_s,
            "rows_1e6_s": round(large_s, 3),
        },
        "runs_200_peak_mb": {
            "cold": round(cold_bytes / 1e6, 1),
            "warm": round(max(peak for _, peak, _ in warm) / 1e6, 1),
            "page": round(max(peak for _, peak, _ in paged) / 1e6, 1),
        },
        "page_mb": round(page_bytes / 1e6, 2),
        "rows": {"runs_200": rows, "rows_1e6": large_rows},
        "n": WARM,
        "machine": {
            "python": platform.python_version(),
            "system": platform.platform(),
            "cores": os.cpu_count(),
        },
    }


def main() -> None:
    """Measures and prints."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    prompts = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    record = measure(runs, prompts, int(sys.argv[3]) if len(sys.argv) > 3 else 1_000_000)
    seconds, rows = record["medians_s"], record["rows"]
    print(f"{runs} runs, {rows['runs_200']} rows, cold: {seconds['runs_200_cold_s']:.2f} s (every row read)")
    print(
        f"{runs} runs, {rows['runs_200']} rows, warm: {seconds['runs_200_warm_s']:.2f} s (median of {WARM})"
    )
    print(
        f"the same with a page of {record['page_mb']} MB: {seconds['runs_200_page_s']:.2f} s (median of {WARM})"
    )
    print(
        f"{rows['rows_1e6']} rows in one run, cold: {seconds['rows_1e6_s']:.2f} s, {record['ratios']['rows_1e6_peak_mb']} MB"
    )
    print(json.dumps(record, sort_keys=True))


if __name__ == "__main__":
    main()
