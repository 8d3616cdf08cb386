"""Where the bytes of a staged file come from: a file as it is, a text, or the drafter of a training state.

What always holds: an origin yields the same bytes whenever its file is the same, so that a hash taken in a
look can be compared with what is sent. A drafter of a training state becomes one safetensors file: header
keys sorted, offsets in order of (element size descending, name), the header padded with spaces to a multiple
of eight (the payload's `layouts/training_state.py` hashes the same form).
"""


def open_origin(origin):
    """A readable stream of an origin: {"file": path}, {"text": text} or {"torch": path}."""
    import io

    if "text" in origin:
        return io.BytesIO(origin["text"].encode())
    if "torch" in origin:
        return Converted(origin["torch"])
    return open(origin["file"], "rb")


def origin_file(origin):
    return origin.get("file") or origin.get("torch")


class Converted:
    """The drafter of a training state, read as a safetensors file."""

    def __init__(self, path):
        import struct
        import zipfile

        try:
            tensors = draft_tensors(path)
        except (zipfile.BadZipFile, EOFError, struct.error) as error:
            raise HostError(
                "checkpoint",
                f"truncated, still written, or not a file of torch.save ({error})",
                path,
                hint="wait until training has finished writing it, then run this again",
                unfinished=True,
            ) from error
        except UnsafeError as reason:
            raise HostError(
                "checkpoint",
                f"refused: {reason}; it was not executed",
                path,
                hint="export the drafter as safetensors with its config.json, and name that folder",
            ) from reason
        order = sorted(tensors, key=lambda name: (-tensors[name].item, name))
        self.header = safetensors_header([(name, tensors[name]) for name in order])
        self.pieces = [(tensors[name].start, tensors[name].size) for name in order]
        self.names = order
        self.size = len(self.header) + sum(size for _, size in self.pieces)
        self.stream = open(path, "rb")  # noqa: SIM115 - closed by close
        self.seek(0)

    def seek(self, at):
        """Goes on reading at a place of the whole."""
        self.left = self.walk(at)
        self.rest = b""

    def walk(self, skip):
        if skip < len(self.header):
            yield self.header[skip:]
        skip = max(0, skip - len(self.header))
        for start, size in self.pieces:
            if skip >= size:
                skip -= size
                continue
            self.stream.seek(start + skip)
            left, skip = size - skip, 0
            while left:
                piece = self.stream.read(min(PIECE, left))
                if not piece:
                    return
                left -= len(piece)
                yield piece

    def read(self, count):
        """At most so many bytes, as a file's read; fewer only at the end."""
        parts = [self.rest]
        have = len(self.rest)
        while have < count:
            piece = next(self.left, b"")
            if not piece:
                break
            parts.append(piece)
            have += len(piece)
        data = b"".join(parts)
        self.rest = data[count:]
        return data[:count]

    def readinto(self, buffer):
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self):
        self.stream.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def safetensors_header(tensors):
    import struct

    header, at = {}, 0
    for name, tensor in tensors:
        header[name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": [at, at + tensor.size],
        }
        at += tensor.size
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def origin_entry(origin):
    """Size and SHA-256 of what an origin yields."""
    import hashlib

    digest, size = hashlib.sha256(), 0
    with open_origin(origin) as stream:
        for piece in iter(lambda: stream.read(PIECE), b""):
            digest.update(piece)
            size += len(piece)
    return {"size": size, "sha256": digest.hexdigest(), "origin": origin}
