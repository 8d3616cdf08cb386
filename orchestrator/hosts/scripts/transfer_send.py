# needs transfer_frames
"""Sends chunks of a checkpoint's files on stdout."""


def run(arguments):
    widen(sys.stdout.fileno())
    for piece in frames(arguments["files"], arguments["spans"]):
        sys.stdout.buffer.write(piece)
