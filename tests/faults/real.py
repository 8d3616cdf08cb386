"""The host of `world` with the real payload: jobs that evaluate the trained tiny pair on the CPU."""

from __future__ import annotations

import random
import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import remote_payload
from orchestrator.runs import Where
from remote_payload.durable import file_sha256, read_json
from remote_payload.protocol import Job, Row
from tests.faults.world import Case, World
from tests.orchestrator.desk import RELEASE
from tests.payload.runs import make_job

__all__ = ["RealWorld"]

_PROMPTS, _SHAPES, _DRAFTERS = 6, ("chain", "ddtree:8"), ("drafter-b8-early", "drafter-b8-mid")


class RealWorld(World):
    """A host whose jobs load torch, a target and two drafters."""

    pace, jobs = 4.0, 1

    def build(self, root: Path) -> Path:
        """Copies the payload as it is."""
        source = Path(remote_payload.__file__).parent
        shutil.copytree(source, root / "remote_payload", ignore=shutil.ignore_patterns("__pycache__"))
        return root

    def new_case(self, rng: random.Random, *, slow: bool = False) -> Case:
        """Records an evaluation of small batches, so that its rows come a few at a time; it is slow as it is."""
        job_id = f"fault-{uuid.uuid4().hex[:12]}"
        folder = make_job(
            self.root / "made" / job_id,
            prompts=_PROMPTS,
            drafters=_DRAFTERS,
            shapes=list(_SHAPES),
            batch_tokens=rng.choice((160, 320)),
            device="auto",
            timeout_s=600.0,
            stall_s=300.0,
        )
        job = replace(Job.from_json(read_json(folder / "job.json")), job_id=job_id, payload_hash=RELEASE)
        self.desk.made.append(job_id)
        prompts = folder / job.prompts
        assert file_sha256(prompts) == job.prompts_hash
        where = Where("box", str(self.desk.workdir))
        run = self.desk.store.create(job, where, {job.prompts: prompts.read_bytes()})
        return Case(self.desk.attached(run), _PROMPTS * len(_SHAPES) * len(_DRAFTERS))

    def wrong_rows(self, case: Case, rows: list[dict[str, Any]]) -> list[str]:
        """Every row is there, once by its key."""
        keys = [Row.from_json(row).key for row in rows]
        twice = len(keys) - len(set(keys))
        return (
            []
            if len(keys) == case.total and not twice
            else [f"{len(keys)} rows of {case.total}, {twice} twice"]
        )
