"""How bytes travel: in chunks of one size, each after a head of its own, and an end."""

import struct
import zlib  # noqa: F401 - of whoever needs this

CHUNK = 1 << 20
FRAME = struct.Struct("<IIII")  # number of the file, number of the chunk, length, CRC-32
END = FRAME.pack(0xFFFFFFFF, 0, 0, 0)
