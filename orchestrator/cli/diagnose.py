"""`orch diagnose`: is it a bad model or a bad harness? One checkpoint on a host, and a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.common import InventoryOption, JsonOption, QuietOption, open_inventory, talk
from orchestrator.cli.ending import stop_code
from orchestrator.cli.eval_options import Attn, BatchTokens, Thinking, option
from orchestrator.cli.values import setting, stops

if TYPE_CHECKING:
    from orchestrator.checkpoints import Opener
    from orchestrator.evaluation import EvalOptions
    from orchestrator.evaluation.outcome import Outcome
    from orchestrator.inventory import Inventory

__all__ = ["register"]

TOKENS, PROMPTS = 96, 32
_SUITE = "[default: the suite's]"


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("diagnose")(diagnose)


def diagnose(
    ckpt: Annotated[str, option("--ckpt", "PATH, HOST:PATH or a name of the inventory.", "REF")],
    on: Annotated[str | None, option("--on", "Where. [default: the one inference host]", "HOST")] = None,
    prompts: Annotated[
        int, typer.Option("--prompts", min=6, help="How many prompts of the suite.", metavar="N")
    ] = PROMPTS,
    prompts_file: Annotated[
        Path | None, option("--prompts-file", f"Prompts, one JSON object a line. {_SUITE}", "FILE")
    ] = None,
    target: Annotated[str | None, option("--target", "[default: the inventory's]", "NAME")] = None,
    suite: Annotated[str | None, option("--suite", "[default: the inventory's]", "NAME")] = None,
    baseline: Annotated[
        str | None,
        option("--baseline", "A sound drafter to lay beside it. [default: the inventory's]", "REF"),
    ] = None,
    no_baseline: Annotated[bool, typer.Option("--no-baseline", help="No drafter beside it.")] = False,
    convention: Annotated[
        list[str] | None,
        option("--convention", "How the checkpoint was trained. May be repeated.", "KEY=VALUE"),
    ] = None,
    adopt: Annotated[
        bool,
        typer.Option("--adopt", help="Write a convention that fits into orch.json beside the checkpoint."),
    ] = False,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", min=1, help="Tokens of an output, at most.", metavar="N")
    ] = TOKENS,
    stop_token_id: Annotated[list[int] | None, option("--stop-token-id", _SUITE, "ID", min=0)] = None,
    no_stop: Annotated[bool, typer.Option("--no-stop", help="Go on to the limit.")] = False,
    block_size: Annotated[
        int | None, option("--block-size", "[default: the checkpoint's own]", "B", min=1)
    ] = None,
    draft_config: Annotated[
        Path | None, option("--draft-config", "The drafter's config, for a raw training state.", "FILE")
    ] = None,
    forgive: Annotated[
        list[str] | None, option("--forgive", "A tensor to pass over. May be repeated.", "TENSOR")
    ] = None,
    dtype: Annotated[
        str | None, option("--dtype", "float32, bfloat16 or float16. [default: the target's]", "DTYPE")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda:0 ...", metavar="DEVICE")] = "auto",
    threads: Annotated[
        int | None, option("--threads", "CPU threads. [default: the target's]", "N", min=0)
    ] = None,
    attn: Attn = None,
    enable_thinking: Thinking = None,
    batch_tokens: BatchTokens = None,
    label: Annotated[str, option("--label", "A name for the run.", "NAME")] = "diagnose",
    timeout: Annotated[float | None, option("--timeout", "End the job after S seconds.", "S", min=1)] = None,
    payload: Annotated[Path | None, option("--payload", "Run your own payload.", "DIR")] = None,
    release: Annotated[
        str | None, option("--release", "Push nothing: run an installed release.", "current|HASH")
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    inventory: InventoryOption = None,
) -> None:
    """Tell a bad model from a bad harness, and say how to mend it.

    Exit code 0 if the harness is right (the verdict is ok or undertrained), 1 for any other verdict.
    """
    from orchestrator.evaluation import EvalOptions

    options = EvalOptions(
        ckpts=(ckpt,),
        kind="diagnose",
        on=on,
        target=target,
        suite=suite,
        baseline=baseline,
        no_baseline=no_baseline,
        label=label,
        prompts=prompts_file,
        prompt_count=prompts,
        max_new_tokens=max_new_tokens,
        stop_token_ids=stops(stop_token_id, no_stop),
        block_size=block_size,
        convention=dict(setting(text) for text in convention or ()),
        temperature=0.0,
        samples_per_prompt=1,
        enable_thinking=enable_thinking,
        attn=attn,
        batch_tokens=batch_tokens,
        draft_config=draft_config,
        forgive=tuple(forgive or ()),
        dtype=dtype,
        device=device,
        threads=threads,
        samples=0,
        timeout_s=timeout,
        payload=payload,
        release=release,
    )
    _run(open_inventory(inventory), options, adopt=adopt, as_json=as_json, quiet=quiet or as_json)


def _run(inventory: Inventory, options: EvalOptions, *, adopt: bool, as_json: bool, quiet: bool) -> None:
    from orchestrator.cli.watching import say_how_to_come_back, show_outcome, watch
    from orchestrator.evaluation import Links, plan, prepare
    from orchestrator.evaluation.outcome import conclude
    from orchestrator.runs import RunStore
    from orchestrator.text import printable

    chosen = plan(inventory, options)
    with Links(inventory) as links:
        attached = prepare(
            chosen, links, RunStore(inventory.folder), lambda text: talk(printable(text), quiet=quiet)
        )
        try:
            state = attached.submit()
            talk(f"job {attached.run.job_id} is {state.state} on {attached.run.where.host}", quiet=quiet)
            outcome = conclude(attached, watch(attached, quiet=quiet))
        except KeyboardInterrupt as stop:
            say_how_to_come_back(attached)
            raise typer.Exit(stop_code(stop)) from None
        if adopt and outcome.diagnosis is not None:
            _adopt(inventory, links.open, attached.run.job.drafters[0].source, outcome)
    show_outcome(outcome, schema="orch/diagnose/1", as_json=as_json, quiet=quiet)


def _adopt(inventory: Inventory, opener: Opener, where: str, outcome: Outcome) -> None:
    """Writes what fits beside the checkpoint, or says why there is nothing to write."""
    from orchestrator import checkpoints

    found = outcome.diagnosis or {}
    settings = (found.get("mends") or {}).get("convention")
    if found.get("verdict") != "convention" or not settings:
        talk(
            "nothing to adopt: no setting of the convention makes this checkpoint's own way the declared one"
        )
        return
    path = checkpoints.adopt(inventory, where, settings, opener)
    said = ", ".join(f"{name}={value}" for name, value in settings.items())
    talk(f"{path}: convention {said}; every later eval of this checkpoint reads it")
