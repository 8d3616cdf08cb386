"""All tests: those that need to be alone among their kind one by one, beside all others in several processes.

Usage: `python -m tests.everything JOBS`. The first kind mostly waits for processes, links and clocks, so that it costs
the others little; what it printed comes last. The exit code is 0 if both parts passed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import IO

SLOWEST = 15


def part(mark: str, *words: str, out: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    """Starts the tests of a mark."""
    command = [sys.executable, "-m", "pytest", "-m", mark, "--durations", str(SLOWEST), *words]
    return subprocess.Popen(command, stdout=out, stderr=out and subprocess.STDOUT)


def main(arguments: Sequence[str]) -> int:
    """Runs both parts to their end, whatever becomes of the other."""
    (jobs,) = arguments
    with tempfile.TemporaryFile() as kept:
        serial, others = part("serial", out=kept), part("not serial", "-n", jobs)
        try:
            failed = others.wait()
            if serial.poll() is None:
                print("waiting for the tests that run one by one", flush=True)
            failed = serial.wait() or failed
        finally:
            for process in (others, serial):
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)  # it ends what it has started
                    process.wait()
            kept.seek(0)
            sys.stdout.flush()
            sys.stdout.buffer.write(kept.read())
            sys.stdout.flush()
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
