"""`python -m benchmarks [NAME ...]`: runs benchmarks and writes what they print into docs/performance.md.

Without names it runs them all. A section whose benchmark was not run stays as it was.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "performance.md"
NAMES = ("startup", "replay", "memory", "compare", "transport")
NEED_ROOT = ("transport",)
HEAD = """# Performance

Written by `make bench`. Ratios compare two things in one run on one machine; absolute times are that machine's.
"""


def main() -> None:
    """Runs them one after the other, shows what they say, and keeps it."""
    asked = sys.argv[1:] or NAMES
    if unknown := set(asked) - set(NAMES):
        raise SystemExit(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    for name in (name for name in NAMES if name in asked):
        print(f"== {name}", flush=True)
        if name in NEED_ROOT and os.geteuid() != 0:
            print("left out: it needs root, for network namespaces")
            continue
        keep(name, run(name))
        print(f"wrote docs/performance.md ({name})", flush=True)


def run(name: str) -> str:
    """Runs one and returns its section."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    sys.stdout.write(done.stdout)
    if done.returncode:
        raise SystemExit(f"benchmark {name} failed")
    *said, last = done.stdout.rstrip().splitlines()
    record = json.loads(last)
    machine = ", ".join(f"{key} {value}" for key, value in sorted(record["machine"].items()))
    when = f"{time.strftime('%Y-%m-%d')}, n = {record['n']}; {machine}."
    return "\n".join([f"## {name}", "", "```text", *said, "```", "", when, ""])


def keep(name: str, section: str) -> None:
    """Puts a section into the page, in the order of `NAMES`."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
    sections = {part.split("\n", 1)[0]: f"## {part}" for part in re.split(r"(?m)^## ", text)[1:]}
    sections[name] = section
    parts = [HEAD, *(sections[one].rstrip() + "\n" for one in NAMES if one in sections)]
    PAGE.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
