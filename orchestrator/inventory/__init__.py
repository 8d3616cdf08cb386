"""inventory.yaml as typed, validated values: hosts, targets, checkpoints, suites, and the defaults.

What always holds: an Inventory that exists is consistent, every name that an entry refers to is defined.
A wrong file is one ConfigError that lists all of its problems with their lines.
"""

from __future__ import annotations

from orchestrator.inventory.forms import nearest
from orchestrator.inventory.interpreter import Interpreter, environment_folder
from orchestrator.inventory.load import find_inventory, load_inventory
from orchestrator.inventory.memory import Memory, users_memory
from orchestrator.inventory.models import (
    CheckpointEntry,
    Defaults,
    HostEntry,
    Role,
    Seeds,
    SuiteEntry,
    TargetEntry,
)
from orchestrator.inventory.whole import Inventory

__all__ = [
    "CheckpointEntry",
    "Defaults",
    "HostEntry",
    "Interpreter",
    "Inventory",
    "Memory",
    "Role",
    "Seeds",
    "SuiteEntry",
    "TargetEntry",
    "environment_folder",
    "find_inventory",
    "load_inventory",
    "nearest",
    "users_memory",
]
