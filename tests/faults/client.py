"""A client as a process: submits a recorded run, then follows and pulls or ends it, and says what it begins."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from orchestrator.hosts.local import LocalHost
from orchestrator.inventory import HostEntry
from orchestrator.launch import Observation
from orchestrator.runs import RunStore
from orchestrator.runs.attached import AttachedRun


def main(root: Path, job_id: str, entry: HostEntry, steps: Path, aim: str) -> None:
    """Does what `orch eval` does from the submit on; with `cancel` for an aim it ends the job once it has rows."""

    def begin(step: str) -> None:
        with steps.open("a") as stream:
            stream.write(step + "\n")

    run = RunStore(root / "project").open(job_id)
    attached = AttachedRun(run, LocalHost("box", root / "host"), entry)
    begin("launch")
    attached.submit()
    begin("follow")
    rows = 0
    for seen in attached.follow():
        rows += seen.new_rows if isinstance(seen, Observation) else 0
        if rows and aim == "cancel":
            begin("cancel")
            attached.cancel(1.0)
            break
    else:
        begin("pull")
        attached.pull()
    begin("over")


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        sys.argv[2],
        HostEntry(**json.loads(sys.argv[3])),
        Path(sys.argv[4]),
        sys.argv[5],
    )
