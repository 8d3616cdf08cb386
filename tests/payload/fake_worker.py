"""A worker of the standard library for tests of the supervisor: what it does is said by the job's tags, and by
those in $ORCH_TEST_TAGS (blanks between them), for jobs that `orch eval` made.

`rows=N` `pause=S` write N rows, S seconds apart, skipping those that are there; `print=TEXT`; `deaf` ignores
TERM; `fork` starts a grandchild in a session of its own that ignores TERM; `fail=TEXT` raises; `reject=TEXT`
exits 10, `refuse=TEXT` too, but it says so on stderr only; `silent` writes no summary; `fat` makes each row
100 KiB; `lossless=N` says in the summary that N live outputs differ; `exit=N` ends with that code;
`diagnose` leaves a diagnosis instead of a summary; `gpus` keeps in `gpus.json` which GPUs it saw, and from when to when
it ran; `hang=N` stops for good before row N, once; `tail=S` takes S seconds from the last row to the summary.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from remote_payload import durable, protocol

GRANDCHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def main(argv: list[str]) -> int:
    """Runs the job of `--job DIR`."""
    folder = Path(argv[argv.index("--job") + 1])
    job = protocol.Job.from_json(durable.read_json(folder / "job.json"))
    tags = [*job.tags, *os.environ.get("ORCH_TEST_TAGS", "").split()]
    wanted = dict(tag.partition("=")[::2] for tag in tags)
    (folder / "worker.pid").write_text(str(os.getpid()), encoding="ascii")
    began = time.time()
    if "deaf" in wanted:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "fork" in wanted:
        child = subprocess.Popen([sys.executable, "-c", GRANDCHILD], start_new_session=True)
        (folder / "grandchild.pid").write_text(str(child.pid), encoding="ascii")
    if "print" in wanted:
        print(wanted["print"])
    if "reject" in wanted:
        durable.append_lines(folder / "events.jsonl", [{"phase": "rejected", "message": wanted["reject"]}])
        return 10
    if "refuse" in wanted:
        durable.append_lines(folder / "events.jsonl", [{"phase": "load", "message": "/models/target"}])
        sys.stderr.write(f"error: {wanted['refuse']}\n")
        return 10
    hang = int(wanted["hang"]) if "hang" in wanted and not (folder / "hung").exists() else None
    _rows(folder, int(wanted.get("rows", 1)), float(wanted.get("pause", 0)), "fat" in wanted, hang)
    time.sleep(float(wanted.get("tail", 0)))
    if "gpus" in wanted:
        seen = {"uuids": os.environ.get("CUDA_VISIBLE_DEVICES"), "began": began, "ended": time.time()}
        durable.write_json(folder / "gpus.json", seen)
    if "fail" in wanted:
        raise RuntimeError(wanted["fail"])
    if "diagnose" in wanted:
        durable.write_json(folder / "diagnosis.json", {"verdict": "ok"})
    elif "silent" not in wanted:
        durable.write_json(folder / "summary.json", {"schema": protocol.SUMMARY_SCHEMA, **_proofs(wanted)})
    return int(wanted.get("exit", 0))


def _proofs(wanted: dict[str, str]) -> dict[str, Any]:
    """What a summary says of its engines: `lossless=N` live outputs of three differ for no near tie."""
    if "lossless" not in wanted:
        return {"results": []}
    real = int(wanted["lossless"])
    return {"lossless": {"outputs": 3, "equal": 3 - real, "near_ties": 0, "real": real, "divergences": []}}


def _hang(folder: Path) -> None:
    (folder / "hung").touch()
    time.sleep(600)


def _rows(folder: Path, total: int, pause: float, fat: bool, hang: int | None) -> None:
    rows, events = folder / "rows.jsonl", folder / "events.jsonl"
    durable.trim_torn_line(rows)
    there = sum(1 for _ in durable.iter_jsonl(rows))
    for index in range(there, total):
        if index == hang:
            _hang(folder)
        time.sleep(pause)
        row = {"row": index, "pid": os.getpid(), **({"text": os.urandom(50_000).hex()} if fat else {})}
        durable.append_lines(rows, [row])
        durable.append_lines(events, [protocol.Event("drafts", "d", index + 1, total).to_json()])
