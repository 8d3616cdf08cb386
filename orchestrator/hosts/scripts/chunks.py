"""How bytes travel: in chunks of one size, each after a head of its own, and an end."""

import contextlib
import fcntl
import struct
import zlib  # noqa: F401 - of whoever needs this

CHUNK = 1 << 20
FRAME = struct.Struct("<IIII")  # number of the file, number of the chunk, length, CRC-32
END = FRAME.pack(0xFFFFFFFF, 0, 0, 0)
WIDE = 1 << 20  # bytes: as much as a user may have of it, by default


def widen(descriptor):
    """Has a pipe hold more, where the system can do that, so that its two ends need not take turns."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # a socket, or more than this user may have
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, WIDE)
