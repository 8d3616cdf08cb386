"""Environments on hosts: the interpreter and packages that a payload needs, made once and kept."""

from __future__ import annotations

from orchestrator.environments.build import SetupResult, set_up
from orchestrator.environments.wanted import BUILD_S, Setup, TorchChoice, read_setup

__all__ = ["BUILD_S", "Setup", "SetupResult", "TorchChoice", "read_setup", "set_up"]
