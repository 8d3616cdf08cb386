"""A wire between two network namespaces: what goes in at one end comes out at the other, later or never.

    python wire.py NAME NAMESPACE_A ADDRESS_A NAMESPACE_B ADDRESS_B DELAY_MS [MBIT]

Linux, root. Addresses have a prefix length; the delay is one way, the rate (none: as fast as it goes) is each way's.
Prints `up` when it stands. SIGUSR1 cuts it (both ways, silently: no reset, no unreachable), SIGUSR2 heals it. The
kernel's own delay queue (netem) is not everywhere.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import itertools
import os
import select
import signal
import struct
import subprocess
import sys
import time

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_HEADER = 0x1001
_QUEUE_S = 0.3
"""What waits longer than this for its turn on a slow wire is lost."""


def enter(namespace: str) -> None:
    """Moves this thread into a network namespace; what it starts and opens from now on is there."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(namespace, os.O_RDONLY)
    try:
        if libc.setns(descriptor, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    finally:
        os.close(descriptor)


def make_end(name: str, namespace: str, address: str) -> int:
    """Makes one end: a TUN interface in the namespace, whose packets we read and write."""
    enter(f"/run/netns/{namespace}")
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN_NO_HEADER))
    for words in (["addr", "add", address, "dev", name], ["link", "set", name, "txqueuelen", "5000", "up"]):
        subprocess.run(["ip", *words], check=True)
    return end


def carry(ends: list[int], delay: float, cut: list[bool], rate: float = 0.0) -> None:
    """Passes packets from end to end for ever, `rate` bytes a second each way (0: no limit)."""
    free = dict.fromkeys(ends, 0.0)
    order = itertools.count()
    waiting: list[tuple[float, int, int, bytes]] = []
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select(ends, [], [], pause)
        for end in ready:
            packet = os.read(end, 65536)
            now = time.monotonic()
            if cut[0] or free[end] - now > _QUEUE_S:
                continue
            free[end] = max(now, free[end]) + (len(packet) / rate if rate else 0.0)
            heapq.heappush(waiting, (free[end] + delay, next(order), ends[1 - ends.index(end)], packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, other, packet = heapq.heappop(waiting)
            try:
                os.write(other, packet)
            except OSError:  # the far end's queue is full: lost, as on a real wire
                continue


def main(name: str, a: str, address_a: str, b: str, address_b: str, delay_ms: str, mbit: str = "0") -> None:
    ends = [make_end(name, a, address_a), make_end(name, b, address_b)]
    cut = [False]
    signal.signal(signal.SIGUSR1, lambda *_: cut.__setitem__(0, True))
    signal.signal(signal.SIGUSR2, lambda *_: cut.__setitem__(0, False))
    sys.stdout.write("up\n")
    sys.stdout.flush()
    carry(ends, float(delay_ms) / 1000, cut, float(mbit) * 125_000)


if __name__ == "__main__":
    main(*sys.argv[1:])
