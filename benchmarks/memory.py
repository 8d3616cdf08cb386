"""Peak memory of evaluating 64 prompts of 512 new tokens, and of a target's two ends against the whole of it.

Every figure is the peak resident memory of a process of its own, as the kernel counts it. The small run (one
prompt, 8 tokens) shows what interpreter, torch, transformers and the models take by themselves.
Usage: `python benchmarks/memory.py [PROMPTS] [TOKENS]`. The last line printed is one line of JSON.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "examples" / "tiny"
WAYS = ("ram", "disk", "recompute")
ENDS = """
import sys, time, torch
from pathlib import Path
from remote_payload.ends import EndsTarget, read_record, record_ends
from remote_payload.target import Target
path, record = Path(sys.argv[1]), Path(sys.argv[2])
settings = {"dtype": "float32", "device": torch.device("cpu")}
if sys.argv[3] == "record":
    assert record_ends(Target(path, **settings), record) == ""
else:
    started = time.perf_counter()
    target = EndsTarget(read_record(record), path, **settings) if sys.argv[3] == "ends" else Target(path, **settings)
    target.head(target.embed(torch.tensor([1])))
    print(time.perf_counter() - started)
"""


def run(command: list[str]) -> tuple[float, int, str]:
    """Runs a program. Returns its wall time, its peak resident memory in bytes, and what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as out:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, env=environment, cwd=ROOT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - started
        out.seek(0)
        printed = out.read().decode()
    if process.returncode:
        raise SystemExit(f"{' '.join(command[:6])} ... ended with {process.returncode}")
    return seconds, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024), printed


def evaluate(folder: Path, name: str, features: str, prompts: int, tokens: int) -> tuple[float, int]:
    """Evaluates a drafter on so many prompts and tokens. Returns wall time and peak memory."""
    texts = [json.loads(line) for line in (TINY / "prompts.jsonl").read_text().splitlines()]
    lines = [{**texts[i % len(texts)], "id": str(i)} for i in range(prompts)]
    source = folder / f"{name}.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    seconds, peak, _ = run(
        [
            *(sys.executable, "-m", "remote_payload", "eval", "--target", str(TINY / "target-tiny")),
            *("--drafter", str(TINY / "drafter-b8-final"), "--prompts", str(source)),
            *("--out", str(folder / name), "--cache", str(folder / "cache"), "--features", features),
            *("--shape", "chain", "--shape", "ddtree:8", "--shape", "ddtree:32"),
            *("--dtype", "float32", "--device", "cpu", "--threads", "1"),
            *("--no-stop", "--max-new-tokens", str(tokens), "--samples", "0"),
        ]
    )
    return seconds, peak


def ends(folder: Path) -> dict[str, dict[str, float]]:
    """Loads a random target of about 0.4 GB whole, and its ends only."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=32000,
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=20,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder / "big")
    command = [sys.executable, "-c", ENDS, str(folder / "big"), str(folder / "ends.json")]
    run([*command, "record"])
    found = {}
    for what in ("whole", "ends"):
        _, peak, printed = run([*command, what])
        found[what] = {"load_s": round(float(printed), 3), "peak_mb": round(peak / 2**20, 1)}
    return found


def main() -> None:
    """Measures, prints a table and the line of JSON."""
    prompts, tokens = (int(word) for word in (*sys.argv[1:3], "64", "512")[:2])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _, small = evaluate(folder, "small", "ram", 1, 8)
        peaks: dict[str, Any] = {"small": round(small / 2**20, 1)}
        print(f"{'1 prompt x 8 tokens':34} {small / 2**20:8.1f} MiB")
        for way in ("first", *WAYS):
            seconds, peak = evaluate(folder, way, "ram" if way == "first" else way, prompts, tokens)
            peaks[way] = round(peak / 2**20, 1)
            print(f"{prompts} prompts x {tokens}, {way:12} {peak / 2**20:8.1f} MiB {seconds:7.1f} s")
        parts = ends(folder)
    for what, figures in parts.items():
        print(f"target of 0.4 GB, {what:16} {figures['peak_mb']:8.1f} MiB {figures['load_s']:7.2f} s to load")
    line = {
        "benchmark": "memory",
        "ratios": {"ends_vs_whole_load": round(parts["ends"]["load_s"] / parts["whole"]["load_s"], 4)},
        "medians_s": {},
        "peak_mb": peaks,
        "target": parts,
        "n": 1,
        "machine": {
            "cpus": os.cpu_count(),
            "platform": platform.platform(),
            "python": platform.python_version(),
        },
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
