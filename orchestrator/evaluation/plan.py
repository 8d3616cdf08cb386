"""What a person asked for, settled against the inventory: names, prompts, and the job's record.

What always holds: nothing here touches a host; whatever can be refused by looking at the inventory and the
prompt file is refused here, with the file and the line.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.errors import CheckpointRejectedError, ConfigError, UsageError
from orchestrator.hosts import resolve_entry
from orchestrator.inventory import nearest
from remote_payload.durable import sha256_hex
from remote_payload.errors import PromptError
from remote_payload.promptfile import parse_prompts
from remote_payload.protocol import DrafterSpec, Job, TargetSpec, new_job_id
from remote_payload.vocabulary import DTYPES, ENGINES, FEATURES, TAILS, convention_fault, shape_fault

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from orchestrator.inventory import HostEntry, Inventory, SuiteEntry, TargetEntry

__all__ = ["PROMPTS", "EvalOptions", "Plan", "build_job", "plan", "read_prompts"]

PROMPTS = "prompts.jsonl"
_T = TypeVar("_T")


@dataclass(frozen=True)
class EvalOptions:
    """What a person asked for. None means: the suite's, the target's or the inventory's own."""

    ckpts: Sequence[str]
    kind: str = "eval"
    on: str | None = None
    target: str | None = None
    suite: str | None = None
    baseline: str | None = None
    no_baseline: bool = False
    label: str = ""
    prompts: Path | None = None
    prompt_count: int | None = None
    shapes: Sequence[str] = ()
    max_new_tokens: int | None = None
    stop_token_ids: Sequence[int] | None = None
    block_size: int | None = None
    convention: Mapping[str, Any] = field(default_factory=dict)
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    samples_per_prompt: int | None = None
    enable_thinking: bool | None = None
    attn: str | None = None
    features: str = "ram"
    gpus: int = 0
    workers: int = 0
    batch_tokens: int | None = None
    draft_config: Path | None = None
    forgive: Sequence[str] = ()
    wait_s: float = 120.0
    dtype: str | None = None
    device: str = "auto"
    threads: int | None = None
    samples: int | None = None
    save_outputs: bool = False
    timeout_s: float | None = None
    stall_s: float = 3600.0
    tail: str = "full"
    engine: str = "replay"
    payload: Path | None = None
    release: str | None = None


@dataclass(frozen=True)
class Plan:
    """What the options mean with this inventory: names settled, prompts read, nothing done."""

    options: EvalOptions
    entry: HostEntry
    target: TargetEntry
    target_path: str
    suite: SuiteEntry
    references: tuple[str, ...]
    prompts: bytes
    prompts_from: Path
    prompt_count: int


def plan(inventory: Inventory, options: EvalOptions) -> Plan:
    """Settles what the options leave open.

    Raises:
        UsageError, ConfigError: a word that a setting does not know; a host, target or suite that is not
            there, or none to choose.
        CheckpointRejectedError: the prompt file cannot be used.
    """
    _check_words(options)
    host = inventory.host(options.on or _only_inference_host(inventory))
    target = inventory.target(options.target)
    suite = inventory.suite(options.suite)
    prompts_from = options.prompts or inventory.resolve(suite.prompts)
    count = options.prompt_count or (None if options.prompts else suite.count)
    prompts, number = read_prompts(prompts_from, count)
    entry = resolve_entry(inventory, host.name)
    return Plan(
        options=options,
        entry=entry,
        target=target,
        target_path=inventory.target_path(target, entry),
        suite=suite,
        references=_references(inventory, options),
        prompts=prompts,
        prompts_from=prompts_from,
        prompt_count=number,
    )


def _only_inference_host(inventory: Inventory) -> str:
    hosts = [host.name for host in inventory.hosts_with_role("inference")]
    if len(hosts) == 1:
        return hosts[0]
    if hosts:
        raise UsageError(
            f"there are {len(hosts)} inference hosts: {', '.join(hosts)}",
            f"choose one, as in `--on {hosts[0]}`",
        )
    known = ", ".join(inventory.hosts) or "none"
    raise ConfigError(
        f"{inventory.path}: no host has the role `inference` (hosts: {known})",
        "give one `roles: [inference]`, or choose a host with `--on HOST`",
    )


def _references(inventory: Inventory, options: EvalOptions) -> tuple[str, ...]:
    if options.no_baseline:
        return tuple(options.ckpts)
    name = options.baseline or inventory.defaults.baseline
    if name is None:
        return tuple(options.ckpts)
    if options.baseline and inventory.checkpoint(name) is None:
        return (*options.ckpts, name)  # a reference in its own right, such as HOST:PATH
    return (*options.ckpts, inventory.baseline(name).name)


def read_prompts(path: Path, count: int | None) -> tuple[bytes, int]:
    """Reads a prompt file, checks every line, and keeps the first `count` of them.

    Returns:
        The bytes to send, and how many prompts they hold.

    Raises:
        CheckpointRejectedError: the file is not there, or a line of it cannot be used (file and line).
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointRejectedError(
            f"{path}: {error.strerror}", "check --prompts, or the suite's `prompts:`", file=str(path)
        ) from error
    try:
        number = len(parse_prompts(data, str(path))[:count])
    except PromptError as error:
        hint = 'each line is a JSON object, as in {"id": "p1", "text": "..."}; nothing was started'
        raise CheckpointRejectedError(str(error), hint, file=str(path)) from error
    return b"\n".join(data.split(b"\n")[:number]) + b"\n", number


def _check_words(options: EvalOptions) -> None:
    """Refuses what the payload would refuse by its own tables, before anything is started."""
    if options.payload is not None and options.release is not None:
        raise UsageError(
            "--payload and --release do not go together",
            "--payload pushes a tree from here, --release uses what the host has: give one",
        )
    for shape in options.shapes:
        if fault := shape_fault(shape):
            raise UsageError(f"--shape: {fault}", "choose shapes as in --shape chain --shape ddtree:16")
    if fault := convention_fault(options.convention):
        raise UsageError(f"--convention: {fault}", "README.md (Conventions) says what each setting means")
    for name, value, allowed in (
        ("dtype", options.dtype, DTYPES),
        ("tail", options.tail, TAILS),
        ("engine", options.engine, ENGINES),
        ("features", options.features, FEATURES),
    ):
        if value is not None and value not in allowed:
            close = nearest(value, allowed)
            raise UsageError(
                f"--{name} {value!r}: it can be {', '.join(allowed)}",
                f"did you mean `--{name} {close}`?" if close else f"pass one of these, or leave --{name} out",
            )


def _given(option: _T | None, default: _T) -> _T:
    return default if option is None else option


def build_job(chosen: Plan, payload_hash: str, drafters: Sequence[DrafterSpec]) -> Job:
    """Returns the job that the plan describes."""
    options, suite, target = chosen.options, chosen.suite, chosen.target
    stops = suite.stop_token_ids if options.stop_token_ids is None else options.stop_token_ids
    threads = target.threads if options.threads is None else options.threads
    return Job(
        job_id=new_job_id(options.label or suite.name),
        payload_hash=payload_hash,
        kind=options.kind,
        target=TargetSpec(
            target.name,
            chosen.target_path,
            options.dtype or target.dtype,
            options.attn or target.attn,
            target.trust_remote_code,
        ),
        drafters=list(drafters),
        prompts=PROMPTS,
        prompts_hash=sha256_hex(chosen.prompts),
        suite=suite.name,
        enable_thinking=_given(options.enable_thinking, suite.enable_thinking),
        max_new_tokens=options.max_new_tokens or suite.max_new_tokens,
        stop_ids=None if stops is None else list(stops),
        temperature=_given(options.temperature, suite.temperature),
        top_p=_given(options.top_p, suite.top_p),
        top_k=_given(options.top_k, suite.top_k),
        seed=_given(options.seed, suite.seed),
        samples_per_prompt=_given(options.samples_per_prompt, suite.samples_per_prompt),
        shapes=list(options.shapes or suite.shapes),
        engine=options.engine,
        block_size=options.block_size or suite.block_size,
        tail=options.tail,
        samples=suite.samples if options.samples is None else options.samples,
        sample_stride=suite.sample_stride,
        save_outputs=options.save_outputs,
        device=options.device,
        features=options.features,
        gpus=options.gpus,
        workers=options.workers,
        batch_tokens=_given(options.batch_tokens, Job.batch_tokens),
        threads=threads,
        timeout_s=options.timeout_s,
        stall_s=options.stall_s or None,
        label=options.label,
        created=time.time(),
    )
