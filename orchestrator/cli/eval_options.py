"""The options that `orch eval` and `orch diagnose` share, and those of eval that have a default elsewhere (None)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = [
    "Attn",
    "BatchTokens",
    "BlockSize",
    "ConventionSettings",
    "Device",
    "DraftConfig",
    "Dtype",
    "FeaturesWhere",
    "Forgive",
    "Gpus",
    "NoStop",
    "PayloadTree",
    "Release",
    "RunLabel",
    "SamplesPerPrompt",
    "Seed",
    "Stall",
    "StopTokenId",
    "SuiteName",
    "TargetName",
    "Temperature",
    "Thinking",
    "Threads",
    "Timeout",
    "TopK",
    "TopP",
    "Wait",
    "Workers",
    "option",
]

_SUITE = "[default: the suite's]"


def option(flag: str, help_text: str, metavar: str, **limits: Any) -> Any:
    """An option whose default is said in its help."""
    return typer.Option(flag, help=help_text, metavar=metavar, show_default=False, **limits)


RunLabel = Annotated[str, option("--label", "A name for the run.", "NAME")]
TargetName = Annotated[str | None, option("--target", "[default: the inventory's]", "NAME")]
SuiteName = Annotated[str | None, option("--suite", "[default: the inventory's]", "NAME")]
StopTokenId = Annotated[list[int] | None, option("--stop-token-id", _SUITE, "ID", min=0)]
NoStop = Annotated[bool, typer.Option("--no-stop", help="Go on to the limit.")]
BlockSize = Annotated[int | None, option("--block-size", "[default: each checkpoint's own]", "B", min=1)]
ConventionSettings = Annotated[
    list[str] | None,
    option("--convention", "How the checkpoints were trained. May be repeated.", "KEY=VALUE"),
]
DraftConfig = Annotated[
    Path | None,
    option(
        "--draft-config",
        "The drafter's config (a file here), for raw training_state.pt checkpoints without one.",
        "FILE",
    ),
]
Forgive = Annotated[
    list[str] | None,
    option("--forgive", "A tensor that may be unknown, not finite or all zero. May be repeated.", "TENSOR"),
]
Wait = Annotated[
    float,
    typer.Option(
        "--wait", min=0, help="Seconds to wait for a checkpoint that is still being written.", metavar="S"
    ),
]
Dtype = Annotated[
    str | None, option("--dtype", "float32, bfloat16 or float16. [default: the target's]", "DTYPE")
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda:0 ...", metavar="DEVICE")]
Threads = Annotated[int | None, option("--threads", "CPU threads. [default: the target's]", "N", min=0)]
Timeout = Annotated[float | None, option("--timeout", "End the job after S seconds.", "S", min=1)]
PayloadTree = Annotated[Path | None, option("--payload", "Run your own payload.", "DIR")]
Release = Annotated[
    str | None,
    option(
        "--release",
        "Push nothing: run the host's `current` release, or an installed one by its hash.",
        "current|HASH",
    ),
]
Temperature = Annotated[float | None, option("--temperature", f"0 is greedy. {_SUITE}", "T", min=0)]
TopP = Annotated[float | None, option("--top-p", _SUITE, "P", min=0, max=1)]
TopK = Annotated[int | None, option("--top-k", f"0 is no limit. {_SUITE}", "K", min=0)]
Seed = Annotated[int | None, option("--seed", f"Of the sampling noise. {_SUITE}", "S")]
SamplesPerPrompt = Annotated[
    int | None,
    option("--samples-per-prompt", f"Continuations of each, at a temperature. {_SUITE}", "N", min=1),
]
Thinking = Annotated[
    bool | None,
    typer.Option(
        "--enable-thinking/--disable-thinking", help=f"For the chat template. {_SUITE}", show_default=False
    ),
]
Attn = Annotated[str | None, option("--attn", "transformers' attention. [default: the target's]", "NAME")]
FeaturesWhere = Annotated[
    str,
    typer.Option(
        "--features", help="Keep the target's features in ram, on disk, or recompute.", metavar="WHERE"
    ),
]
Gpus = Annotated[
    int, typer.Option("--gpus", min=0, help="Run on so many GPUs, each with a worker.", metavar="N")
]
Workers = Annotated[
    int, typer.Option("--workers", min=0, help="Worker processes on one device.", metavar="N")
]
BatchTokens = Annotated[
    int | None,
    option("--batch-tokens", "Tokens of prompt and output in one batch. [default: 16384]", "N", min=1),
]
Stall = Annotated[
    float,
    typer.Option(
        "--stall", min=0, help="End the job after S seconds without progress; 0: never.", metavar="S"
    ),
]
