# needs files chunks checkpoint_torch checkpoint_origin
"""Files as a stream of chunks, each with its place and its CRC-32; a file that is not as promised ends it."""


def frames(files, spans):
    """Yields the chunks of some files, and the end; what it yields is good until it is asked for more.

    files: [[name, size, origin]], the number of a file being its place; spans: [[number, first, one past the last,
    step]] of chunks.
    """
    chunk = memoryview(bytearray(CHUNK))
    for number, first, past, step in spans:
        name, size, origin = files[number]
        with open_origin(origin) as stream:
            if origin_size(origin, stream) != size:
                changed(name, origin)
            for index in range(first, past, step):
                stream.seek(index * CHUNK)
                length = min(CHUNK, size - index * CHUNK)
                data = chunk[:length]
                if stream.readinto(data) != length:
                    changed(name, origin)
                yield FRAME.pack(number, index, length, zlib.crc32(data))
                yield data
    yield END


def changed(name, origin):
    raise HostError("checkpoint", f"{name} changed since it was looked at", origin_file(origin) or name)


def origin_size(origin, stream):
    if "torch" in origin:
        return stream.size
    return os.fstat(stream.fileno()).st_size if "file" in origin else len(stream.getvalue())
