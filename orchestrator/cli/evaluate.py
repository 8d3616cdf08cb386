"""`orch eval`: checkpoints evaluated on a host, followed to the end, their figures brought home."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.common import InventoryOption, JsonOption, QuietOption, emit_json, open_inventory, talk
from orchestrator.cli.ending import stop_code
from orchestrator.cli.eval_options import (
    Attn,
    BatchTokens,
    BlockSize,
    ConventionSettings,
    Device,
    DraftConfig,
    Dtype,
    FeaturesWhere,
    Forgive,
    Gpus,
    NoStop,
    PayloadTree,
    Release,
    RunLabel,
    SamplesPerPrompt,
    Seed,
    Stall,
    StopTokenId,
    SuiteName,
    TargetName,
    Temperature,
    Thinking,
    Threads,
    Timeout,
    TopK,
    TopP,
    Wait,
    Workers,
)
from orchestrator.cli.values import setting, stops

if TYPE_CHECKING:
    from orchestrator.evaluation import EvalOptions
    from orchestrator.runs.attached import AttachedRun

__all__ = ["register"]

SCHEMA = "orch/eval/1"
_SUITE = "[default: the suite's]"


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("eval")(evaluate)


def evaluate(
    ckpt: Annotated[
        list[str],
        typer.Option(
            "--ckpt",
            help="PATH, HOST:PATH, a name of the inventory, or a glob. May be repeated.",
            metavar="REF",
        ),
    ],
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            help="Where; the checkpoints are dealt out to several hosts. [default: the one inference host]",
            metavar="HOST[,HOST...]",
            show_default=False,
        ),
    ] = None,
    target: TargetName = None,
    suite: SuiteName = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            help="Evaluated too, to compare with. [default: the inventory's]",
            metavar="REF",
            show_default=False,
        ),
    ] = None,
    no_baseline: Annotated[bool, typer.Option("--no-baseline", help="Only the checkpoints named.")] = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Start it and return.")] = False,
    label: RunLabel = "",
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts", help=f"Prompts, one JSON object a line. {_SUITE}", metavar="FILE", show_default=False
        ),
    ] = None,
    prompt_count: Annotated[
        int | None,
        typer.Option(
            "--prompt-count", min=1, help=f"Only the first N. {_SUITE}", metavar="N", show_default=False
        ),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            help=f"chain, ddtree:N or topk:K. May be repeated. {_SUITE}",
            metavar="SHAPE",
            show_default=False,
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", min=1, help=_SUITE, metavar="N", show_default=False)
    ] = None,
    stop_token_id: StopTokenId = None,
    no_stop: NoStop = False,
    block_size: BlockSize = None,
    convention: ConventionSettings = None,
    draft_config: DraftConfig = None,
    forgive: Forgive = None,
    wait: Wait = 120.0,
    dtype: Dtype = None,
    device: Device = "auto",
    threads: Threads = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    seed: Seed = None,
    samples_per_prompt: SamplesPerPrompt = None,
    enable_thinking: Thinking = None,
    attn: Attn = None,
    features: FeaturesWhere = "ram",
    gpus: Gpus = 0,
    workers: Workers = 0,
    batch_tokens: BatchTokens = None,
    samples: Annotated[
        int | None,
        typer.Option(
            "--samples",
            min=0,
            help=f"Prompts whose drafts are kept. {_SUITE}",
            metavar="N",
            show_default=False,
        ),
    ] = None,
    save_outputs: Annotated[bool, typer.Option("--save-outputs", help="Keep output token ids.")] = False,
    timeout: Timeout = None,
    stall: Stall = 3600.0,
    tail: Annotated[
        str, typer.Option("--tail", help="Of summaries: full or truncated.", metavar="TAIL")
    ] = "full",
    engine: Annotated[
        str, typer.Option("--engine", help="replay, live or both.", metavar="ENGINE")
    ] = "replay",
    payload: PayloadTree = None,
    release: Release = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Look at everything, start nothing.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    inventory: InventoryOption = None,
) -> None:
    """Evaluate checkpoints on a host and bring their figures back.

    A checkpoint that is seen to be wrong before the start stops everything: nothing is started. One that the
    host rejects later does not spoil the others: their results are kept, and the exit code is 10. With --engine
    live or both it is 1 if live decoding differs from replay or from the target's own text for no near tie.
    """
    from orchestrator.evaluation import EvalOptions

    options = EvalOptions(
        ckpts=tuple(ckpt),
        on=on,
        target=target,
        suite=suite,
        baseline=baseline,
        no_baseline=no_baseline,
        label=label,
        prompts=prompts,
        prompt_count=prompt_count,
        shapes=tuple(shape or ()),
        max_new_tokens=max_new_tokens,
        stop_token_ids=stops(stop_token_id, no_stop),
        block_size=block_size,
        convention=dict(setting(text) for text in convention or ()),
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        samples_per_prompt=samples_per_prompt,
        enable_thinking=enable_thinking,
        attn=attn,
        features=features,
        gpus=gpus,
        workers=workers,
        batch_tokens=batch_tokens,
        draft_config=draft_config,
        forgive=tuple(forgive or ()),
        wait_s=wait,
        dtype=dtype,
        device=device,
        threads=threads,
        samples=samples,
        save_outputs=save_outputs,
        timeout_s=timeout,
        stall_s=stall,
        tail=tail,
        engine=engine,
        payload=payload,
        release=release,
    )
    _run(options, inventory, detach=detach, only_look=dry_run, as_json=as_json, quiet=quiet or as_json)


def _run(
    options: EvalOptions, path: Path | None, *, detach: bool, only_look: bool, as_json: bool, quiet: bool
) -> None:
    from orchestrator.cli.progress import Sending
    from orchestrator.errors import UsageError
    from orchestrator.evaluation import Links, dry_run, plan, prepare
    from orchestrator.runs import RunStore
    from orchestrator.text import printable

    inventory = open_inventory(path)
    if "," in (options.on or ""):
        from orchestrator.cli.eval_many import evaluate_on_many

        if only_look:
            raise UsageError("--dry-run looks at one host", "name one host with --on")
        evaluate_on_many(inventory, options, detach=detach, as_json=as_json, quiet=quiet)
        return
    chosen = plan(inventory, options)
    store = RunStore(inventory.folder)

    def report(text: str) -> None:
        talk(printable(text), quiet=quiet)

    with Links(inventory) as links:
        if only_look:
            _show_plan(dry_run(chosen, links, report), as_json=as_json)
            return
        with Sending(quiet=quiet) as sending:
            attached = prepare(chosen, links, store, report, sending)
        _submit_and_follow(attached, detach=detach, as_json=as_json, quiet=quiet)


def _submit_and_follow(attached: AttachedRun, *, detach: bool, as_json: bool, quiet: bool) -> None:
    from orchestrator.cli.watching import say_how_to_come_back, show_outcome, watch
    from orchestrator.evaluation.outcome import conclude
    from orchestrator.text import printable

    run = attached.run
    try:
        state = attached.submit()
        waiting = f" ({state.reason})" if state.reason else ""
        talk(f"job {run.job_id} is {state.state} on {run.where.host}{waiting}", quiet=quiet)
        if detach:
            _show_detached(attached, state.state, as_json=as_json, quiet=quiet)
            return
        last = watch(attached, quiet=quiet)
        outcome = conclude(attached, last, lambda text: talk(printable(text), quiet=quiet))
    except KeyboardInterrupt as stop:
        say_how_to_come_back(attached)
        raise typer.Exit(stop_code(stop)) from None
    show_outcome(outcome, schema=SCHEMA, as_json=as_json, quiet=quiet)


def _show_detached(attached: AttachedRun, state: str, *, as_json: bool, quiet: bool) -> None:
    run = attached.run
    if as_json:
        document = {
            "schema": SCHEMA,
            "run": run.job_id,
            "host": run.where.host,
            "state": state,
            "detached": True,
        }
        emit_json({**document, "folder": str(run.path), "next": f"orch runs attach {run.job_id}"})
    else:
        typer.echo(run.job_id)
        talk(f"next: orch runs attach {run.job_id}", quiet=quiet)


def _show_plan(document: dict[str, Any], *, as_json: bool) -> None:
    from orchestrator.text import human_bytes, printable

    if as_json:
        emit_json({"schema": SCHEMA, "dry_run": True, **document})
        return
    typer.echo(
        f"host      {document['host']} (payload {document['payload']['release'][:12]}: {document['payload']['status']})"
    )
    typer.echo(
        f"target    {document['target']['name']}, {document['target']['dtype']}, {document['target']['path']}"
    )
    typer.echo(
        f"prompts   {document['prompts']['count']} of {document['prompts']['file']} (suite {document['suite']})"
    )
    typer.echo(f"shapes    {', '.join(document['shapes'])}; up to {document['max_new_tokens']} tokens each")
    for drafter in document["drafters"]:
        typer.echo(
            f"drafter   {printable(drafter['label'])}  {human_bytes(drafter['bytes'])}  {printable(drafter['where'])}"
        )
