"""The payload's own command line: `eval` for people on the box, `worker` for the supervisor.

`eval` builds the same job record that `orch eval` would and runs it in the output folder, so that both write
the same files.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from remote_payload.durable import ProtocolError, file_sha256, read_json, write_json
from remote_payload.errors import InputError, PromptError
from remote_payload.proof import EXIT_DIFFERS, fault
from remote_payload.protocol import DrafterSpec, Job, TargetSpec, build_manifest, new_job_id

__all__ = [
    "Help",
    "add_model_flags",
    "copied_prompts",
    "drafter_spec",
    "eval_main",
    "job_basics",
    "worker_main",
]


def worker_main(argv: Sequence[str]) -> int:
    """Runs the job in a folder.

    Exit code 0 done, 1 done and the engines really differ, 10 refused inputs, 5 a job of another protocol version.
    """
    parser = argparse.ArgumentParser(prog="python -m remote_payload worker")
    parser.add_argument("--job", type=Path, required=True, metavar="DIR", help="the job's folder")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="default: ../../cache of the job's folder")
    args = parser.parse_args(argv)
    folder = args.job.resolve()
    try:
        job = Job.from_json(read_json(folder / "job.json"), str(folder / "job.json"))
    except ProtocolError as error:
        sys.stderr.write(f"error: {error}\n")
        return 5
    cache = args.cache or folder.parent.parent / "cache"
    if job.kind == "diagnose":
        from remote_payload.diagnose.cli import diagnose_job

        return diagnose_job(job, folder, cache)
    return _run(job, folder, cache)


def eval_main(argv: Sequence[str]) -> int:
    """Evaluates drafters and writes the job's files into --out."""
    args = _parser().parse_args(argv)
    try:
        job = _job(args)
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    folder = args.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with copied_prompts(args.prompts, folder):
        write_json(folder / "job.json", job.to_json())
        code = _run_on_gpus(job, folder, args.cache or Path.home() / ".cache" / "orch")
    write_json(folder / "MANIFEST.json", build_manifest(folder))
    if code in {0, EXIT_DIFFERS, InputError.exit_code} and (folder / "summary.json").is_file():
        summary = read_json(folder / "summary.json")
        sys.stdout.write(_table(summary) + _engine_reports(summary))
    return code


def _run_on_gpus(job: Job, folder: Path, cache: Path) -> int:
    """Runs a job with the GPUs that it needs leased, as a supervisor would."""
    from remote_payload.supervise.direct import holding_gpus

    try:
        with holding_gpus(job, lambda words: sys.stderr.write(f"{words}\n")):
            return _run(job, folder, cache, sys.stderr)
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        return InputError.exit_code


def _run(job: Job, folder: Path, cache: Path, echo: TextIO | None = None) -> int:
    from remote_payload.evaluate import run_job

    try:
        code = run_job(job, folder, cache, echo)
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    if code == EXIT_DIFFERS:
        found = fault(read_json(folder / "summary.json"))
        sys.stderr.write(
            f"error: {found}; {folder / 'summary.json'} lists where (parity, lossless). In float32 only a bug of an "
            "engine does that: do not trust figures before it is found\n"
        )
    return code


@contextlib.contextmanager
def copied_prompts(source: Path, folder: Path) -> Any:
    """Puts the prompt file into the folder, as it is in a job; a missing one is reported by the reader."""
    goal = folder / "prompts.jsonl"
    if source.is_file() and not (goal.exists() and goal.samefile(source)):
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as temporary:
            temporary.write(source.read_bytes())
        shutil.move(temporary.name, goal)
    yield


def _job(args: argparse.Namespace) -> Job:
    from remote_payload.drafters.convention import Convention

    if not args.prompts.is_file():
        raise PromptError(f"{args.prompts}: not there")
    convention = Convention.from_flags(args.convention).non_default() if args.convention else {}
    drafters = [drafter_spec(given, args, convention) for given in args.drafter]
    labels = [drafter.label for drafter in drafters]
    if len(set(labels)) != len(labels):
        raise InputError(f"drafter labels are not distinct: {', '.join(labels)}; use --drafter LABEL=DIR")
    return Job(
        **job_basics(args),
        kind="eval",
        drafters=drafters,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        seed=args.seed,
        samples_per_prompt=args.samples_per_prompt,
        shapes=args.shape or ["chain"],
        engine=args.engine,
        acceptance=args.acceptance,
        features=args.features,
        tail=args.tail,
        samples=args.samples,
        save_outputs=args.save_outputs,
        gpus=args.gpus,
        workers=args.workers,
    )


def job_basics(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the fields of a job that the flags of `add_model_flags` (and --max-new-tokens) set."""
    return {
        "job_id": new_job_id("local"),
        "payload_hash": "",
        "target": TargetSpec(
            args.target.resolve().name,
            str(args.target.expanduser()),
            args.dtype,
            args.attn,
            args.trust_remote_code,
        ),
        "prompts": "prompts.jsonl",
        "prompts_hash": file_sha256(args.prompts),
        "enable_thinking": args.enable_thinking,
        "max_new_tokens": args.max_new_tokens,
        "stop_ids": [] if args.no_stop else args.stop_token_id,
        "block_size": args.block_size,
        "device": args.device,
        "threads": args.threads,
        "batch_tokens": args.batch_tokens,
        "created": time.time(),
    }


def drafter_spec(given: str, args: argparse.Namespace, convention: dict[str, Any]) -> DrafterSpec:
    """Returns the record of one --drafter; a link is followed, so that label and record name the step."""
    from remote_payload.drafters.checkpoint import drafter_hash

    label, equals, path = given.partition("=")
    folder = Path(path if equals else given).expanduser().resolve()
    if not equals:
        # speculators calls its folders by the epoch alone
        label = f"{folder.parent.name}/{folder.name}" if folder.name.isdigit() else folder.name
    return DrafterSpec(
        label,
        str(folder),
        drafter_hash(folder, args.draft_config),
        "dflash",
        convention,
        forgive=args.forgive,
        draft_config=str(args.draft_config) if args.draft_config else None,
        source=str(folder),
    )


class Help(argparse.HelpFormatter):
    """Shows every default that a setting has, but for flags and for settings whose help says it in words."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help or ""
        if "default" in text or action.default in (None, [], argparse.SUPPRESS) or action.default is False:
            return text
        return f"{text} (default: %(default)s)".strip()


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """Adds what says which models run on which prompts, how they are read, and where."""
    add = parser.add_argument
    add("--target", type=Path, required=True, metavar="DIR", help="the target's folder")
    add("--prompts", type=Path, required=True, metavar="FILE", help="prompts, one JSON object a line")
    add("--cache", type=Path, metavar="DIR", help="continuations and hashes (default: ~/.cache/orch)")
    stops = parser.add_mutually_exclusive_group()
    stops.add_argument(
        "--stop-token-id", type=int, action="append", metavar="ID", help="default: the target's own"
    )
    stops.add_argument("--no-stop", action="store_true", help="go on to the limit")
    add("--block-size", type=int, metavar="B", help="instead of the checkpoint's own")
    add(
        "--convention", action="append", default=[], metavar="KEY=VALUE", help="how the drafters were trained"
    )
    add(
        "--draft-config",
        type=Path,
        metavar="FILE",
        help="the drafter's config, for raw checkpoints (training_state.pt) that have none beside them",
    )
    add(
        "--forgive",
        action="append",
        default=[],
        metavar="TENSOR",
        help="a tensor that may be unknown, not finite or all zero; may be repeated",
    )
    add(
        "--dtype",
        default="bfloat16",
        choices=["float32", "bfloat16", "float16"],
        help="of target and drafters",
    )
    add("--attn", default="sdpa", help="transformers' attention implementation for the target")
    add("--device", default="auto", help="auto, cpu, cuda:0 ...")
    add(
        "--threads", type=int, default=0, help="CPU threads of a worker (default: torch's choice, shared out)"
    )
    add("--batch-tokens", type=int, default=16384, help="tokens of prompt and output in one batch")
    add("--enable-thinking", action="store_true", help="passed to the chat template")
    add("--trust-remote-code", action="store_true", help="run code that comes with the target")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        formatter_class=Help,
        prog="python -m remote_payload eval",
        description="Evaluate drafters here.",
        epilog="Exit code 0: done; 1: done, and live decoding really differs from replay or from the target's own "
        "text; 10: something was refused, the reason is said; 70: a fault of the payload.",
    )
    add_model_flags(parser)
    add = parser.add_argument
    add(
        "--drafter",
        action="append",
        required=True,
        metavar="[LABEL=]DIR",
        help="a drafter's folder; may be repeated",
    )
    add(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="where the results go; an earlier run there is resumed",
    )
    add("--engine", default="replay", choices=["replay", "live", "both"], help="how rounds are measured")
    add(
        "--shape",
        action="append",
        metavar="SHAPE",
        help="chain, ddtree:N or topk:K; may be repeated (default: chain)",
    )
    add("--max-new-tokens", type=int, default=2048, metavar="N", help="tokens of an output, at most")
    add("--temperature", type=float, default=0.0, help="of the target; 0 is greedy")
    add("--top-p", type=float, default=1.0, help="nucleus of the target, at a temperature")
    add("--top-k", type=int, default=0, help="most probable tokens kept, at a temperature; 0 keeps all")
    add("--seed", type=int, default=0, help="of the sampling noise")
    add("--samples-per-prompt", type=int, default=1, help="continuations of each prompt, at a temperature")
    add("--acceptance", default="exact", choices=["exact", "rejection"], help="how drafts are accepted")
    add("--gpus", type=int, default=0, metavar="N", help="N GPUs, one worker each; prompts are dealt out")
    add(
        "--workers",
        type=int,
        default=0,
        metavar="N",
        help="N worker processes on the device, as --device cpu",
    )
    add(
        "--features",
        default="ram",
        choices=["ram", "disk", "recompute"],
        help="the target's features: in memory, on disk under --cache for later runs, or made again per batch",
    )
    add("--tail", default="full", choices=["full", "truncated"], help="of summaries; rows are always in full")
    add("--samples", type=int, default=8, help="prompts whose drafts are kept as samples")
    add("--save-outputs", action="store_true", help="keep output token ids in rows")
    return parser


def _table(summary: dict[str, Any]) -> str:
    lines = [f"{'drafter':32} {'shape':12} {'tau':>8} {'rounds':>8}"]
    for drafter in summary["drafters"]:
        for shape, entry in drafter["shapes"].items():
            value = "-" if entry["tau"] is None else f"{entry['tau']:.3f}"
            lines.append(f"{_plain(drafter['label']):32} {shape:12} {value:>8} {entry['rounds']:>8}")
    lines += [f"refused: {_plain(r['label'])}: {_plain(r['reason'])}" for r in summary["rejected"]]
    return "\n".join(lines) + "\n"


def _engine_reports(summary: dict[str, Any]) -> str:
    """What live decoding found about itself and replay, if it ran."""
    from remote_payload.engines.parity import reports_as_text

    lines = reports_as_text(summary).splitlines()
    return "".join(f"{_plain(line)}\n" for line in lines)


def _plain(text: str) -> str:
    """Shows text from elsewhere without letting a control character reach the terminal."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)
