"""SSH hosts on loopback, without root: what the demo and the tests connect to instead of real machines.

`up`, `down` and `status` steer one background server; see `control` for what always holds.
"""

from __future__ import annotations

from orchestrator.sandbox.control import DownReport, StatusReport, UpReport, down, status, up
from orchestrator.sandbox.seeds import SeedResult

__all__ = ["DownReport", "SeedResult", "StatusReport", "UpReport", "down", "status", "up"]
