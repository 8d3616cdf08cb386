"""What a GPU does: bf16 against float32 on the trained pair, and the published 27B drafter's shape.

* The trained tiny pair in float32 and in bfloat16 on the device: the share of outputs and of acceptance lists
  that differ between the two.
* A drafter with random weights of the published Qwen3.6-27B shape (hidden 5120, 5 layers of which 4 slide over
  2048 tokens, 32/8 heads of 128, vocabulary 248,320, blocks of 16) on a random target of that width with as many
  layers as asked for: anchors drafted per second, peak memory, how many slots' logits are held at once.

Random weights accept almost nothing, so this measures work, never tau. `--device cpu --shrink 40` runs the same
code at a fortieth of the widths. Usage: `python -m benchmarks.gpu [--device cuda:0] [--layers N] [--shrink K]`.
The last line printed is one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from remote_payload.drafters.config import read_config
from remote_payload.drafters.tensors import expected_tensors
from remote_payload.durable import iter_jsonl, read_json
from remote_payload.evaluate import run_job
from remote_payload.memory import Room, peak_rss_bytes
from remote_payload.protocol import DrafterSpec, Job, Row, TargetSpec

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "examples" / "tiny"
BLOCK = 16


def job(target: Path, drafter: Path, device: str, dtype: str, tokens: int, **more: Any) -> Job:
    """Returns a job over the prompts that `evaluate` puts beside it."""
    return Job(
        job_id=f"gpu-{dtype}",
        payload_hash="",
        kind="eval",
        target=TargetSpec(target.name, str(target), dtype),
        drafters=[DrafterSpec(drafter.name, str(drafter), "")],
        prompts="prompts.jsonl",
        prompts_hash="",
        max_new_tokens=tokens,
        shapes=["chain", "ddtree:32"],
        samples=0,
        device=device,
        save_outputs=True,
        **more,
    )


def evaluate(work: Job, prompts: bytes, folder: Path) -> tuple[list[Row], dict[str, Any]]:
    """Runs a job in a folder of its own; returns its rows and its summary."""
    folder.mkdir()
    (folder / "prompts.jsonl").write_bytes(prompts)
    code = run_job(work, folder, folder / "cache")
    if code:
        raise SystemExit(f"the job ended with {code}: {read_json(folder / 'summary.json')['rejected']}")
    rows = [Row.from_json(record) for record in iter_jsonl(folder / "rows.jsonl")]
    return rows, read_json(folder / "summary.json")


def precision(device: str, folder: Path) -> dict[str, float]:
    """Evaluates the trained pair in both precisions; returns the shares that differ."""
    prompts = (TINY / "prompts.jsonl").read_bytes()
    found = {}
    for dtype in ("float32", "bfloat16"):
        work = job(TINY / "target-tiny", TINY / "drafter-b8-final", device, dtype, 96)
        rows, _ = evaluate(work, prompts, folder / dtype)
        found[dtype] = {(row.prompt_id, row.shape): row for row in rows}
    pairs = [(found["float32"][key], found["bfloat16"][key]) for key in found["float32"]]
    rounds = sum(len(a.accept_lengths) for a, _ in pairs)
    parted = sum(_rounds_after_parting(a.accept_lengths, b.accept_lengths) for a, b in pairs)
    return {
        "outputs_that_differ": sum(a.output_ids != b.output_ids for a, b in pairs) / len(pairs),
        "lists_that_differ": sum(a.accept_lengths != b.accept_lengths for a, b in pairs) / len(pairs),
        "rounds_from_the_first_difference_on": parted / rounds,
    }


def _rounds_after_parting(first: list[int], second: list[int]) -> int:
    same = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    return 0 if same is None and len(first) == len(second) else len(first) - (same or 0)


def make_models(folder: Path, layers: int, shrink: int) -> tuple[Path, Path]:
    """Writes a random target and a random drafter of the published widths over `shrink`, in bfloat16."""
    hidden, heads, kv = 5120 // shrink, max(32 // shrink, 2), max(8 // shrink, 1)
    vocab, head_dim = 248_320 // shrink, 128 // min(shrink, 4)
    sizes = {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": head_dim,
        "vocab_size": vocab,
        "rms_norm_eps": 1e-6,
    }
    target, drafter = folder / "target", folder / "drafter"
    config = Qwen3Config(
        **sizes, num_hidden_layers=layers, intermediate_size=hidden * 3, tie_word_embeddings=False
    )
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(target)
    drafter.mkdir()
    record = {
        **sizes,
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": 5,
        "intermediate_size": hidden * 3,
        "block_size": BLOCK,
        "rope_theta": 1e7,
        "num_target_layers": layers,
        "layer_types": ["sliding_attention"] * 4 + ["full_attention"],
        "sliding_window": 2048,
        "dflash_config": {
            "mask_token_id": vocab - 250,
            "target_layer_ids": sorted({layers * part // 6 for part in range(1, 6)}),
        },
    }
    (drafter / "config.json").write_text(json.dumps(record))
    shapes = expected_tensors(read_config(drafter / "config.json"))
    tensors = {
        name: (torch.ones(shape) if "norm" in name else torch.randn(shape) * 0.02).to(torch.bfloat16)
        for name, shape in shapes.items()
    }
    save_file(tensors, drafter / "model.safetensors")
    return target, drafter


def throughput(device: str, folder: Path, layers: int, shrink: int) -> dict[str, float]:
    """Evaluates the random pair in bfloat16; returns work per second and memory."""
    target, drafter = make_models(folder, layers, shrink)
    vocab = read_json(target / "config.json")["vocab_size"]
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(0, vocab - 300, (16, 256), generator=random).tolist()
    prompts = "".join(
        json.dumps({"id": str(n), "input_ids": row}) + "\n" for n, row in enumerate(ids)
    ).encode()
    on_gpu = device.startswith("cuda")
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    work = job(target, drafter, device, "bfloat16", 128, stop_ids=[])
    rows, summary = evaluate(work, prompts, folder / "run")
    seconds = time.perf_counter() - started
    drafting = summary["seconds"][f"drafter {drafter.name}"]
    chain = sum(len(row.accept_lengths) for row in rows if row.shape == "chain")
    return {
        "seconds": seconds,
        "drafting_seconds": drafting,
        "rounds_per_second": chain / drafting,
        "draft_slots_per_second": chain * (BLOCK - 1) / drafting,
        "peak_gib": (torch.cuda.max_memory_allocated() if on_gpu else peak_rss_bytes()) / 2**30,
        "logit_rows_at_once": Room(torch.device(device)).rows(4 * vocab),
    }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--layers", type=int, default=12, help="layers of the random target")
    parser.add_argument("--shrink", type=int, default=1, help="divide all widths by this")
    args = parser.parse_args()
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit("no CUDA device here; --device cpu --shrink 40 runs the same code small")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "precision").mkdir()
        shares = precision(args.device, folder / "precision")
        speed = throughput(args.device, folder, args.layers, args.shrink)
    for label, values in (("float32 against bfloat16, trained pair", shares), ("27B drafter's shape", speed)):
        print(label)
        for key, value in values.items():
            print(f"  {key:40} {value:12.3f}")
    machine = {
        "device": torch.cuda.get_device_name(args.device) if args.device.startswith("cuda") else "cpu",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "layers": args.layers,
        "shrink": args.shrink,
    }
    record = {"benchmark": "gpu", "ratios": shares, "medians_s": speed, "n": 1, "machine": machine}
    print(json.dumps(record, sort_keys=True))


if __name__ == "__main__":
    main()
