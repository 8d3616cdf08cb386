"""`python -m remote_payload diagnose`, and a job of kind `diagnose`.

The last line on stdout is the document (`orch/diagnose/1`) as one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from remote_payload.cli import Help, add_model_flags, copied_prompts, drafter_spec, job_basics
from remote_payload.diagnosis import as_text, exit_code
from remote_payload.durable import write_json
from remote_payload.errors import InputError
from remote_payload.prompts import read_prompts
from remote_payload.protocol import Job, build_manifest

__all__ = ["diagnose_job", "diagnose_main"]

EXIT_HOST = 6
"""Disk or permission."""
TOKENS, PROMPTS = 96, 32


def diagnose_job(job: Job, folder: Path, cache: Path, echo: TextIO | None = None) -> int:
    """Runs a job of kind `diagnose` in its folder; the document is printed, and `diagnosis.json`.

    Returns:
        0 whatever the verdict is: the job is done; 10 if the prompts, the target or the reference are refused.
    """
    from remote_payload.diagnose.run import diagnose

    try:
        found = diagnose(job, folder, cache, echo)
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    sys.stdout.write(json.dumps(found, sort_keys=True) + "\n")
    return 0


def diagnose_main(argv: Sequence[str]) -> int:
    """Diagnoses one drafter on this machine.

    Returns:
        0 for ok and undertrained, 1 for any other verdict, 10 where the inputs cannot be used.
    """
    args = _parser().parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.out or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            job = _job(args, folder)
        except InputError as error:
            sys.stderr.write(f"error: {error}\n")
            return error.exit_code
        write_json(folder / "job.json", job.to_json())
        code = _printed(job, folder, args)
        if args.out:
            write_json(folder / "MANIFEST.json", build_manifest(folder))
        return code


def _printed(job: Job, folder: Path, args: argparse.Namespace) -> int:
    from remote_payload.diagnose.run import diagnose
    from remote_payload.supervise.direct import holding_gpus

    try:
        with holding_gpus(job, lambda words: sys.stderr.write(f"{words}\n")):
            found = diagnose(job, folder, args.cache or Path.home() / ".cache" / "orch", sys.stderr)
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    if not args.json:
        sys.stdout.write(as_text(found))
    sys.stdout.write(json.dumps(found, sort_keys=True) + "\n")
    return _adopted(Path(job.drafters[0].path), found) if args.adopt else exit_code(found)


def _adopted(drafter: Path, found: dict[str, Any]) -> int:
    """Declares what fits beside the drafter, after the verdict was printed; returns the exit code."""
    from remote_payload.diagnose.adopt import adopt

    try:
        sys.stderr.write(adopt(drafter, found) + "\n")
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except OSError as error:
        where = error.filename or drafter
        sys.stderr.write(
            f"error: {where}: {error.strerror}; nothing was adopted, the verdict stands. Give your user the right to write "
            "there, or pass the flags above\n"
        )
        return EXIT_HOST
    return exit_code(found)


def _job(args: argparse.Namespace, folder: Path) -> Job:
    from remote_payload.drafters.convention import Convention

    read_prompts(args.prompts)  # a wrong line is refused under the file's own name
    convention = Convention.from_flags(args.convention).non_default() if args.convention else {}
    drafters = [drafter_spec(args.drafter, args, convention)]
    if args.reference:
        drafters.append(drafter_spec(args.reference, argparse.Namespace(draft_config=None, forgive=[]), {}))
    with copied_prompts(args.prompts, folder):
        _keep_first(folder / "prompts.jsonl", args.prompt_count)
    return Job(**job_basics(args), kind="diagnose", drafters=drafters)


def _keep_first(path: Path, count: int) -> None:
    """Cuts a prompt file to its first lines."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:count]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        formatter_class=Help,
        prog="python -m remote_payload diagnose",
        description="Is it a bad model or a bad harness? One drafter, every neighbouring convention, a verdict.",
    )
    parser.add_argument("--drafter", required=True, metavar="[LABEL=]DIR", help="the drafter's folder")
    parser.add_argument(
        "--reference", metavar="[LABEL=]DIR", help="a sound drafter of the same target, beside it"
    )
    add_model_flags(parser)
    parser.add_argument(
        "--prompt-count", type=int, default=PROMPTS, metavar="N", help="only the first N prompts"
    )
    parser.add_argument(
        "--max-new-tokens", type=int, default=TOKENS, metavar="N", help="tokens of an output, at most"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the job's files there")
    parser.add_argument("--json", action="store_true", help="print the document only")
    parser.add_argument(
        "--adopt",
        action="store_true",
        help="write the convention that fits into orch.json beside the drafter",
    )
    return parser
