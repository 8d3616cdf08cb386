"""`python -m benchmarks`: runs every benchmark and writes docs/performance.md from what they print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("startup", "replay", "memory", "compare", "transport")
NEED_ROOT = ("transport",)


def main() -> None:
    """Runs them one after the other, shows what they say, and keeps it."""
    parts = [
        "# Performance",
        "",
        "Written by `make bench`. Ratios compare two things in one run on one machine; absolute times are that machine's.",
        "",
    ]
    for name in NAMES:
        print(f"== {name}", flush=True)
        if name in NEED_ROOT and os.geteuid() != 0:
            print("left out: it needs root, for network namespaces")
            continue
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        sys.stdout.write(done.stdout)
        if done.returncode:
            sys.stderr.write(done.stderr)
            raise SystemExit(f"benchmark {name} failed")
        *said, last = done.stdout.rstrip().splitlines()
        record = json.loads(last)
        parts += [f"## {name}", "", "```text", *said, "```", ""]
        machine = ", ".join(f"{key} {value}" for key, value in sorted(record["machine"].items()))
        parts += [f"{time.strftime('%Y-%m-%d')}, n = {record['n']}; {machine}.", ""]
    (ROOT / "docs" / "performance.md").write_text("\n".join(parts), encoding="utf-8")
    print("wrote docs/performance.md")


if __name__ == "__main__":
    main()
