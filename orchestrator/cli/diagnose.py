"""`orch diagnose`: is it a bad model or a bad harness? One checkpoint on a host, and a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.common import InventoryOption, JsonOption, QuietOption, open_inventory, talk
from orchestrator.cli.ending import stop_code
from orchestrator.cli.eval_options import (
    Attn,
    BatchTokens,
    BlockSize,
    ConventionSettings,
    Device,
    DraftConfig,
    Dtype,
    Forgive,
    NoStop,
    PayloadTree,
    Release,
    RunLabel,
    Stall,
    StopTokenId,
    SuiteName,
    TargetName,
    Thinking,
    Threads,
    Timeout,
    Wait,
    option,
)
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
    target: TargetName = None,
    suite: SuiteName = None,
    baseline: Annotated[
        str | None,
        option("--baseline", "A sound drafter to lay beside it. [default: the inventory's]", "REF"),
    ] = None,
    no_baseline: Annotated[bool, typer.Option("--no-baseline", help="No drafter beside it.")] = False,
    convention: ConventionSettings = None,
    adopt: Annotated[
        bool,
        typer.Option("--adopt", help="Write a convention that fits into orch.json beside the checkpoint."),
    ] = False,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", min=1, help="Tokens of an output, at most.", metavar="N")
    ] = TOKENS,
    stop_token_id: StopTokenId = None,
    no_stop: NoStop = False,
    block_size: BlockSize = None,
    draft_config: DraftConfig = None,
    forgive: Forgive = None,
    wait: Wait = 120.0,
    dtype: Dtype = None,
    device: Device = "auto",
    threads: Threads = None,
    attn: Attn = None,
    enable_thinking: Thinking = None,
    batch_tokens: BatchTokens = None,
    label: RunLabel = "diagnose",
    timeout: Timeout = None,
    stall: Stall = 3600.0,
    payload: PayloadTree = None,
    release: Release = None,
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
        stall_s=stall,
        wait_s=wait,
        payload=payload,
        release=release,
    )
    _run(open_inventory(inventory), options, adopt=adopt, as_json=as_json, quiet=quiet or as_json)


def _run(inventory: Inventory, options: EvalOptions, *, adopt: bool, as_json: bool, quiet: bool) -> None:
    from orchestrator.cli.progress import Sending
    from orchestrator.cli.watching import say_how_to_come_back, show_outcome, watch
    from orchestrator.evaluation import Links, plan, prepare
    from orchestrator.evaluation.outcome import conclude
    from orchestrator.runs import RunStore
    from orchestrator.text import printable

    chosen = plan(inventory, options)

    def report(text: str) -> None:
        talk(printable(text), quiet=quiet)

    with Links(inventory) as links:
        with Sending(quiet=quiet) as sending:
            attached = prepare(chosen, links, RunStore(inventory.folder), report, sending)
        try:
            state = attached.submit()
            talk(f"job {attached.run.job_id} is {state.state} on {attached.run.where.host}", quiet=quiet)
            outcome = conclude(attached, watch(attached, quiet=quiet), report)
        except KeyboardInterrupt as stop:
            say_how_to_come_back(attached)
            raise typer.Exit(stop_code(stop)) from None
        try:
            show_outcome(outcome, schema="orch/diagnose/1", as_json=as_json, quiet=quiet)
        finally:  # a verdict is shown whatever comes of writing it down
            if adopt and outcome.diagnosis is not None:
                _adopt(inventory, links.open, attached.run.job.drafters[0].source, outcome)


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
