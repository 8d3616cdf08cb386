"""Errors that a user can meet.

Every one says what happened (`message`: with the host or the file), what to do next (`hint`), and which
exit code a script sees. The core raises them; only the CLI prints them and exits.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "CheckpointRejectedError",
    "ConfigError",
    "HostFailedError",
    "InternalError",
    "LinkError",
    "NegativeAnswerError",
    "NotComparableError",
    "OrchError",
    "PartlyDoneError",
    "PayloadRejectedError",
    "ResultsError",
    "UnknownNameError",
    "UsageError",
]


class OrchError(Exception):
    """Base of all errors that a user can meet.

    Args:
        message: what happened, and on which host or file.
        hint: what to do next, ideally the next command to type.
        details: machine-readable facts for `--json`.
    """

    exit_code = 6

    def __init__(self, message: str, hint: str = "", **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details


class NegativeAnswerError(OrchError):
    """The command worked and the answer is no (worse than the baseline, a fault was found)."""

    exit_code = 1


class InternalError(OrchError):
    """A fault of orch itself."""

    exit_code = 70


class UsageError(OrchError):
    """The command line asks for something that does not exist or does not go together."""

    exit_code = 2


class ConfigError(OrchError):
    """The inventory or another configuration file is wrong."""

    exit_code = 3


class UnknownNameError(UsageError, ConfigError):
    """A name on the command line that the inventory does not define: the command line's fault (exit code 2)."""


class LinkError(OrchError):
    """The host could not be reached, its key was not accepted, or the link broke."""

    exit_code = 4


class PayloadRejectedError(OrchError):
    """The payload does not compile, has undefined names, failed its self-check, or speaks another protocol."""

    exit_code = 5


class HostFailedError(OrchError):
    """Something failed on the host: a job, the disk, a permission."""

    exit_code = 6


class ResultsError(OrchError):
    """Results are incomplete or do not match their manifest."""

    exit_code = 7


class PartlyDoneError(OrchError):
    """Some hosts or checkpoints succeeded and others failed."""

    exit_code = 8


class NotComparableError(OrchError):
    """Two runs differ in a field that acceptance lengths depend on."""

    exit_code = 9


class CheckpointRejectedError(OrchError):
    """A checkpoint or a prompt file was rejected."""

    exit_code = 10
