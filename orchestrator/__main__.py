"""`python -m orchestrator` is `orch`: the console script, which an interruption ends quietly from the start."""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Runs the program."""
    try:
        from orchestrator.cli.ahead import look_ahead

        look_ahead(sys.argv[1:])
        from orchestrator.cli.main import run
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.stderr.flush()
        os._exit(130)
    run()


if __name__ == "__main__":
    main()
