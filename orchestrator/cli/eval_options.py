"""The options of `orch eval` that say how the target decodes and what the host may use; None means a default."""

from __future__ import annotations

from typing import Annotated, Any

import typer

__all__ = [
    "Attn",
    "BatchTokens",
    "FeaturesWhere",
    "Gpus",
    "SamplesPerPrompt",
    "Seed",
    "Stall",
    "Temperature",
    "Thinking",
    "TopK",
    "TopP",
    "Workers",
    "option",
]

_SUITE = "[default: the suite's]"


def option(flag: str, help_text: str, metavar: str, **limits: Any) -> Any:
    """An option whose default is said in its help."""
    return typer.Option(flag, help=help_text, metavar=metavar, show_default=False, **limits)


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
