"""Evaluating checkpoints: what was asked (`plan`), and everything up to a run ready to be submitted (`start`)."""

from __future__ import annotations

from orchestrator.evaluation.plan import EvalOptions, Plan, build_job, plan
from orchestrator.evaluation.start import Links, attach, dry_run, inspect_drafters, prepare

__all__ = [
    "EvalOptions",
    "Links",
    "Plan",
    "attach",
    "build_job",
    "dry_run",
    "inspect_drafters",
    "plan",
    "prepare",
]
