"""What comes on stdin, with a limit on silence: a host may never hear that the link to the sender is gone.

What always holds: who reads here ends in time, whatever became of the other side; a sender that is alive is never
silent for so long (it gives up its own source, and a link, earlier).
"""

SILENT_SECONDS = 90


class Incoming:
    """Stdin as a file for a reader of bulk. Raises HostError once nothing has come for SILENT_SECONDS."""

    def __init__(self):
        signal.signal(signal.SIGALRM, silent)

    def read(self, size):
        """The next `size` bytes; fewer only at the end."""
        pieces, left = [], size
        while left:
            piece = self.in_time(sys.stdin.buffer.read1, left)
            if not piece:
                break
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)

    def readinto(self, view):
        """Some of the next bytes, into a buffer. Returns how many; 0 at the end."""
        return self.in_time(sys.stdin.buffer.readinto1, view)

    def in_time(self, read, what):
        signal.alarm(SILENT_SECONDS)
        try:
            return read(what)
        finally:
            signal.alarm(0)


def silent(_number, _frame):
    raise HostError("cut", f"nothing came for {SILENT_SECONDS} s")
