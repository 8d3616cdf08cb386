"""A client as a process: submits a recorded run, follows it and ends it, and says what it begins."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from orchestrator.hosts.local import LocalHost
from orchestrator.inventory import HostEntry
from orchestrator.launch import Observation
from orchestrator.runs import RunStore
from orchestrator.runs.attached import AttachedRun


def main(root: Path, job_id: str, entry: HostEntry, steps: Path) -> None:
    """Does what `orch eval --detach` does from the submit on, then `orch runs cancel` once there are rows."""

    def begin(step: str) -> None:
        with steps.open("a") as stream:
            stream.write(step + "\n")

    run = RunStore(root / "project").open(job_id)
    attached = AttachedRun(run, LocalHost("box", root / "host"), entry)
    begin("launch")
    attached.submit()
    begin("follow")
    for seen in attached.follow():
        if isinstance(seen, Observation) and seen.new_rows:
            begin("cancel")
            attached.cancel(1.0)
            break
    begin("over")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], HostEntry(**json.loads(sys.argv[3])), Path(sys.argv[4]))
