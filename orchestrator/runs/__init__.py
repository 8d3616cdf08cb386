"""The local record of runs: kept (`store`), watched (`follow`), brought home (`pull`)."""

from __future__ import annotations

from orchestrator.runs.store import Pulled, Run, RunStore, Seen, Where

__all__ = ["Pulled", "Run", "RunStore", "Seen", "Where"]
