"""Carries bytes between an SSH channel and a child process until the child is gone.

What always holds: all output that the child wrote is sent before its exit code is known to the caller; a
child that stops reading loses only its own input; a client that goes away leaves the child alone (its pipes
close, as they do under sshd), and the child is reaped all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import IO, TYPE_CHECKING

import asyncssh

if TYPE_CHECKING:
    import subprocess

__all__ = ["pump"]

_PIECE = 64 * 1024
_GONE = (BrokenPipeError, ConnectionResetError, asyncssh.Error)


async def pump(process: asyncssh.SSHServerProcess[bytes], child: subprocess.Popen[bytes]) -> int:
    """Connects a child's three pipes with a channel. Returns the child's exit code, negative for a signal."""
    assert child.stdin and child.stdout and child.stderr  # noqa: S101, PT018 - they were opened as pipes
    loop = asyncio.get_running_loop()
    feeding = loop.create_task(_feed(process.stdin, child.stdin))
    try:
        await asyncio.gather(_drain(child.stdout, process.stdout), _drain(child.stderr, process.stderr))
        return await loop.run_in_executor(None, child.wait)
    finally:
        feeding.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await feeding


async def _feed(source: asyncssh.SSHReader[bytes], pipe: IO[bytes]) -> None:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    try:
        while data := await source.read(_PIECE):
            writer.write(data)
            await writer.drain()
    except _GONE:
        return
    finally:
        writer.close()


async def _drain(pipe: IO[bytes], sink: asyncssh.SSHWriter[bytes]) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_PIECE)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        while data := await reader.read(_PIECE):
            sink.write(data)
            await sink.drain()
    except _GONE:
        return
    finally:
        transport.close()
