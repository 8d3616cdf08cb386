"""Machines: run a program there, feed it bytes, read bytes back. The only package that speaks SSH.

`open_host` leads from a name in the inventory to a host; importing it imports no SSH library.
"""

from __future__ import annotations

from orchestrator.hosts.base import Completed, Host, command_line
from orchestrator.hosts.connect import Offer, SharedGateways, Trusted, open_host, resolve_entry, trust

__all__ = [
    "Completed",
    "Host",
    "Offer",
    "SharedGateways",
    "Trusted",
    "command_line",
    "open_host",
    "resolve_entry",
    "trust",
]
