"""`python -m remote_payload COMMAND`: the payload by itself, and what the control side runs on a host.

Only the chosen command's modules are imported: `supervise` needs the standard library alone and starts at
once.
"""

from __future__ import annotations

import sys
import traceback

_FAULT = 70
"""Exit code of a fault of the payload itself. Not Python's own 1: that means that the answer is no."""

_COMMANDS = {
    "eval": "evaluate drafters on this machine",
    "diagnose": "is it a bad model or a bad harness",
    "selfcheck": "prove that this payload computes what it should, here",
    "worker": "run a job's folder (started by the supervisor)",
    "share": "run a part of a job (started by a worker that has several)",
    "supervise": "launch, observe, cancel and resume jobs",
}


def main(argv: list[str]) -> int:
    """Dispatches to a command; returns the exit code."""
    command = argv[0] if argv else ""
    if command == "eval":
        from remote_payload.cli import eval_main

        return eval_main(argv[1:])
    if command == "diagnose":
        from remote_payload.diagnose.cli import diagnose_main

        return diagnose_main(argv[1:])
    if command == "worker":
        from remote_payload.cli import worker_main

        return worker_main(argv[1:])
    if command == "share":
        from remote_payload.worker import share_main

        return share_main(argv[1:])
    if command == "selfcheck":
        from remote_payload.selfcheck import main as selfcheck_main

        return selfcheck_main(argv[1:])
    if command == "supervise":
        from remote_payload.supervise import main as supervise_main

        return supervise_main(argv[1:])
    known = "\n".join(f"  {name:10} {what}" for name, what in _COMMANDS.items())
    out = sys.stdout if command in {"-h", "--help"} else sys.stderr
    out.write(f"usage: python -m remote_payload COMMAND ...\n\n{known}\n")
    return 0 if command in {"-h", "--help"} else 2


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except Exception:  # noqa: BLE001 - whatever it is, it is said as Python says it
        traceback.print_exc()
        code = _FAULT
    sys.exit(code)
