"""What can be wrong with what the payload is given. Standard library only.

Each error's text names the file (and line or tensor), says what is wrong and what to do. The command line
prints it and exits with the code; a job records it as the reason.
"""

from __future__ import annotations

__all__ = ["CheckpointError", "InputError", "PromptError", "TargetError"]


class InputError(Exception):
    """Base: an input was refused. Exit code 10 unless a subclass says otherwise."""

    exit_code = 10


class CheckpointError(InputError):
    """A drafter's checkpoint is not what it has to be; nothing was guessed or filled in."""


class PromptError(InputError):
    """A prompt file, or one of its lines, cannot be used."""


class TargetError(InputError):
    """The target cannot be loaded, or does not fit the drafter."""
