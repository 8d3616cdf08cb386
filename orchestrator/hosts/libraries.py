"""The one door to the SSH libraries: imported late, and by one thread at a time.

Two threads that import fabric (or paramiko) at the same moment can each see the other's half-made module;
hosts are opened from many threads.
"""

from __future__ import annotations

import threading

__all__ = ["load_fabric", "load_paramiko"]

_IMPORTING = threading.RLock()


def load_paramiko() -> None:
    """Makes sure that paramiko is whole before anything of it is used."""
    with _IMPORTING:
        import paramiko  # noqa: F401


def load_fabric() -> None:
    """Makes sure that fabric, and paramiko with it, is whole before anything of it is used."""
    with _IMPORTING:
        load_paramiko()
        import fabric  # noqa: F401
